"""Sends the responses that it is told to send: a number is a response of so many elements."""

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(step):
    if step == "error":
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("told", pb_utils.TritonError.NOT_FOUND))
    text = np.array(["t"] * int(step), dtype=np.object_)
    out = np.arange(int(step), dtype=np.int32)
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out), pb_utils.Tensor("TEXT", text)])


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            *steps, end = (step.decode() for step in request.inputs()[0].as_numpy())
            for step in steps:
                sender.send(response(step))
            if end == "raise":
                raise ValueError("boom")
            if end == "final":
                sender.send(flags=FINAL)
            else:
                sender.send(response(end), flags=FINAL)
