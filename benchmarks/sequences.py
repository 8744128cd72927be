"""A load of sequences: each client sends one after the other, step by step, over a connection of its own.

The requests of a sequence are made before the clock runs, and answers are only searched for their end, so that the
client takes as little of the machine as it can. The last answer of each sequence is compared.
"""

from __future__ import annotations

import itertools
import json
import selectors
import socket
import statistics
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.load import Call, Load
from benchmarks.server import Ports

STEPS = 100
TIMEOUT_S = 30.0
_ids = itertools.count(1)  # no id is used twice: what the last run left on a server does no harm


class _Client:
    """A connection and the sequence that it is in the midst of."""

    def __init__(self, port: int, call: Call) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.times_ms: list[float] = []
        self._call = call
        self._received = b""
        self._steps: Iterator[bytes] = iter(())
        self._sent_s = 0.0

    def send(self, begin: bool) -> bool:
        """The next step; after the last one the first of another sequence, if there is to be one."""
        step = next(self._steps, None)
        if step is None and begin:
            self._steps = iter(_steps(self._call))
            step = next(self._steps)
        if step is not None:
            self._sent_s = time.perf_counter()
            self.socket.sendall(step)
        return step is not None

    def receive(self) -> bool:
        """Whether the answer is complete."""
        self._received += self.socket.recv(65536)
        head, _, body = self._received.partition(b"\r\n\r\n")
        lengths = [int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        if not lengths or len(body) < lengths[0]:
            return False
        self.times_ms.append((time.perf_counter() - self._sent_s) * 1e3)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"a step of a sequence failed: {self._received!r}")
        if len(self.times_ms) % STEPS == 0:
            self._check(body)
        self._received = b""
        return True

    def _check(self, body: bytes) -> None:
        for name, wanted in self._call.outputs.items():
            got = np.frombuffer(body[-wanted.nbytes :], wanted.dtype).reshape(wanted.shape)
            if not np.allclose(got, wanted, rtol=1e-4):
                raise RuntimeError(f"wrong {name} at the end of a sequence: {got}")


def _steps(call: Call) -> list[bytes]:
    id = next(_ids)
    return [_request(call, id, step) for step in range(STEPS)]


def _request(call: Call, id: int, step: int) -> bytes:
    inputs = [
        {
            "name": name,
            "shape": array.shape,
            "datatype": "FP32",
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in call.inputs.items()
    ]
    parameters = {
        "sequence_id": id,
        "sequence_start": step == 0,
        "sequence_end": step == STEPS - 1,
        "binary_data_output": True,
    }
    header = json.dumps({"parameters": parameters, "inputs": inputs}).encode()
    body = header + b"".join(array.tobytes() for array in call.inputs.values())
    head = (
        f"POST /v2/models/{call.model}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {len(header)}\r\n\r\n"
    )
    return head.encode() + body


def sequences(ports: Ports, call: Call, clients: int, seconds: float) -> Load:
    """``call.outputs`` is what comes of the last step. Sequences that have begun go on to their end."""
    all_clients = [_Client(ports.http, call) for _ in range(clients)]
    with selectors.DefaultSelector() as selector:
        for client in all_clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
        start = time.perf_counter()
        running = sum(client.send(begin=True) for client in all_clients)
        while running:
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise RuntimeError(f"{call.model}: no answer to {running} sequences")
            begin = time.perf_counter() - start < seconds
            for key, _ in ready:
                client = key.data
                if client.receive() and not client.send(begin):
                    running -= 1
        duration_s = time.perf_counter() - start
    for client in all_clients:
        client.socket.close()
    times_ms = [time_ms for client in all_clients for time_ms in client.times_ms]
    cuts = statistics.quantiles(times_ms, n=100)
    return Load(len(times_ms), duration_s, cuts[49], cuts[98])
