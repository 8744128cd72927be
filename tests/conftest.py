"""For all tests: hypothesis judges what is computed, not how fast a busy machine does it; a test's log is its own; an
object store on this host. And what would cost each of the many processes and collections of garbage too much."""

import gc
import logging
import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Otherwise numpy starts a thread for each core, which spins: a third of what a process takes to start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """The tests themselves stay, all six thousand: what collects garbage does not look through them each time."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _log_of_its_own() -> Iterator[None]:
    """A server in the process of the tests configures structlog for good: the next test starts without."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    """Host and port of an S3 server, which takes any keys until it is told otherwise."""
    from moto.server import ThreadedMotoServer  # slow to import

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()
