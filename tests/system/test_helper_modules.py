"""A model's own modules beside its model.py, whatever they are called."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.system.conftest import CONFIG, Repository, Start, json_request

OURS = ["broker", "gateway", "metrics", "protocol", "shm", "stub", "tensorbus"]
THIRD_PARTY = ["zmq_helpers", "utils", "config", "logger", "messages"]


def utils_of(directory: Path, value: int) -> None:
    (directory / "utils.py").write_text(f"V = {value}\n")


ANSWERS_V = """
def initialize(self, args):
    import utils
    self.v = float(utils.V)

def execute(self, requests):
    return [respond(request, np.array([self.v], np.float32)) for request in requests]
"""


def test_models_have_their_own_modules_of_one_name(repository: Repository, start: Start) -> None:
    """`import utils` beside model.py failed, or two models' utils.py collided."""
    utils_of(repository.add("one", ANSWERS_V), 1)
    utils_of(repository.add("two", ANSWERS_V), 2)
    server = start()
    assert server.post("one", [0.0]).data == [1.0]
    assert server.post("two", [0.0]).data == [2.0]


def test_versions_of_a_model_have_their_own_modules(repository: Repository, start: Start) -> None:
    first = repository.add("m", ANSWERS_V, config=CONFIG % 1 + "version_policy: { all: {} }")
    utils_of(first, 1)
    second = first.parent / "2"
    second.mkdir()
    (second / "model.py").write_text((first / "model.py").read_text())
    utils_of(second, 2)
    server = start()
    for version in (1, 2):
        answer = server.call("POST", f"/v2/models/m/versions/{version}/infer", b"", {})
        assert answer.status == 200, answer
        assert answer.array.tolist() == [version]


def test_a_package_of_the_model_may_import_relatively(repository: Repository, start: Start) -> None:
    code = """
    def execute(self, requests):
        import pkg
        from pkg.deep import y
        return [respond(request, np.array([pkg.x.V, y.V], np.float32)) for request in requests]
    """
    package = repository.add("m", code) / "pkg"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("from . import x\n")
    (package / "x.py").write_text("V = 3\n")
    (package / "deep" / "__init__.py").write_text("")
    (package / "deep" / "y.py").write_text("from ..x import V as W\nV = W + 1\n")
    server = start()
    assert server.post("m", [0.0]).data == [3.0, 4.0]


def test_modules_may_lie_in_the_model_folder_for_all_versions(repository: Repository, start: Start) -> None:
    first = repository.add("m", ANSWERS_V, config=CONFIG % 1 + "version_policy: { all: {} }")
    utils_of(first.parent, 5)
    shutil.copytree(first, first.parent / "2")
    server = start()
    for version in (1, 2):
        answer = server.call("POST", f"/v2/models/m/versions/{version}/infer", json_request([0.0]))
        assert answer.data == [5.0]


@pytest.mark.parametrize("late", [False, True], ids=["imported with the model", "imported in execute"])
def test_no_name_is_taken_by_the_server(repository: Repository, start: Start, late: bool) -> None:
    """Modules of the server's own shadowed those of the model."""
    names = OURS + THIRD_PARTY
    imports = "import " + ", ".join(names)
    code = f"""
    {"" if late else imports}
    def execute(self, requests):
        {imports}
        found = [module.V for module in ({", ".join(names)})]
        return [respond(request, np.array(found, np.float32)) for request in requests]
    """
    directory = repository.add("m", code)
    for value, name in enumerate(names):
        (directory / f"{name}.py").write_text(f"V = {value}\n")
    server = start()
    assert server.post("m", [0.0]).data == list(range(len(names)))


def test_a_process_that_the_model_spawns_finds_the_models_modules(repository: Repository, start: Start) -> None:
    code = """
    def execute(self, requests):
        import multiprocessing
        from work import square
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            squares = pool.map(square, [3.0, 4.0])
        return [respond(request, np.array(squares, np.float32)) for request in requests]
    """
    directory = repository.add("m", code)
    (directory / "work.py").write_text("import metrics\ndef square(x):\n    return x * x + metrics.V\n")
    (directory / "metrics.py").write_text("V = 1\n")
    server = start()
    assert server.post("m", [0.0]).data == [10.0, 17.0]
