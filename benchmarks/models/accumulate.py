"""OUTPUT0 = the sum of all INPUT0 of the sequence so far."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.step(request) for request in requests]

    def step(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if not given["READY"][0, 0]:
            return pb_utils.InferenceResponse([])
        sequence = given["CORRID"][0, 0]
        total = given["INPUT0"] if given["START"][0, 0] else self.sums[sequence] + given["INPUT0"]
        if given["END"][0, 0]:
            self.sums.pop(sequence, None)
        else:
            self.sums[sequence] = total
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", total)])
