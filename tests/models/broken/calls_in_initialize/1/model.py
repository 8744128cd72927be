"""Calls another model where that is not possible."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        pb_utils.InferenceRequest(model_name="fine", inputs=[], requested_output_names=[]).exec()
