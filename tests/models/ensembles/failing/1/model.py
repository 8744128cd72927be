"""An error for each request."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("went wrong", pb_utils.TritonError.INVALID_ARG))
