"""What the wheel installs, seen from an interpreter that knows nothing of this checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that a wheel was unpacked into, as an installer would into site-packages."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site-packages")
    return folder / "site-packages"


def run(installed, code, cwd):
    """By an isolated interpreter: no PYTHONPATH, no current folder, the wheel before all else."""
    path = (
        f"import sys; sys.path[:] = [p for p in sys.path if p != {str(ROOT)!r}]; sys.path.insert(1, {str(installed)!r})"
    )
    done = subprocess.run([sys.executable, "-I", "-c", f"{path}\n{code}"], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_model_can_be_imported_and_run_without_a_server(installed, tmp_path):
    code = """
import numpy as np
import triton_python_backend_utils as pb_utils
tensor = pb_utils.Tensor("X", np.arange(3, dtype=np.float32))
print(tensor.name(), tensor.as_numpy().tolist())
"""
    assert run(installed, code, tmp_path) == "X [0.0, 1.0, 2.0]"


def test_the_older_name_of_the_module_is_there_too(installed, tmp_path):
    assert run(installed, "import c_python_backend_utils as c; print(c.__name__)", tmp_path) == "c_python_backend_utils"


def test_the_copies_at_the_top_share_their_code_with_those_that_a_stub_uses(installed, tmp_path):
    code = """
import triton_python_backend_utils as at_the_top
site = sys.path[1]
for name in ("triton_python_backend_utils", "_tensorbus_app"):
    del sys.modules[name]
sys.path[1:1] = [site + "/stub/api"]
import triton_python_backend_utils as in_a_stub
assert in_a_stub.__file__.startswith(site + "/stub/api/")
print(in_a_stub.Tensor is at_the_top.Tensor)
"""
    assert run(installed, code, tmp_path) == "True"


def test_a_model_finds_the_packages_beside_ours(installed, tmp_path):
    (installed / "package_of_the_users.py").write_text("VALUE = 5")
    model = tmp_path / "m" / "1" / "model.py"
    model.parent.mkdir(parents=True)
    model.write_text("import package_of_the_users\nclass TritonPythonModel:\n    value = package_of_the_users.VALUE\n")
    code = f"""
from _tensorbus_app.stub.user_model import UserModel
print(UserModel.load({str(model)!r}, {{}}).instance.value)
"""
    assert run(installed, code, tmp_path) == "5"
    (installed / "package_of_the_users.py").unlink()


def test_the_command_starts_from_the_wheel(installed, tmp_path):
    code = """
from tensorbus.__main__ import main
sys.stderr = sys.stdout
main(["serve", "--help"])
"""
    assert "--model-repository" in run(installed, code, tmp_path)


def test_a_model_runs_in_the_foreground_from_the_wheel(installed, tmp_path):
    model = tmp_path / "m" / "1" / "model.py"
    model.parent.mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text("""backend: "python"
        input [{ name: "X" data_type: TYPE_FP32 dims: [1] }] output [{ name: "X" data_type: TYPE_FP32 dims: [1] }]""")
    (model.parent / "broker.py").write_text("V = 7")
    model.write_text("""
import broker
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        print("broker", broker.V)
        return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
""")
    code = f"from tensorbus.__main__ import main\nprint(main(['run-model', {str(model.parent.parent)!r}]))"
    said = run(installed, code, tmp_path).splitlines()
    assert said[0] == "broker 7"
    assert '"data": [0.0]' in said[1]
    assert said[2] == "0"


def test_the_python_api_is_in_the_wheel(installed, tmp_path):
    code = """
import numpy as np, tensorbus
with tensorbus.Server() as server:
    server.bind("f", lambda x: x, [tensorbus.Tensor("x", "FP32")], [tensorbus.Tensor("x", "FP32")])
    print(server.infer("f", {"x": np.float32([5])})["x"].tolist())
"""
    assert run(installed, code, tmp_path) == "[5.0]"


def test_our_backends_are_in_the_wheel(installed):
    for backend in ("onnxruntime", "pytorch"):
        assert (installed / "stub" / "backends" / backend / "model.py").exists()


def test_the_wheel_holds_the_packages_and_nothing_of_the_workshop(installed):
    top = {path.name for path in installed.iterdir() if not path.name.endswith((".dist-info", "__pycache__"))}
    packages = {"protocol", "shm", "metrics", "broker", "gateway", "stub", "tensorbus"}
    modules = {"_tensorbus_app.py", "c_python_backend_utils.py", "triton_python_backend_utils.py"}
    assert top == packages | modules | {"triton_python_backend_utils-stubs"}
