"""Metrics that models make, seen at the metrics port: by operators, and by the models themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

from tests.system.conftest import Repository, Server, Start, eventually, together

Flag = Callable[[str], Path]


def custom(server: Server) -> dict[str, float]:
    """Samples of what models made."""
    lines = [line for line in server.exposition() if not line.startswith(("nv_", "tensorbus_"))]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


COUNTING = """
def initialize(self, args):
    self.family = pb_utils.MetricFamily("answers", "Answers given", pb_utils.MetricFamily.COUNTER)
    self.ours = self.family.Metric(labels={"model": args["model_name"]})
    self.mine = self.family.Metric(labels={"instance": args["model_instance_name"]})
    self.mine.increment(0)

def execute(self, requests):
    for request in requests:
        self.ours.increment(1)
        self.mine.increment(1)
    return [respond(request, np.array([self.ours.value()], np.float32)) for request in requests]

def finalize(self):
    self.ours.increment(1)
    pb_utils.Logger.log_info("in the end {}".format(self.ours.value()))
"""


def test_instances_share_what_has_the_same_labels(repository: Repository, start: Start) -> None:
    repository.add("m", COUNTING, instances=3)
    server = start()
    answers = together(6, [lambda: server.post("m", [1.0])] * 30)
    assert sorted(answer.json["outputs"][0]["data"][0] for answer in answers)[-1] == 30
    samples = custom(server)
    assert samples.pop('answers{model="m"}') == 30
    assert sum(samples.values()) == 30
    assert sorted(samples) == [f'answers{{instance="m_0_{index}"}}' for index in range(3)]
    assert server.terminate() == 0
    assert max(float(line.split("in the end ")[1].split('"')[0]) for line in server.lines("in the end")) == 33


def test_models_read_their_metrics_while_all_of_them_execute(repository: Repository, start: Start, flag: Flag) -> None:
    code = f"""
    def execute(self, requests):
        import urllib.request
        family = pb_utils.MetricFamily("sizes", "", pb_utils.MetricFamily.HISTOGRAM)
        metric = family.Metric(labels={{"z": "1"}}, buckets=[0.1, 1.0])
        metric.observe(0.5)
        def all_are(where):
            open({str(flag(""))!r} + "/" + where + str(os.getpid()), "w").close()
            while len([name for name in os.listdir({str(flag(""))!r}) if name.startswith(where)]) < 3:
                time.sleep(0.002)
        all_are("inside")
        lines, end = [], time.monotonic() + 30
        while not any("}} 3" in line for line in lines) and time.monotonic() < end:
            with urllib.request.urlopen(open({str(flag("url"))!r}).read(), timeout=30) as answer:
                lines = [line for line in answer.read().decode().splitlines() if line.startswith("sizes")]
        pb_utils.Logger.log_info("sees {{}}".format(lines))
        all_are("done")
        return [respond(request, values(request)) for request in requests]
    """
    repository.add("m", code, instances=3)
    server = start()
    flag("url").write_text(server.metrics_url)
    assert {answer.status for answer in together(3, [lambda: server.post("m", [1.0])] * 3)} == {200}
    seen = eventually(lambda: server.lines("sees ") if len(server.lines("sees ")) == 3 else None)
    wanted = ["sizes_count{z=", "sizes_sum{z=", "le=", "+Inf"]
    assert all(all(part in line for part in wanted) for line in seen)
    assert all("} 3" in line for line in seen)
    eventually(lambda: custom(server) == {}, what="families that execute made are gone with it")


def test_a_killed_process_leaves_no_metrics_of_its_own(repository: Repository, start: Start) -> None:
    repository.add("m", COUNTING)
    repository.add("other", COUNTING.replace('"model": args["model_name"]', '"model": "m"'))
    server = start()
    for _ in range(3):
        server.post("m", [1.0])
    assert custom(server) == {
        'answers{instance="m_0_0"}': 3,
        'answers{instance="other_0_0"}': 0,
        'answers{model="m"}': 3,
    }
    server.stub("other").kill()
    server.stub("m").kill()
    eventually(lambda: custom(server).get('answers{instance="m_0_0"}') == 0, what="a new process counts from 0")
    eventually(lambda: server.post("other", [1.0]).status == 200)
    assert custom(server)['answers{instance="other_0_0"}'] == 1


def test_what_a_thread_lets_go_of_disappears_though_nobody_asks_anything(
    repository: Repository, start: Start, flag: Flag
) -> None:
    code = f"""
    def initialize(self, args):
        import threading
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        family = pb_utils.MetricFamily("brief", "", pb_utils.MetricFamily.GAUGE)
        metric = family.Metric()
        metric.set(4)
        wait_for({str(flag("go"))!r})
        del family
        try:
            metric.set(5)
        except pb_utils.TritonModelException as error:
            pb_utils.Logger.log_info(str(error))
        wait_for({str(flag("end"))!r})

    def execute(self, requests):
        return [respond(request, values(request)) for request in requests]
    """
    repository.add("m", code)
    server = start()
    eventually(lambda: custom(server) == {"brief": 4})
    flag("go").touch()
    eventually(lambda: custom(server) == {}, 5)
    eventually(lambda: server.lines("Failed to set metric value: Invalid metric operation"))
    flag("end").touch()


def test_a_process_that_a_model_forks_counts_too(repository: Repository, start: Start) -> None:
    code = """
    def initialize(self, args):
        self.family = pb_utils.MetricFamily("hits", "", pb_utils.MetricFamily.COUNTER)
        self.metric = self.family.Metric()

    def execute(self, requests):
        import multiprocessing
        child = multiprocessing.get_context("fork").Process(target=self.count)
        child.start()
        child.join()
        return [respond(request, np.array([self.metric.value()], np.float32)) for request in requests]

    def count(self):
        self.metric.increment(2)
        same = pb_utils.MetricFamily("hits", "", pb_utils.MetricFamily.COUNTER)
        same.Metric().increment(1)
    """
    repository.add("m", code)
    server = start()
    assert server.post("m", [1.0]).json["outputs"][0]["data"] == [3]
    assert server.post("m", [1.0]).json["outputs"][0]["data"] == [6]
    assert custom(server) == {"hits": 6}


def test_without_metrics_a_model_is_told(repository: Repository, start: Start) -> None:
    code = """
    def execute(self, requests):
        pb_utils.MetricFamily("hits", "", pb_utils.MetricFamily.COUNTER)
    """
    repository.add("m", code)
    server = start("--allow-metrics=false", wait=False).wait_for_line("Started HTTPService")
    eventually(lambda: server.ready("m"))
    answer = server.post("m", [1.0])
    assert answer.status == 500
    assert (
        "TritonModelException: Error when creating MetricFamily: Failed to process the request for model 'm_0_0', "
        "message: metrics not supported"
    ) in answer.error


def test_what_is_refused_in_initialize_is_why_the_model_does_not_load(repository: Repository, start: Start) -> None:
    code = """
    def initialize(self, args):
        pb_utils.MetricFamily("a-b", "", pb_utils.MetricFamily.COUNTER)
    """
    repository.add("m", code)
    server = start(wait=False)
    assert server.wait() == 1
    assert server.lines("message: Invalid metric name")
