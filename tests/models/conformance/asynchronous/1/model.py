"""``async def execute`` that does what ACTION names: sleep, call another model, fail, return something odd."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


def response(*numbers):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(numbers, dtype=np.int32))])


async def called():
    row = np.ones(4, dtype=np.float32)
    request = pb_utils.InferenceRequest(
        model_name="add_sub",
        requested_output_names=["OUTPUT0"],
        inputs=[pb_utils.Tensor("INPUT0", row), pb_utils.Tensor("INPUT1", row)],
    )
    answers = await asyncio.gather(*(request.async_exec() for _ in range(3)))
    return [response(*(answer.output_tensors()[0].as_numpy()[0] for answer in answers))]


async def streamed():
    steps = np.array(["1", "2", "final"], dtype=np.object_)
    request = pb_utils.InferenceRequest(
        model_name="responses", requested_output_names=["OUT"], inputs=[pb_utils.Tensor("STEPS", steps)]
    )
    answers = await request.async_exec(decoupled=True)
    return [response(*(len(answer.output_tensors()) for answer in answers))]


class TritonPythonModel:
    async def execute(self, requests):
        action = requests[0].inputs()[0].as_numpy()[0].decode()
        await asyncio.sleep(0)
        if action == "raise":
            raise ValueError("boom")
        if action == "called":
            return await called()
        if action == "streamed":
            return await streamed()
        if action == "sent":
            requests[0].get_response_sender().send(response(3), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return None
        if action == "error":
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError("told", pb_utils.TritonError.NOT_FOUND))]
        return {"fine": [response(1)], "tuple": (response(1),), "two": [response(1), response(2)], "int": 7}[action]
