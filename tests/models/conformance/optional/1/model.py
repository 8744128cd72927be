"""Returns INPUT<n> as OUTPUT<n>."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            outputs = [
                pb_utils.Tensor(tensor.name().replace("INPUT", "OUTPUT"), tensor.as_numpy())
                for tensor in sorted(request.inputs(), key=lambda tensor: tensor.name())
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
