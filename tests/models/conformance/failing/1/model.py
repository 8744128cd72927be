"""Raises for 0, returns an error for anything else."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        if requests[0].inputs()[0].as_numpy()[0] == 0:
            raise ValueError("zero")
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("not zero")) for _ in requests]
