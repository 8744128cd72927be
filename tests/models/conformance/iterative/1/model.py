"""Has each request executed ROUNDS times and returns what it saw of it then; below 0 it returns a response for it."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.seen = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            rounds = int(request.inputs()[0].as_numpy()[0])
            seen = self.seen.setdefault(request.request_id(), [])
            first = self.seen.setdefault("first " + request.request_id(), request.correlation_id())
            seen.append([request.correlation_id() == first, request.flags(), request.request_id(), rounds])
            if len(seen) < abs(rounds):
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None if rounds > 0 else self.response(seen))
            else:
                responses.append(self.response(seen))
                self.seen.clear()
        return responses

    def response(self, seen):
        return pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", np.array([json.dumps(seen)], dtype=np.object_))])
