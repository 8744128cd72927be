"""``tensorbus serve --reload``: who writes a model saves a file and sends the next request."""

from __future__ import annotations

import time

from tests.system.conftest import Background, Repository, Server, Start, eventually

ANSWER = "def execute(self, requests): return [respond(request, np.float32([{}])) for request in requests]"


def answers(server: Server, value: float) -> bool:
    answer = server.post("m", [0.0])
    return answer.status == 200 and answer.data == [value]


def test_a_changed_model_answers_anew_and_no_request_is_lost(repository: Repository, start: Start) -> None:
    folder = repository.add("m", ANSWER.format(1), instances=2)
    server = start("--reload")
    assert answers(server, 1)
    clients = Background(2, lambda: server.post("m", [0.0]).status)
    (folder / "model.py").write_text((folder / "model.py").read_text().replace("float32([1])", "float32([2])"))
    eventually(lambda: answers(server, 2))
    assert set(clients.stop()) == {200}
    assert server.lines("files have changed", "1/model.py")


def test_a_helper_and_the_configuration_count_too(repository: Repository, start: Start) -> None:
    folder = repository.add(
        "m",
        """
        def execute(self, requests):
            import helper
            return [respond(request, np.float32([helper.VALUE])) for request in requests]
        """,
    )
    (folder / "helper.py").write_text("VALUE = 1")
    server = start("--reload")
    assert answers(server, 1)
    (folder / "helper.py").write_text("VALUE = 22")
    eventually(lambda: answers(server, 22))
    config = folder.parent / "config.pbtxt"
    config.write_text(config.read_text().replace("count: 1", "count: 2"))
    eventually(lambda: len(server.stubs("m")) == 2)


def test_a_mistake_is_told_and_the_model_serves_as_it_was(repository: Repository, start: Start) -> None:
    folder = repository.add("m", ANSWER.format(1))
    right = (folder / "model.py").read_text()
    server = start("--reload")
    (folder / "model.py").write_text(right + "\n)")
    eventually(lambda: server.lines("SyntaxError") and server.lines("the changed model was not loaded"))
    assert answers(server, 1)
    (folder / "model.py").write_text(right.replace("float32([1])", "float32([3])"))
    eventually(lambda: answers(server, 3))


def test_a_model_that_failed_at_the_start_is_loaded_when_it_is_repaired(repository: Repository, start: Start) -> None:
    folder = repository.add("m", ANSWER.format(1))
    right = (folder / "model.py").read_text()
    (folder / "model.py").write_text("nonsense(")
    server = start("--reload", "--exit-on-error=false")
    assert server.post("m", [0.0]).status == 404
    (folder / "model.py").write_text(right)
    eventually(lambda: answers(server, 1))


def test_what_the_load_itself_writes_is_no_reason_for_another(repository: Repository, start: Start) -> None:
    code = """
    def initialize(self, args):
        folder = os.path.join(args["model_repository"], args["model_version"])
        open(os.path.join(folder, "written"), "a").write("x" * 100)

    def execute(self, requests):
        return [respond(request, np.float32([1])) for request in requests]
    """
    folder = repository.add("m", code)
    server = start("--reload")
    (folder / "model.py").write_text((folder / "model.py").read_text().replace("float32([1])", "float32([2])"))
    eventually(lambda: answers(server, 2))
    end = time.monotonic() + 2.5
    eventually(lambda: time.monotonic() > end)
    assert len(server.lines("files have changed")) == 1


def test_without_the_flag_nothing_is_loaded_again(repository: Repository, start: Start) -> None:
    folder = repository.add("m", ANSWER.format(1))
    server = start()
    (folder / "model.py").write_text((folder / "model.py").read_text().replace("float32([1])", "float32([2])"))
    end = time.monotonic() + 2
    eventually(lambda: time.monotonic() > end)
    assert answers(server, 1)
