"""Tries what PROBE names, out of the tables in the files beside this one, and returns as JSON what came of it."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

from . import arguments, calls, configs, lookups


def outcome(probe, request):
    """The remainder of a TypeError's text, the signatures, is nobody's business."""
    try:
        return {"value": probe(pb_utils, request)}
    except BaseException as error:
        text = str(error)
        if isinstance(error, TypeError):
            text = text.split("\n")[0]
        return {type(error).__name__: text}


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            group, name = request.inputs()[0].as_numpy()[0].decode().split(": ", 1)
            probes = {"arguments": arguments, "calls": calls, "configs": configs, "lookups": lookups}[group].PROBES
            text = json.dumps(outcome(probes[name], request), sort_keys=True)
            out = pb_utils.Tensor("OUT", np.array([text], dtype=np.object_))
            responses.append(pb_utils.InferenceResponse([out]))
        return responses
