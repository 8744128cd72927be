"""Real stub processes with real models over real ZeroMQ and shared memory; the broker is a bare ROUTER."""

import json
import os
import resource
import signal
import time

import pytest

from protocol.messages import EXECUTE, Configured, Execute, Failed, Goodbye, Handle
from tests.stub.bare_broker import DEADLINE_S, ECHO, NONCE


def answering(expression: str) -> str:
    """A method for ECHO's class that answers with a float computed by the model."""
    return f"""
    def answer(self, array):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([{expression}], np.float32))])
    """


def wait_until(condition) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "too late"
        time.sleep(0.002)


# --- loading ----------------------------------------------------------------------------------------------------


def test_ready_proves_that_memory_is_shared(broker, model):
    broker.start()
    ready = broker.serve(model())
    assert ready.nonce == NONCE
    assert broker.segment_of(ready).status == 0


def test_a_model_that_does_not_load_says_why_and_exits(broker, model):
    broker.start()
    broker.load(model("def initialize(self, args): raise ValueError('no weights')"))
    failed = broker.receive()
    assert isinstance(failed, Failed)
    assert failed.text.startswith("ValueError: no weights")
    assert broker.exit_code() == 1


def test_a_model_completes_its_configuration_in_a_process_that_exits(broker, model):
    broker.start()
    complete = """
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        return config
    def initialize(self, args):
        raise ValueError("must not be called")
    """
    broker.load(model(complete), mode="auto_complete")
    configured = broker.receive()
    assert isinstance(configured, Configured)
    assert json.loads(configured.config)["max_batch_size"] == 8
    assert broker.exit_code() == 0


def test_a_model_whose_configuration_cannot_be_completed_says_why(broker, model):
    broker.start()
    broker.load(model("@staticmethod\ndef auto_complete_config(config): return 5"), mode="auto_complete")
    assert "must return a valid pb.ModelConfig object" in broker.receive().text
    assert broker.exit_code() == 1


def test_a_model_may_end_the_process_while_loading(broker, model):
    broker.start()
    broker.load(model("def initialize(self, args): os._exit(3)"))
    assert broker.exit_code() == 3


# --- executing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inline", [False, True])
def test_inputs_come_by_handle_or_inline(broker, model, inline):
    broker.start()
    broker.serve(model())
    for values in ([1, 2, 3], [], [4]):
        assert broker.values(broker.infer(*values, inline=inline)) == values


def test_outputs_go_by_handle_on_lease(broker, model):
    broker.start()
    broker.serve(model())
    first, second = broker.infer(1), broker.infer(2)
    assert isinstance(first.outputs[0].place, Handle)
    assert 0 < first.lease < second.lease
    assert broker.values(first) == [1]


def test_released_memory_is_used_again(broker, model):
    broker.start()
    broker.serve(model(answering("1").replace("np.array([1]", "np.ones([10000]")))
    places, lease = set(), []
    for _ in range(100):
        request, _ = broker.request(1)
        broker.execute(request, released=lease)
        (response,) = broker.receive().executed[0].responses
        places.add(response.outputs[0].place)
        lease = [response.lease]
    assert len(places) <= 2


def threads_behind(broker, executions: int) -> list[float]:
    """How many threads the stub has in each of so many executions that wait for each other."""
    for number in range(executions):
        broker.execute(broker.request(number)[0])
    threads = []
    while len(threads) < executions:
        threads += [broker.values(one.responses[0])[0] for one in broker.receive().executed]
    return threads


THREADS = "len(os.listdir('/proc/self/task'))"


def test_what_waits_behind_long_executions_is_read_by_another_thread(broker, model):
    broker.start()
    broker.serve(model(answering(f"[time.sleep(0.002), {THREADS}][1]")))
    (first,) = threads_behind(broker, 1)
    wait_until(lambda: threads_behind(broker, 40)[-1] == first + 1)
    assert threads_behind(broker, 1) == [first + 1]  # the main thread was idle, and is woken


def test_what_waits_behind_short_executions_is_read_by_the_main_thread(broker, model):
    broker.start()
    broker.serve(model(answering(THREADS)))
    assert len(set(threads_behind(broker, 200))) == 1


def test_an_empty_output_needs_no_memory(broker, model):
    broker.start()
    broker.serve(model())
    response = broker.infer()
    assert response.lease == 0
    assert broker.values(response) == []


def test_without_shared_memory_all_travels_inline(broker, model):
    broker.start()
    ready = broker.serve(model(), shared=False)
    assert ready.nonce == b""
    assert ready.segment == ""
    response = broker.infer(1, 2, inline=True)
    assert response.outputs[0].place == 0
    assert response.lease == 0
    assert broker.values(response) == [1, 2]


def test_when_shared_memory_is_full_outputs_travel_inline(broker, model):
    pid = broker.start().pid
    broker.serve(model(answering("1").replace("np.array([1]", "np.ones([1_000_000]")))
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (2 << 20, resource.RLIM_INFINITY))
    response = broker.infer(1)
    assert response.outputs[0].place == 0
    assert broker.values(response) == [1.0] * 1_000_000
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert isinstance(broker.infer(1).outputs[0].place, Handle)


def test_inline_outputs_of_one_message_have_a_frame_each(broker, model):
    broker.start()
    broker.serve(model(), shared=False)
    requests, frames = zip(*[broker.request(value, inline=True) for value in range(5)], strict=True)
    for index, request in enumerate(requests):
        request.inputs[0] = request.inputs[0]._replace(place=index)
    broker.execute(*requests, frames=[data for (data,) in frames])
    answered = []
    while len(answered) < 5:
        for executed in broker.receive().executed:
            answered.append(broker.values(executed.responses[0]))
    assert answered == [[0], [1], [2], [3], [4]]


def test_the_status_word_names_the_batch_inside_execute(broker, model, tmp_path):
    go_on = tmp_path / "go on"
    wait = f"""
    def answer(self, array):
        while not os.path.exists({str(go_on)!r}):
            time.sleep(0.001)
        return pb_utils.InferenceResponse([])
    """
    broker.start()
    status = broker.segment_of(broker.serve(model(wait)))
    request, _ = broker.request(1)
    broker.execute(request)
    wait_until(lambda: status.status == request.id)
    go_on.touch()
    broker.receive()
    assert status.status == 0


def test_the_status_word_of_the_dead_names_the_batch_that_killed_it(broker, model):
    broker.start()
    die = "def answer(self, array): return os._exit(7) if array[0] == 13 else pb_utils.InferenceResponse([])"
    status = broker.segment_of(broker.serve(model(die)))
    requests = [broker.request(value)[0] for value in (1, 13, 2)]
    broker.execute(*requests)
    assert broker.exit_code() == 7
    assert status.status == requests[1].id


def test_requests_are_answered_in_order(broker, model):
    broker.start()
    broker.serve(model())
    requests = [broker.request(value)[0] for value in range(100)]
    broker.execute(*requests[:60])
    broker.execute(*requests[60:])
    answered = []
    while len(answered) < 100:
        answered += [executed.batch for executed in broker.receive().executed]
    assert answered == [request.id for request in requests]


def test_slow_batches_are_answered_one_by_one(broker, model):
    broker.start()
    broker.serve(model("def answer(self, array): time.sleep(0.02); return pb_utils.InferenceResponse([])"))
    broker.execute(*[broker.request(value)[0] for value in range(3)])
    assert [len(broker.receive().executed) for _ in range(3)] == [1, 1, 1]


def test_an_input_that_is_not_where_it_should_be_fails_its_request_alone(broker, model):
    broker.start()
    broker.serve(model())
    request, _ = broker.request(1)
    for place in (request.inputs[0].place._replace(offset=1 << 40), 5, Handle("../x", 0, 4)):
        request.inputs[0] = request.inputs[0]._replace(place=place)
        broker.execute(request)
        _, text = broker.receive().executed[0].responses[0].error
        assert "input 'IN' is not where it should be" in text
        assert "/" not in text.partition("At:")[0]
        assert "At:" not in text
    assert broker.values(broker.infer(1)) == [1]


# --- inputs that the model keeps --------------------------------------------------------------------------------

KEEP = """
    kept = None
    def answer(self, array):
        self.kept = array if array[0] > 0 else None
        if array[0] == 2:
            threading.Timer(0.1, self.drop).start()
        return pb_utils.InferenceResponse([])
    def drop(self):
        self.kept = None
"""


def test_a_kept_input_is_released_with_the_message_after_it_has_gone(broker, model):
    broker.start()
    broker.serve(model(KEEP))
    kept = broker.infer(1)
    assert kept.retained
    request, _ = broker.request(0)
    broker.execute(request)
    results = broker.receive()
    assert not results.executed[0].responses[0].retained
    assert results.released == [kept.request]


def test_a_kept_input_is_released_while_nothing_else_happens(broker, model):
    broker.start()
    broker.serve(model(KEEP))
    kept = broker.infer(2)
    assert kept.retained
    results = broker.receive()
    assert results.executed == []
    assert results.released == [kept.request]


# --- the end ----------------------------------------------------------------------------------------------------


def test_finish_finalizes_and_leaves_nothing(broker, model, capfd):
    broker.start_by_path()
    broker.serve(model("def finalize(self): print('finalized')"))
    broker.infer(1)
    before = set(os.listdir(broker.shm_directory))
    broker.finish()
    goodbye = broker.receive()
    assert isinstance(goodbye, Goodbye)
    assert goodbye.error == ""
    assert broker.exit_code() == 0
    assert "finalized" in capfd.readouterr().out
    assert len(before) == 2
    assert len(os.listdir(broker.shm_directory)) == 1  # the gateway's


def test_an_error_in_finalize_is_told(broker, model):
    broker.start()
    broker.serve(model("def finalize(self): undefined_variable"))
    broker.finish()
    assert "name 'undefined_variable' is not defined" in broker.receive().error
    assert broker.exit_code() == 0


@pytest.mark.parametrize("header", [b"", b"\xc1", b"\x91\xa1?", b"\x93\xa1E\x90\x90\x00", b"\x91\xa1F"])
def test_a_broker_that_talks_nonsense_is_left(broker, capfd, header):
    """The last header is a Finish, which is no answer to Hello."""
    broker.start_by_path()
    broker.send_bytes(header)
    assert broker.exit_code() == 2
    assert f"tensorbus stub {broker.key}: the broker sent a" in capfd.readouterr().err


def test_the_release_of_a_lease_that_is_not_held_is_nonsense_too(broker, model, capfd):
    broker.start_by_path()
    broker.serve(model())
    broker.send(Execute(EXECUTE, [], [5]))
    assert broker.exit_code() == 2
    assert "release of lease 5" in capfd.readouterr().err


def test_sys_exit_in_execute_is_an_error_and_no_return(broker, model):
    broker.start()
    broker.serve(model(answering("1 if array[0] else sys.exit(0)")))
    _, text = broker.infer(0).error
    assert "SystemExit: 0" in text
    assert broker.values(broker.infer(1)) == [1]


# --- what the model's process is like ---------------------------------------------------------------------------


def test_the_process_is_the_models_own(broker, model, start, tmp_path):
    tell = f"""
    def initialize(self, args):
        import json
        main = sys.modules["__main__"]
        told = {{
            "argv": sys.argv,
            "cwd": os.getcwd(),
            "main": [name for name in vars(main) if not name.startswith("__")],
            "file": getattr(main, "__file__", None),
            "spec": main.__spec__,
            "threads": [thread.name for thread in threading.enumerate()],
            "main_thread": [IMPORTED, threading.current_thread() is threading.main_thread()],
            "executable": os.path.exists(sys.executable),
        }}
        with open({str(tmp_path / "told")!r}, "w") as file:
            json.dump(told, file)

    def answer(self, array):
        here = threading.current_thread() is threading.main_thread()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([here], np.float32))])

    def finalize(self):
        pb_utils.Logger.log_info(str(threading.current_thread() is threading.main_thread()))
    """
    start()
    broker.serve(model(tell, "IMPORTED = threading.current_thread() is threading.main_thread()\n" + ECHO))
    assert json.loads((tmp_path / "told").read_text()) == {
        "argv": [""],
        "cwd": os.getcwd(),
        "main": [],
        "file": None,
        "spec": None,
        "threads": ["MainThread"],
        "main_thread": [True, True],
        "executable": True,
    }
    assert broker.values(broker.infer(1)) == [1]
    broker.finish()
    broker.receive()
    assert [line.text for line in broker.logs] == ["True"]


@pytest.fixture
def printed(broker):
    """The end to read from of what forked stubs write."""
    ours, broker.output = os.pipe()
    yield ours
    os.close(ours)
    os.close(broker.output)
    broker.output = 2


def test_what_the_model_prints_is_out_when_the_line_is_complete(broker, model, printed):
    broker.start()
    code = "print('out'); print('err', file=sys.stderr); os.write(1, b'raw'); print('caf\\xe9')"
    broker.serve(model("def initialize(self, args): " + code))
    assert os.read(printed, 1000) == b"out\nerr\nrawcaf\xc3\xa9\n"


def test_a_crash_tells_where_it_was(broker, model, printed):
    broker.start()
    broker.serve(model("def answer(self, array): import ctypes; ctypes.string_at(0)"))
    broker.execute(broker.request(1)[0])
    assert broker.exit_code() == -signal.SIGSEGV
    said = os.read(printed, 10000).decode()
    assert "Segmentation fault" in said
    assert "model.py" in said


def test_sigint_and_sigterm_do_nothing(broker, model, start):
    pid = start().pid
    broker.serve(model())
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
        assert broker.values(broker.infer(number)) == [number]


PROCESSES = """
import multiprocessing, subprocess

def double(x):
    return 2 * x

def wait(queue):
    queue.put("started")
    time.sleep(1000)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_model_may_use_multiprocessing(broker, model, start, method):
    start()
    use = f"""
    def answer(self, array):
        with multiprocessing.get_context({method!r}).Pool(2) as pool:
            doubled = pool.map(double, [float(x) for x in array])
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(doubled, np.float32))])
    """
    broker.serve(model(use, PROCESSES + ECHO))
    assert broker.values(broker.infer(1, 2, 3)) == [2, 4, 6]


def test_processes_of_a_model_can_be_terminated(broker, model, start):
    start()
    terminate = """
    def answer(self, array):
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        process = context.Process(target=wait, args=(queue,))
        process.start()
        queue.get()
        process.terminate()
        process.join()
        program = subprocess.Popen(["sleep", "1000"])
        program.terminate()
        codes = np.array([process.exitcode, program.wait()], np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", codes)])
    """
    broker.serve(model(terminate, PROCESSES + ECHO))
    assert broker.values(broker.infer(1)) == [-signal.SIGTERM, -signal.SIGTERM]


def test_a_process_of_a_model_can_be_terminated_before_its_first_line(broker, model):
    broker.start()
    terminate = """
    def answer(self, array):
        left = 0
        for _ in range(200):
            process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
            process.start()
            process.terminate()
            process.join(5)
            if process.exitcode is None:
                process.kill()
                left += 1
                break
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([left], np.float32))])
    """
    broker.serve(model(terminate, PROCESSES + ECHO))
    assert broker.values(broker.infer(1)) == [0]


def test_a_process_that_the_model_forks_never_speaks_for_the_stub(broker, model):
    broker.start()
    fork = """
    def answer(self, array):
        pid = os.fork()
        if pid == 0:
            pb_utils.Logger.log_error("from the child")
            raise ValueError("in the child")
        status = os.waitpid(pid, 0)[1]
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([status], np.float32))])
    """
    broker.serve(model(fork))
    assert broker.values(broker.infer(1)) == [1 << 8]
    assert broker.values(broker.infer(1)) == [1 << 8]
    assert broker.logs == []


def test_forked_stubs_draw_different_random_numbers(broker, model):
    path = model(answering("np.random.randint(1 << 24)"))
    drawn = set()
    for _ in range(2):
        broker.start()
        broker.serve(path)
        drawn.add(broker.values(broker.infer(1))[0])
        broker.end_stub()
    assert len(drawn) == 2


def test_forked_stubs_can_use_the_threads_of_numpys_linear_algebra(broker, model, monkeypatch):
    """They do not survive a fork; the library starts them again."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4")
    broker.start()
    broker.serve(model(answering("(np.ones((500, 500)) @ np.ones((500, 500))).sum() / 500**2")))
    assert broker.values(broker.infer(1)) == [500]


# --- log lines --------------------------------------------------------------------------------------------------


def test_log_lines_come_at_once_from_every_place(broker, model):
    log = """
    def initialize(self, args):
        pb_utils.Logger.log_info("initialize")
    def answer(self, array):
        pb_utils.Logger.log_warn("execute")
        return pb_utils.InferenceResponse([])
    def finalize(self):
        pb_utils.Logger.log_error("finalize")
    """
    broker.start()
    broker.serve(model(log))
    broker.infer(1)
    broker.finish()
    broker.receive()
    assert [(line.level, line.file, line.text) for line in broker.logs] == [
        ("I", "model.py", "initialize"),
        ("W", "model.py", "execute"),
        ("E", "model.py", "finalize"),
    ]


def test_a_thread_of_the_model_logs_while_the_stub_waits_and_while_it_executes(broker, model, tmp_path):
    log = f"""
    def initialize(self, args):
        threading.Thread(target=self.log_now_and_then, daemon=True).start()
    def log_now_and_then(self):
        for name in ("waiting", "executing", "waiting again"):
            while not os.path.exists({str(tmp_path)!r} + "/" + name):
                time.sleep(0.001)
            pb_utils.Logger.log_info(name)
    def answer(self, array):
        while not os.path.exists({str(tmp_path)!r} + "/done"):
            time.sleep(0.001)
        return pb_utils.InferenceResponse([])
    """
    broker.start()
    broker.serve(model(log))
    (tmp_path / "waiting").touch()
    assert broker.wait_for_log().text == "waiting"
    broker.execute(broker.request(1)[0])
    (tmp_path / "executing").touch()
    assert broker.wait_for_log().text == "executing"
    (tmp_path / "done").touch()
    broker.receive()
    (tmp_path / "waiting again").touch()
    assert broker.wait_for_log().text == "waiting again"


def test_messages_arrive_while_a_thread_of_the_model_logs_without_pause(broker, model):
    log = """
    def initialize(self, args):
        threading.Thread(target=self.log, daemon=True).start()
    def log(self):
        while True:
            pb_utils.Logger.log_info("again")
            time.sleep(0)
    """
    broker.start()
    broker.serve(model(log))
    for number in range(200):
        assert broker.values(broker.infer(number)) == [number]
    assert broker.logs
