"""``async def execute`` that sends after it has slept; ACTION says what more it does."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(*numbers):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(numbers, dtype=np.int32))])


class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            await self.answer(request.inputs()[0].as_numpy()[0].decode(), request.get_response_sender())

    async def answer(self, action, sender):
        await asyncio.sleep(0.01)
        sender.send(response(1))
        if action == "raise":
            raise ValueError("boom")
        if action == "gather":
            await asyncio.gather(*(self.send(sender, number) for number in (2, 3)))
        sender.send(flags=FINAL)
        if action == "raise after final":
            raise ValueError("boom")

    async def send(self, sender, number):
        await asyncio.sleep(number / 20)
        sender.send(response(number))
