"""Responses that leave a stub by themselves: real stub processes, the broker is a bare ROUTER."""

from protocol.messages import EXECUTE, Execute
from tests.stub.bare_broker import CONFIG

DECOUPLED = {**CONFIG, "model_transaction_policy": {"decoupled": True}}

SEND = """
class TritonPythonModel:
    def execute(self, requests):
        {body}
    def answer(self, *values):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(values, np.float32))])
"""


def sending(body):
    return SEND.format(body=body)


def test_a_response_leaves_at_once_whatever_the_model_does_next(broker, model, tmp_path):
    go_on = tmp_path / "go on"
    broker.start()
    body = f"""
        sender = requests[0].get_response_sender()
        sender.send(self.answer(1))
        sender.send(self.answer(2))
        while not os.path.exists({str(go_on)!r}):
            pass
        sender.send(flags=1)"""
    broker.serve(model(source=sending(body)), config=DECOUPLED)
    request, _ = broker.request(1)
    broker.execute(request)
    for number in (1, 2):
        (response,) = broker.receive().responses
        assert (response.final, broker.values(response)) == (False, [number])
    go_on.touch()
    (response,) = broker.receive().responses
    assert (response.request, response.outputs, response.final, response.retained) == (request.id, [], True, True)
    results = broker.receive()
    assert (results.executed[0].responses, results.released) == ([], [request.id])


def test_memory_that_was_read_is_used_again_inside_execute(broker, model, tmp_path):
    broker.start()
    body = f"""
        sender = requests[0].get_response_sender()
        for number in range(40):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(1 << 18, number, np.float32))]))
            while not os.path.exists({str(tmp_path)!r} + "/" + str(number)):
                time.sleep(0.001)
        sender.send(flags=1)"""
    broker.serve(model(source=sending(body)), config=DECOUPLED)
    broker.execute(broker.request(1)[0])
    segments = set()
    for number in range(40):
        (response,) = broker.receive().responses
        assert broker.values(response)[0] == number
        segments.add(response.outputs[0].place.segment)
        broker.send(Execute(EXECUTE, [], [response.lease]))
        (tmp_path / str(number)).touch()
    assert len(segments) <= 2  # of a few MiB; all responses together have 40


def test_threads_send_at_any_time_and_each_in_its_order(broker, model):
    broker.start()
    body = """
        for request in requests:
            threading.Thread(target=self.send_all, args=[request]).start()
    def send_all(self, request):
        sender = request.get_response_sender()
        for number in range(50):
            sender.send(self.answer(number))
        sender.send(flags=1)"""
    broker.serve(model(source=sending(body)), config=DECOUPLED)
    requests = [broker.request(1)[0] for _ in range(5)]
    broker.execute(*requests)
    found = {request.id: [] for request in requests}
    finals, released = 0, []
    while finals < 5 or len(released) < 5:
        results = broker.receive()
        released += results.released
        for response in results.responses:
            finals += response.final
            if response.outputs:
                found[response.request] += broker.values(response)
    assert found == {request.id: list(range(50)) for request in requests}
    assert sorted(released) == sorted(found)


def test_inline_outputs_go_with_the_message_of_their_response(broker, model):
    broker.start()
    body = """
        sender = requests[0].get_response_sender()
        for number in range(3):
            sender.send(self.answer(number))
        sender.send(self.answer(3, 3), 1)"""
    broker.serve(model(source=sending(body)), config=DECOUPLED, shared=False)
    request, frames = broker.request(1, inline=True)
    broker.execute(request, frames=frames)
    for number in range(3):
        assert broker.values(broker.receive().responses[0]) == [number]
    assert broker.values(broker.receive().responses[0]) == [3, 3]


def test_a_forked_process_cannot_send(broker, model):
    broker.start()
    body = """
        sender = requests[0].get_response_sender()
        pid = os.fork()
        if pid == 0:
            try:
                sender.send(self.answer(1), 1)
            except pb_utils.TritonModelException:
                os._exit(6)
            os._exit(7)
        status = os.waitpid(pid, 0)[1]
        sender.send(self.answer(status), 1)"""
    broker.serve(model(source=sending(body)), config=DECOUPLED)
    broker.execute(broker.request(1)[0])
    assert broker.values(broker.receive().responses[0]) == [6 << 8]
