"""F is what the request says, as JSON."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        names = sorted(request.requested_output_names())
        facts = [request.request_id(), request.correlation_id(), request.flags(), request.timeout(), names]
        text = json.dumps([*facts, json.loads(request.parameters())])
        return pb_utils.InferenceResponse([pb_utils.Tensor("F", np.array([text.encode()], dtype=object))])
