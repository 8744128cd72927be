"""Tells the shapes its inputs have here, and returns one that the server reshapes back."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            square = pb_utils.get_input_tensor_by_name(request, "SQUARE").as_numpy()
            scalar = pb_utils.get_input_tensor_by_name(request, "SCALAR").as_numpy()
            shapes = np.array([[str(list(square.shape)), str(list(scalar.shape))]] * square.shape[0], dtype=np.object_)
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("SHAPES", shapes), pb_utils.Tensor("FLAT", square)])
            )
        return responses
