"""Each request is told what its execution looked like: SEEN is JSON text, one for each row.

What is not READY, a slot of a sequence without a request, is null there. The parameter ``sleep_ms`` says how long the
execution takes, ``fails`` that the request is answered with an error. A parameter ``raises`` of the configuration is
what ``initialize`` raises.
"""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def plain(value):
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        if "raises" in config["parameters"]:
            raise ValueError(config["parameters"]["raises"]["string_value"])
        self.batches = int(config["max_batch_size"]) > 0
        self.group = args["model_instance_name"].rpartition("_")[0]
        self.executions = 0

    def execute(self, requests):
        self.executions += 1
        tensors = [{one.name(): plain(one.as_numpy().tolist()) for one in request.inputs()} for request in requests]
        parameters = [json.loads(request.parameters() or "{}") for request in requests]
        time.sleep(max(int(one.get("sleep_ms", 0)) for one in parameters) / 1000)
        together = [one["X"] if np.all(one.get("READY", True)) else None for one in tensors]
        responses = []
        for place, request in enumerate(requests):
            if "fails" in parameters[place]:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(parameters[place]["fails"])))
                continue
            seen = {
                "execution": self.executions,
                "group": self.group,
                "together": together,
                "place": place,
                "inputs": dict(sorted(tensors[place].items())),
            }
            responses.append(self.answer(request, json.dumps(seen, separators=(",", ":"))))
        return responses

    def answer(self, request, text):
        rows = pb_utils.get_input_tensor_by_name(request, "X").as_numpy().shape[:1] if self.batches else ()
        return pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", np.full((*rows, 1), text, dtype=np.object_))])
