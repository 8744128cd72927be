"""Y is twice X."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy() * 2)])
