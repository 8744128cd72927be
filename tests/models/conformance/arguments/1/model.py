"""Returns the arguments of ``initialize``, paths reduced to their last two parts."""

import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.config = args["model_config"]
        self.args = {key: value for key, value in args.items() if key != "model_config"}
        path = self.args["model_repository"]
        self.args["model_repository"] = os.path.join(*path.split(os.sep)[-2:])

    def execute(self, requests):
        args = np.array([[json.dumps(self.args, sort_keys=True)]], dtype=np.object_)
        config = np.array([[self.config]], dtype=np.object_)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("ARGS", args), pb_utils.Tensor("CONFIG", config)])
            for _ in requests
        ]
