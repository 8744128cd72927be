"""``GET /metrics`` for Prometheus, ``GET /health/live`` and ``/health/ready`` for an orchestrator, in a thread of its
own: it answers while the event loop is draining or stuck.

The thread only reads. A scraper has one short connection per scrape; a few at a time are served.
"""

from __future__ import annotations

import selectors
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from metrics.exposition import CONTENT_TYPE, render
from metrics.host import HostSample, HostSampler
from metrics.recorder import Recorder

_MAX_CONNECTIONS = 16  # the port is open to the network: a flood must not become a flood of threads
_CLIENT_TIMEOUT_S = 5.0


class Health(NamedTuple):
    """What a service says of itself; called in the threads of those who ask."""

    live: Callable[[], bool]
    ready: Callable[[], bool]


HEALTHY = Health(live=lambda: True, ready=lambda: True)


class MetricsEndpoint:
    """Owns the listening socket and its thread from ``start`` to ``close``."""

    def __init__(
        self,
        recorder: Recorder,
        address: str,
        port: int,
        *,
        pinned_pool_bytes: int = 0,
        cpu_metrics: bool = True,
        interval_s: float = 2.0,
        health: Health = HEALTHY,
    ) -> None:
        """Port 0 takes a free one. ``interval_s`` is the least age at which the CPU gauges are sampled again."""
        self._health = health
        self._recorder = recorder
        self._address = address
        self._port = port
        self._pinned_pool_bytes = pinned_pool_bytes
        self._host = HostSampler(interval_s) if cpu_metrics else None
        self._lock = threading.Lock()
        self._server: _Server | None = None

    def start(self) -> None:
        """Listen and serve. Raises OSError if the address is taken or not ours."""
        self._server = _Server(self._address, self._port, self._exposition, self._health)
        self._server.start()

    def close(self) -> None:
        """Stop listening; a scrape in progress is cut off at the end of the process."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    @property
    def port(self) -> int:
        """The port that is listened on, once started."""
        assert self._server is not None
        return int(self._server.server_address[1])

    def _exposition(self) -> bytes:
        with self._lock:  # two scrapes at once would halve the sampler's interval between them
            host = self._host.sample() if self._host else HostSample()
        recorder = self._recorder
        customs = recorder.custom or ()
        pressure = None if recorder.stub_host is not None else recorder.pressure  # requests wait elsewhere
        text = render(
            recorder,
            host,
            self._pinned_pool_bytes,
            customs,
            pressure,
            recorder.cache,
            recorder.gateway,
            recorder.stub_host,
            recorder.broker,
        )
        return text.encode()


class _Server(socketserver.ThreadingTCPServer):
    """Not http.server's: that one looks its own host name up in the DNS before it listens."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128
    timeout = 0  # the selector has waited already

    def __init__(self, address: str, port: int, exposition: Callable[[], bytes], health: Health) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.exposition = exposition
        self.health = {"/health/live": health.live, "/health/ready": health.ready}
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._waker, self._wake = socket.socketpair()
        super().__init__((address, port), _Handler)
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._waker.close()
        self._thread.join()
        self._wake.close()
        self.server_close()

    def _serve(self) -> None:
        # serve_forever() would wake twice a second to see whether it is to stop, and take as long to notice.
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while all(key.fileobj is not self._wake for key, _ in selector.select()):
                self.handle_request()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away or took too long is no event; anything else is a fault of ours."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _CLIENT_TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        good = self.server.health.get(path)
        if good is not None:
            self._answer(HTTPStatus.OK if good() else HTTPStatus.SERVICE_UNAVAILABLE, CONTENT_TYPE, b"")
            return
        # Any other path is an empty 200, as in Triton.
        body = self.server.exposition() if path in ("/metrics", "/metrics/") else b""
        self._answer(HTTPStatus.OK, CONTENT_TYPE, body)

    def _not_allowed(self) -> None:
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "application/json", b'{"error":"Method Not Allowed"}')

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _not_allowed

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")  # an idle scraper would hold one of the few threads
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged."""
