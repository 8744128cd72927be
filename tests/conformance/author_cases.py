"""What an author's code may rely on: probes that a model tries on itself, as it runs in the server.

The probes are the tables in the files of the model ``author``; its answer is JSON of what came of one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tests.conformance.requests import Http, case, infer, tensor

MODELS = Path(__file__).parents[1] / "models"


def table(repository: str, model: str, group: str) -> ModuleType:
    """A file of probes beside a model's own; it needs nothing of the server but what it is given."""
    path = MODELS / repository / model / "1" / f"{group}.py"
    spec = importlib.util.spec_from_file_location(f"{repository}_{model}_{group}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def probe(model: str, name: str) -> Http:
    return infer(model, [tensor("PROBE", "BYTES", [1], [name])])


def names(repository: str, model: str, *groups: str) -> Iterator[str]:
    for group in groups:
        for name in table(repository, model, group).PROBES:
            yield f"{group}: {name}"


CASES = [
    *(
        case(f"author: {name}", probe("author", name))
        for name in names("conformance", "author", "arguments", "configs", "lookups", "calls")
    ),
    *(
        case(f"author: {name}", probe("author", name), repository="control")
        for name in names("control", "author", "control", "metrics")
    ),
]
