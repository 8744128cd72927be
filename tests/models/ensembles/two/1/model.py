"""P is X + 1, Q is X + 2 unless X begins with 0."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = request.inputs()[0].as_numpy()
        outputs = [pb_utils.Tensor("P", given + 1), pb_utils.Tensor("Q", given + 2)]
        return pb_utils.InferenceResponse(outputs if given[0] else outputs[:1])
