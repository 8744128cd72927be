"""Every name in a model's folder is the user's, whatever ours are called; in the model and in processes it starts."""

import os
from pathlib import Path

import pytest
import zmq

from tests.stub.bare_broker import BareBroker

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ["broker", "gateway", "metrics", "protocol", "shm", "stub", "tensorbus"]
FILES_OF_THE_STUB = sorted(path.stem for path in (ROOT / "stub").glob("*.py") if not path.stem.startswith("__"))
HOSTILE = sorted({*PACKAGES, *FILES_OF_THE_STUB, "utils", "messages", "store"})

# Answers the number that the folder's own modules give, summed over where they are imported.
MODEL = """
import importlib, multiprocessing, os, sys
import numpy as np
import triton_python_backend_utils as pb_utils
import {names}
from .pkg import number

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = {names!r}.split(", ")

def numbers():
    found = [importlib.import_module(name) for name in NAMES]
    assert all(os.path.dirname(module.__file__) == HERE for module in found), found
    return {{module.V for module in found}}

def clean():
    ours = [name for name in sys.modules if name.split(".")[0] in {packages!r} and name not in NAMES]
    assert not ours, ours
    folders = [os.path.realpath(path) for path in sys.path]
    assert {root!r} not in folders and {root!r} + "/stub" not in folders, folders
    return [number]

class TritonPythonModel:
    def initialize(self, args):
        assert args["model_repository"] == os.path.dirname(HERE), args
        assert args["model_version"] == os.path.basename(HERE), args
        self.found = [{names_at_top}] + clean() + sorted(numbers())

    def execute(self, requests):
        for method in ("fork", "spawn"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                self.found += sorted(pool.apply(numbers)) + pool.apply(clean)
        answer = pb_utils.Tensor("OUT", np.array(self.found, np.float32))
        return [pb_utils.InferenceResponse([answer]) for _ in requests]
"""


@pytest.fixture(scope="module")
def bus(tmp_path_factory):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        broker = BareBroker(tmp_path_factory.mktemp("bus"), router)
        yield broker
        broker.close()


@pytest.fixture(params=["by path", "forked"])
def started(request, bus):
    """A broker whose stub waits for Load."""
    bus.start_by_path() if request.param == "by path" else bus.start()
    yield bus
    bus.end_stub()


def write_model(model_dir: Path, version: int, value: int, names: list[str]) -> Path:
    folder = model_dir / str(version)
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "__init__.py").write_text("from . import x\nfrom .x import number\n")
    (folder / "pkg" / "x.py").write_text(f"number = {value}\n")
    for name in names:
        (folder / f"{name}.py").write_text(f"V = {value}\n")
    path = folder / "model.py"
    path.write_text(
        MODEL.format(
            names=", ".join(names), names_at_top=f"{names[0]}.V", packages=set(PACKAGES), root=os.path.realpath(ROOT)
        )
    )
    return path


def test_a_folder_full_of_our_names_is_all_the_users(started, tmp_path):
    started.serve(write_model(tmp_path / "m", 1, 7, HOSTILE))
    assert set(started.values(started.infer(1))) == {7}


def test_a_clean_model_meets_none_of_our_names(started, tmp_path):
    started.serve(write_model(tmp_path / "m", 1, 7, ["helper"]))
    assert set(started.values(started.infer(1))) == {7}


def test_models_and_versions_have_their_own_helpers(bus, tmp_path):
    for name, version, value in (("m1", 1, 1), ("m2", 1, 2), ("m1", 2, 3)):
        bus.start()
        bus.serve(write_model(tmp_path / name, version, value, ["utils"]))
        assert set(bus.values(bus.infer(1))) == {value}
        bus.end_stub()


def test_a_repository_may_be_a_symbolic_link(started, tmp_path):
    write_model(tmp_path / "real" / "m", 1, 5, ["utils"])
    (tmp_path / "link").symlink_to("real")
    started.serve(tmp_path / "link" / "m" / "1" / "model.py")
    assert set(started.values(started.infer(1))) == {5}
