"""Outputs of requests whose asker does not share memory with the stub: real stubs, frames on a real bus."""

import pytest

from protocol.messages import EXECUTE, FINISH, Batch, Execute, Finish, Handle, Results, Starved
from tests.stub.bare_broker import CONFIG, write_model

DECOUPLED = {**CONFIG, "model_transaction_policy": {"decoupled": True}}
STREAMS = """
def execute(self, requests):
    for request in requests:
        sender, array = request.get_response_sender(), pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        sender.send(self.answer(array))
        sender.send(self.answer(array + 1))
        threading.Thread(target=self.later, args=(sender, array + 2)).start()
def later(self, sender, array):
    sender.send(self.answer(array))
    sender.send(self.answer(array + 1), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture
def started(broker):
    broker.start()
    return broker


def execute(broker, inline, *requests):
    broker.send(Execute(EXECUTE, [Batch(request.id, [request]) for request in requests], [], [], inline))


def place(response):
    (tensor,) = response.outputs
    return tensor.place


def test_of_two_requests_only_the_one_that_is_asked_to_has_its_outputs_in_frames(started, tmp_path):
    started.serve(write_model(tmp_path / "models"))
    (first, _), (second, _) = started.request(1.0, 2.0), started.request(3.0)
    execute(started, [second.id], first, second)
    responses, frames = {}, {}
    while len(responses) < 2:
        results = started.receive()
        for executed in results.executed:
            responses.update((each.request, each) for each in executed.responses)
        frames.update({each.request: started.frames for done in results.executed for each in done.responses})
    assert isinstance(place(responses[first.id]), Handle) and responses[first.id].lease
    assert responses[second.id].lease == 0
    started.frames = frames[second.id]
    assert started.values(responses[second.id]) == [3.0]
    assert started.values(responses[first.id]) == [1.0, 2.0]


def test_it_is_for_that_request_alone(started, tmp_path):
    started.serve(write_model(tmp_path / "models"))
    request, _ = started.request(1.0)
    execute(started, [request.id], request)
    (executed,) = started.receive().executed
    assert place(executed.responses[0]) == 0
    assert isinstance(place(started.infer(2.0)), Handle)


def test_every_response_that_is_sent_is_in_frames_the_late_ones_too(started, tmp_path):
    started.serve(write_model(tmp_path / "models", STREAMS), config=DECOUPLED)
    request, _ = started.request(1.0)
    execute(started, [request.id], request)
    values, final = [], False
    while not final:
        results = started.receive()
        assert isinstance(results, Results)
        for response in results.responses:
            assert response.lease == 0 and isinstance(place(response), int)
            values += started.values(response)
            final = response.final
    assert values == [1.0, 2.0, 3.0, 4.0]
    started.send(Finish(FINISH))


def test_a_rescheduled_request_is_asked_for_anew(started, tmp_path):
    again = """
def execute(self, requests):
    (request,) = requests
    self.runs = getattr(self, "runs", 0) + 1
    if self.runs == 1:
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return [None]
    return [self.answer(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())]
"""
    config = {**CONFIG, "sequence_batching": {"iterative_sequence": True}}
    started.serve(write_model(tmp_path / "models", again), config=config)
    request, _ = started.request(1.0)
    for run in range(2):
        started.send(Execute(EXECUTE, [Batch(run + 1, [request], [0])], [], [], [request.id]))
        (executed,) = started.receive().executed
        assert executed.rescheduled == ([] if run else [request.id])
    assert (place(executed.responses[0]), started.values(executed.responses[0])) == (0, [1.0])


MANY = """
def execute(self, requests):
    sender = requests[0].get_response_sender()
    for number in range(20):
        sender.send(self.answer(np.full(1000, number, np.float32)))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.parametrize("shared", [True, False])
def test_a_stream_in_frames_waits_for_its_reader_too(started, tmp_path, shared):
    """Whether the stub has shared memory, and the client not, or neither."""
    started.serve(write_model(tmp_path / "models", MANY), config=DECOUPLED, shared=shared, max_unread=10_000)
    request, frames = started.request(1.0, inline=not shared)
    started.send(Execute(EXECUTE, [Batch(request.id, [request])], [], [], [request.id]), frames)
    leases, numbers, longest = [], [], 0
    while len(numbers) < 20:
        message = started.receive()
        if isinstance(message, Starved):
            longest = max(longest, len(leases))
            assert leases, "it waits although all has been read"
            started.send(Execute(EXECUTE, [], leases))
            leases = []
            continue
        (response,) = message.responses
        assert isinstance(place(response), int) and response.lease
        numbers.append(started.values(response)[0])
        leases.append(response.lease)
    assert numbers == list(range(20))
    assert longest == 3  # of 4000 bytes each: with the third there are too many
