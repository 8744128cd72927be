"""How a stub process ends when its model would keep it; the broker is a bare ROUTER."""

import os
import signal
import time

import psutil

from protocol.messages import Configured
from tests.stub.bare_broker import ECHO

STAY = "threading.Thread(target=lambda: time.sleep(1e6)).start()"


def test_threads_of_a_model_do_not_keep_its_process(broker, model, start):
    start()
    broker.serve(model(f"def initialize(self, args): {STAY}"))
    broker.finish()
    assert broker.receive().error == ""
    assert broker.exit_code() == 0


def test_threads_of_a_model_that_did_not_load_do_not_keep_its_process(broker, model, start):
    start()
    broker.load(model(f"def initialize(self, args): {STAY}; raise ValueError('no weights')"))
    assert broker.receive().text.startswith("ValueError: no weights")
    assert broker.exit_code() == 1


def test_threads_of_a_model_do_not_keep_the_process_that_completes_its_configuration(broker, model):
    broker.start()
    broker.load(model(source=STAY + ECHO), mode="auto_complete")
    assert isinstance(broker.receive(), Configured)
    assert broker.exit_code() == 0


def test_threads_of_a_model_do_not_keep_a_process_that_ends_by_an_exception(broker, model):
    broker.start()
    quit = f"""
    def initialize(self, args):
        {STAY}
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(5))
    """
    ready_pid = broker.forked_pid
    broker.serve(model(quit, "import signal" + ECHO))
    # Right before it blocks a signal would be noticed with the next message only, of which there is none.
    until = time.monotonic() + 10
    while psutil.Process(ready_pid).status() != psutil.STATUS_SLEEPING and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(ready_pid, signal.SIGUSR1)
    assert broker.exit_code() == 5


def test_what_a_model_wants_done_at_exit_is_done_in_the_main_thread(broker, model, start, tmp_path):
    register = f"""
    def initialize(self, args):
        import atexit
        atexit.register(self.at_exit)
        {STAY}
    def at_exit(self):
        with open({str(tmp_path / "done")!r}, "w") as file:
            file.write(threading.current_thread().name)
    """
    start()
    broker.serve(model(register))
    broker.finish()
    assert broker.receive().error == ""
    assert broker.exit_code() == 0
    assert (tmp_path / "done").read_text() == "MainThread"


def test_what_hangs_at_exit_is_left(broker, model):
    broker.start()
    broker.serve(model("def initialize(self, args): import atexit; atexit.register(time.sleep, 1e6)"))
    broker.finish()
    assert broker.receive().error == ""
    assert broker.exit_code() == 0


def test_a_line_logged_after_the_end_goes_to_stderr(broker, model, capfd):
    broker.start_by_path()
    register = """
    def initialize(self, args):
        import atexit
        atexit.register(pb_utils.Logger.log_warn, "the very last words")
    """
    broker.serve(model(register))
    broker.finish()
    assert broker.receive().error == ""
    assert broker.exit_code() == 0
    said = capfd.readouterr().err
    assert "the very last words" in said
    assert "Traceback" not in said
