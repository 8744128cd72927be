"""Has each request executed ROUNDS times and sends a response each time; below 0 it returns one as well, wrongly."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.rounds = 0

    def execute(self, requests):
        for request in requests:
            rounds = int(request.inputs()[0].as_numpy()[0])
            self.rounds += 1
            sender = request.get_response_sender()
            seen = json.dumps([self.rounds, request.flags(), request.request_id()])
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", np.array([seen], dtype=np.object_))]))
            if self.rounds < rounds:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                self.rounds = 0
                sender.send(flags=FINAL)
