"""Loading and unloading by request (the repository ``managed``): answers, the index, ensembles, overrides."""

from __future__ import annotations

import base64
import json
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tests.conformance.held_cases import rows
from tests.conformance.requests import Case, Http, Rpc, case, http, output
from tests.conformance.scheduling_models import SOURCE

INDEX = http("POST", "/v2/repository/index")
INPUT = {"name": "X", "data_type": "TYPE_INT32", "dims": [1]}
OUTPUT = {"name": "SEEN", "data_type": "TYPE_STRING", "dims": [1]}
CONFIG = {"backend": "python", "max_batch_size": 2, "input": [INPUT], "output": [OUTPUT]}


def managed(name: str, *steps: Any) -> Case:
    return case(f"managed: {name}", *steps, repository="managed")


def load(model: str, **parameters: Any) -> Http:
    body = json.dumps({"parameters": parameters}).encode() if parameters else b""
    return http("POST", f"/v2/repository/models/{model}/load", body)


def unload(model: str, **parameters: Any) -> Http:
    body = json.dumps({"parameters": parameters}).encode() if parameters else b""
    return http("POST", f"/v2/repository/models/{model}/unload", body)


def metadata(model: str) -> Http:
    return http("GET", f"/v2/models/{model}")


def config(**changes: Any) -> str:
    return json.dumps({**CONFIG, **changes})


def file(content: bytes) -> str:
    return base64.b64encode(content).decode()


_PROBE = file(SOURCE.read_bytes())

CASES = [
    managed("the index at the start", INDEX),
    managed("not loaded yet", rows("one", 0), metadata("one"), http("GET", "/v2/models/one/stats")),
    managed("load and unload", load("one"), INDEX, rows("one", 0), load("one"), unload("one"), INDEX, rows("one", 0)),
    managed("its version", http("POST", "/v2/models/one/versions/1/infer", b"{}"), metadata("one")),
    managed("unloaded twice", unload("one"), unload("two"), unload("nobody"), INDEX),
    managed("a model that is not there", load("nobody"), INDEX),
    managed("a model that raises", load("raising"), INDEX, rows("raising", 0), load("raising")),
    managed("a configuration that is refused", load("refused"), INDEX, rows("refused", 0)),
    managed("a configuration that cannot be read", load("unread"), INDEX),
    managed(
        "names",
        Rpc("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="")),
        Rpc("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="..")),
        Rpc("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="a/b")),
        load(".."),
    ),
    managed("an ensemble loads its models", load("pair"), INDEX, rows("pair", 0, outputs=[output("OUT0")])),
    managed(
        "an ensemble goes and comes with a model",
        unload("two"),
        INDEX,
        rows("pair", 0, outputs=[output("OUT0")]),
        load("two"),
        INDEX,
    ),
    managed("an ensemble leaves its models", unload("pair"), INDEX),
    managed("an ensemble takes its models along", load("pair"), unload("pair", unload_dependents=True), INDEX),
    managed(
        "a model asked for by name stays", load("one"), load("pair"), unload("pair", unload_dependents=True), INDEX
    ),
    managed(
        "statistics of an ensemble",
        load("pair"),
        *(rows("pair", 0, count, outputs=[output("OUT0")]) for count in (1, 1, 3)),
        *(http("GET", f"/v2/models/{model}/stats") for model in ("pair", "one", "two")),
        rows("pair", 0, 5),
        unload("pair"),
        *(http("GET", f"/v2/models/{model}/stats") for model in ("pair", "one", "two")),
    ),
    managed("an ensemble with a model that raises", load("lame"), INDEX),
    managed(
        "another configuration",
        load("one", config=config()),
        metadata("one"),
        rows("one", 0, 3),
        load("one"),
        rows("one", 0, 3),
        unload("one"),
    ),
    managed(
        "configurations that do not fit",
        load("one", config="{"),
        load("one", config=config(nonsense=1)),
        load("one", config=config(max_batch_size=-1)),
        load("one", config=config(name="other")),
        load("one", config=7),
        INDEX,
    ),
    managed(
        "files",
        load("brought", **{"config": config(), "file:7/model.py": _PROBE}),
        metadata("brought"),
        rows("brought", 0),
        load("brought"),
        unload("brought"),
    ),
    managed(
        "files of a model of the repository",
        load("two", **{"config": config(), "file:3/model.py": _PROBE}),
        metadata("two"),
        load("two"),
        metadata("two"),
        unload("two"),
    ),
    managed(
        "files outside",
        load("one", **{"config": config(), "file:../1/model.py": _PROBE}),
        load("one", **{"config": config(), "file:1/../../model.py": _PROBE}),
        load("one", **{"config": config(), "file:/model.py": _PROBE}),
    ),
    managed(
        "other instances",
        *(load("one", config=config(instance_group=[{"count": count}])) for count in (1, 2, 3, 1)),
        INDEX,
        load("one", config=config(instance_group=[{"count": 1, "kind": "KIND_CPU", "gpus": [0]}])),
        INDEX,
        load("one", config=config(instance_group=[{"count": 1, "kind": "KIND_GPU", "gpus": [77]}])),
        INDEX,
        rows("one", 0),
        load("one", config=config(instance_group=[{"count": 2}])),
        INDEX,
        unload("one"),
    ),
    managed(
        "versions by another policy",
        load("one", config=config(version_policy={"all": {}})),
        load("one", config=config(version_policy={"specific": {"versions": [9]}})),
        INDEX,
        load("one", config=config(version_policy={"specific": {"versions": [1]}})),
        INDEX,
        unload("one"),
    ),
    managed(
        "an agent that there is not",
        load("one", config=config(model_repository_agents={"agents": [{"name": "nobody"}]})),
        INDEX,
    ),
    managed("an unknown parameter", load("one", nonsense="x"), unload("one", nonsense="x")),
]
