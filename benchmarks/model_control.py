"""Loads and unloads one model over and over, on one connection."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

TURNS = 7
LOOK_S = 0.002  # between looks whether the model is gone
GONE_S = 30.0


class Cycle:
    def __init__(self, port: int, model: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._model = model

    def medians_ms(self, check: Callable[[], None]) -> tuple[float, float]:
        """Until both requests are answered, and until the model is gone as well. ``check`` raises if what was loaded
        does not answer rightly; it takes no part in the time."""
        answered_ms, gone_ms = [], []
        for _ in range(TURNS):
            load_s = self._timed(lambda: self._post("/v2/repository/models/{}/load"))
            check()
            unload_s = self._timed(lambda: self._post("/v2/repository/models/{}/unload"))
            wait_s = self._timed(self._wait_until_gone)
            answered_ms.append((load_s + unload_s) * 1e3)
            gone_ms.append((load_s + unload_s + wait_s) * 1e3)
        return statistics.median(answered_ms), statistics.median(gone_ms)

    def _timed(self, call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    def _post(self, path: str) -> bytes:
        self._connection.request("POST", path.format(self._model), b"{}")
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path.format(self._model)}: {response.status} {body!r}")
        return body

    def _wait_until_gone(self) -> None:
        end = time.monotonic() + GONE_S
        while time.monotonic() < end:
            rows = json.loads(self._post("/v2/repository/index"))
            if any(row["name"] == self._model and row.get("state") == "UNAVAILABLE" for row in rows):
                return
            time.sleep(LOOK_S)
        raise RuntimeError(f"{self._model} was not unloaded within {GONE_S:.0f} s")
