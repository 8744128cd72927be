"""Our backends in this process: requests go straight to ``execute``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from _tensorbus_app.stub.user_model import UserModel

BACKENDS = Path(__file__).parents[3] / "stub" / "backends"


class Instance:
    """One of model "m", which gives output Y."""

    def __init__(self, backend: str, version_dir: Path, config: dict[str, Any]) -> None:
        args = {
            "model_config": json.dumps({"name": "m", **config}),
            "model_instance_kind": "CPU",
            "model_instance_device_id": "0",
        }
        self.instance = UserModel.load(str(BACKENDS / backend / "model.py"), args, str(version_dir)).instance

    def execute(self, *requests: dict[str, Any]) -> list[Any]:
        """Array Y of each, or the text of its error. An input is an array, or a tensor that was received."""
        made = [
            pb_utils.InferenceRequest(
                inputs=[
                    pb_utils.Tensor(name, given) if isinstance(given, np.ndarray) else given
                    for name, given in inputs.items()
                ],
                requested_output_names=["Y"],
                model_name="m",
            )
            for inputs in requests
        ]
        return [
            response.error().message() if response.has_error() else response.output_tensors()[0].as_numpy()
            for response in self.instance.execute(made)
        ]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., Instance]]:
    """What importing a backend does to the interpreter is undone."""
    path, argv, modules = sys.path[:], sys.argv, set(sys.modules)
    yield lambda backend, **config: Instance(backend, tmp_path, config)
    sys.path[:] = path
    sys.argv = argv
    for name in set(sys.modules) - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(BACKENDS)):
            del sys.modules[name]
