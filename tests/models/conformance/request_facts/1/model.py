"""Returns what a model can learn about its request, as JSON."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


def facts(request):
    return {
        "request_id": request.request_id(),
        "correlation_id": request.correlation_id(),
        "flags": request.flags(),
        "timeout": request.timeout(),
        "parameters": json.loads(request.parameters()),
        "requested_output_names": sorted(request.requested_output_names()),
    }


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = json.dumps(facts(request), sort_keys=True)
            outputs = [
                pb_utils.Tensor("FACTS", np.array([text], dtype=np.object_)),
                pb_utils.Tensor("SECOND", request.inputs()[0].as_numpy()),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
