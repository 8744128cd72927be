"""Models that share what there is too little of, and instances that are never given work."""

from __future__ import annotations

from tests.system.conftest import CONFIG, Background, Repository, Start, eventually

EXCLUSIVE = """
def execute(self, requests):
    os.close(os.open({path!r}, os.O_CREAT | os.O_EXCL))  # raises if another one executes
    time.sleep(0.002)
    os.unlink({path!r})
    return [respond(request, values(request)) for request in requests]
"""
NAMED = """
def initialize(self, args):
    self.name = args["model_instance_name"]

def execute(self, requests):
    assert "busy" in self.name, self.name
    return [respond(request, values(request)) for request in requests]
"""

CALLING = """
def execute(self, requests):
    return [self.answer(request) for request in requests]

def answer(self, request):
    tensor = pb_utils.get_input_tensor_by_name(request, "IN")
    called = pb_utils.InferenceRequest(model_name="called", requested_output_names=["OUT"], inputs=[tensor]).exec()
    if called.has_error():
        return pb_utils.InferenceResponse(error=called.error())
    return respond(request, called.output_tensors()[0].as_numpy())
"""


def config(*groups: str) -> str:
    return CONFIG.replace("instance_group [{ kind: KIND_CPU count: %d }]", f"instance_group [{', '.join(groups)}]")


def limited(priority: int) -> str:
    resources = 'resources [{ name: "R" count: 1 }]'
    return config(f"{{ kind: KIND_CPU count: 1 rate_limiter {{ {resources} priority: {priority} }} }}")


def test_models_with_one_resource_take_turns_by_their_priorities(repository: Repository, start: Start, flag) -> None:
    code = EXCLUSIVE.format(path=str(flag("busy")))
    repository.add("often", code, config=limited(1))
    repository.add("seldom", code, config=limited(3))
    server = start("--rate-limit=execution_count")
    clients = [Background(4, lambda model=model: server.post(model, [1.0]).status) for model in ("often", "seldom")]
    eventually(lambda: len(clients[1].results) >= 40)
    often, seldom = (server.metric("nv_inference_exec_count", model) for model in ("often", "seldom"))
    assert 2.7 < often / seldom < 3.3
    assert set(clients[0].stop()) == set(clients[1].stop()) == {200}


def test_a_model_whose_resource_can_never_suffice_does_not_load(repository: Repository, start: Start) -> None:
    repository.add("big", config=limited(1).replace("count: 1 }]", "count: 4 }]"))
    repository.add("small", config=limited(1))
    server = start("--rate-limit=execution_count", "--rate-limit-resource=R:3", "--exit-on-error=false")
    assert server.index()["big:1"]["reason"] == (
        'Invalid argument: Resource count for "R" is limited to 3 which will prevent scheduling of one or more model '
        "instances, the minimum required count is 4"
    )
    assert server.post("small", [1.0]).data == [1.0]


def test_a_model_that_calls_one_which_needs_its_resource_is_told_so_and_both_serve_on(
    repository: Repository, start: Start
) -> None:
    """Triton answers neither that request nor any that needs the resource, ever."""
    repository.add("calling", CALLING, config=limited(1))
    repository.add("called", config=limited(1))
    server = start("--rate-limit=execution_count", "--log-verbose=1")
    assert server.post("calling", [1.0]).error.endswith(
        "the call would wait for itself, since model 'called' needs resource 'R', which 'calling' holds while it "
        "waits; give them different resources, or more with --rate-limit-resource"
    )
    assert server.post("called", [1.0]).data == [1.0]
    assert server.lines('"resource"', "resource=R", "device=0", "count=1")


def test_a_model_that_calls_one_of_its_resource_is_answered_where_there_is_enough(
    repository: Repository, start: Start
) -> None:
    repository.add("calling", CALLING, config=limited(1))
    repository.add("called", config=limited(1))
    server = start("--rate-limit=execution_count", "--rate-limit-resource=R:2")
    assert server.post("calling", [1.0]).data == [1.0]


def test_passive_instances_are_loaded_and_never_execute(repository: Repository, start: Start) -> None:
    passive = '{ name: "idle" kind: KIND_CPU count: 2 passive: true }'
    repository.add("mixed", NAMED, config=config(passive, '{ name: "busy" kind: KIND_CPU count: 1 }'))
    repository.add("idle", NAMED, config=config(passive))
    server = start()
    assert (len(server.stubs("mixed")), len(server.stubs("idle"))) == (3, 2)
    assert all(server.post("mixed", [float(number)]).data == [number] for number in range(20))
    refused = server.post("idle", [1.0])
    assert (refused.status, refused.error) == (503, "all instances of model 'idle' are passive: none executes requests")
