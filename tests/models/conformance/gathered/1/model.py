"""Returns how many requests came together, and which of them this one was."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for position, request in enumerate(requests):
            rows = len(request.inputs()[0].as_numpy())
            out = np.array([[len(requests), position]] * rows, dtype=np.int32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return responses
