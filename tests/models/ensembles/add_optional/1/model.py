"""S is A + B, or A + 100 without B."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        return pb_utils.InferenceResponse([pb_utils.Tensor("S", tensors["A"] + tensors.get("B", 100))])
