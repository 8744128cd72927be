"""Returns the shapes of its inputs, as JSON."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = json.dumps({tensor.name(): list(tensor.shape()) for tensor in request.inputs()}, sort_keys=True)
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("SHAPES", np.array([text], dtype=np.object_))])
            )
        return responses
