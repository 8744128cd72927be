"""A client of a scaled stack, to be run on one of its hosts.

python stack_client.py datatypes HTTP GRPC         one tensor of each datatype and one of 64 MiB, by both protocols
python stack_client.py load HTTP FILE              numbered requests to "counting" until stdin ends; a line of FILE
                                                   for each outcome
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from http.client import HTTPConnection, HTTPException

import numpy as np
import tritonclient.grpc
import tritonclient.http

THREADS = 4
TIMEOUT_S = 15.0  # no request may take longer, whatever happens
DATATYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}


def datatypes(http: str, grpc: str) -> None:
    rng = np.random.default_rng(1)
    for module, url in ((tritonclient.http, http), (tritonclient.grpc, grpc)):
        client = module.InferenceServerClient(url)
        sent = {
            name: np.array([b"", b"\xff\0x", b"y" * 1000], np.object_)
            if kind is np.object_
            else rng.integers(0, 2 if kind is np.bool_ else 100, 7).astype(kind)
            for name, kind in DATATYPES.items()
        }
        inputs = [module.InferInput(f"IN_{name}", array.shape, name) for name, array in sent.items()]
        for one, array in zip(inputs, sent.values(), strict=True):
            one.set_data_from_numpy(array)
        result = client.infer("every", inputs)
        for name, array in sent.items():
            assert np.array_equal(result.as_numpy(f"OUT_{name}"), array), name
        large = rng.random(1 << 24, dtype=np.float32)
        tensor = module.InferInput("IN", large.shape, "FP32")
        tensor.set_data_from_numpy(large)
        assert np.array_equal(client.infer("identity", [tensor]).as_numpy("OUT"), large)
    print("right")


def load(http: str, path: str) -> None:
    numbers, outcomes = itertools.count(1), []
    ended = threading.Event()

    def work() -> None:
        connection = HTTPConnection(http, timeout=TIMEOUT_S)
        while not ended.is_set():
            number, begun = next(numbers), time.monotonic()
            try:
                connection.request("POST", "/v2/models/counting/infer", _body(number))
                answer = connection.getresponse()
                data = json.loads(answer.read())
                status = answer.status
                if status == 200 and data["outputs"][0]["data"] != [2 * number]:
                    status = -1
            except (OSError, HTTPException):
                status = 0
                connection.close()
            outcomes.append((number, status, time.monotonic() - begun))
            ended.wait(0.005 if status == 200 else 0.05)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()
    with open(path, "w") as file:
        file.writelines(f"{number} {status} {took:.3f}\n" for number, status, took in outcomes)
    print("done")


def _body(number: int) -> bytes:
    return json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [number]}]}).encode()


if __name__ == "__main__":
    if sys.argv[1] == "datatypes":
        datatypes(*sys.argv[2:])
    else:
        load(*sys.argv[2:])
