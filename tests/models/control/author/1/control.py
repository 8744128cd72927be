"""Models loaded, unloaded and asked after by a model."""

import json

import numpy as np

CONFIG = {
    "name": "spare",
    "backend": "python",
    "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [1]}],
}
TWICE = b"""
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy() * 2)])
            for request in requests
        ]
"""


def answer(pb, model="spare"):
    tensor = pb.Tensor("INPUT0", np.array([5], dtype=np.int32))
    made = pb.InferenceRequest(model_name=model, inputs=[tensor], requested_output_names=[])
    response = made.exec()
    return response.error().message() if response.has_error() else response.output_tensors()[0].as_numpy().tolist()


def loaded(pb, _):
    pb.load_model("spare")
    return [pb.is_model_ready("spare"), pb.is_model_ready("spare", "1"), answer(pb)]


def loaded_with(**more):
    def probe(pb, _):
        pb.load_model("spare", **more)
        return answer(pb)

    return probe


def brought(pb, _):
    """A model that is in no repository."""
    config = json.dumps({**CONFIG, "name": "brought"})
    pb.load_model("brought", config=config, files={"file:1/model.py": TWICE})
    return answer(pb, "brought")


def refused_then(**more):
    """The model that serves goes on serving."""

    def probe(pb, _):
        pb.load_model("spare")
        try:
            pb.load_model("spare", **more)
        except pb.TritonModelException as error:
            return [str(error), pb.is_model_ready("spare"), answer(pb)]

    return probe


def unloaded(pb, _):
    pb.load_model("spare")
    pb.unload_model("spare")
    return "unloaded"


PROBES = {
    "load": loaded,
    "load again": loaded,
    "load by keywords": loaded_with(config="", files=None),
    "load with a configuration": loaded_with(config=json.dumps(CONFIG)),
    "load with files": brought,
    "load an unknown model": lambda pb, _: pb.load_model("nobody"),
    "load a broken model": lambda pb, _: pb.load_model("spare_broken"),
    "load with a malformed configuration": refused_then(config="{"),
    "load with files alone": refused_then(files={"file:1/model.py": TWICE}),
    "load with files that are a list": lambda pb, _: pb.load_model("spare", files=[1]),
    "load with files that are text": lambda pb, _: pb.load_model("spare", files="x"),
    "load None": lambda pb, _: pb.load_model(None),
    "load with a dictionary as configuration": lambda pb, _: pb.load_model("spare", config=CONFIG),
    "unload": unloaded,
    "unload by keywords": lambda pb, _: pb.unload_model(model_name="spare", unload_dependents=True),
    "unload an unknown model": lambda pb, _: pb.unload_model("nobody"),
    "unload None": lambda pb, _: pb.unload_model(None),
    "ready of one not loaded": lambda pb, _: pb.is_model_ready("spare_broken"),
    "ready of an unknown model": lambda pb, _: pb.is_model_ready("nobody"),
    "ready of an unknown version": lambda pb, _: pb.is_model_ready("author", "7"),
    "ready of itself": lambda pb, _: pb.is_model_ready("author", "1"),
    "ready of a version that is a number": lambda pb, _: pb.is_model_ready("author", 1),
    "ready of a version that is no number": lambda pb, _: pb.is_model_ready("author", "one"),
    "ready of None": lambda pb, _: pb.is_model_ready(None),
}
