"""The corpus: every case that ours and the real Triton must answer alike. Names are unique; they key the record."""

from __future__ import annotations

from tests.conformance import (
    author_cases,
    control_cases,
    ensemble_cases,
    generate_cases,
    grpc_cases,
    held_cases,
    http_cases,
    http_error_cases,
    model_cases,
    scheduling_cases,
    sender_cases,
    server_cases,
)

CASES = [
    *http_cases.CASES,
    *http_error_cases.CASES,
    *generate_cases.CASES,
    *grpc_cases.CASES,
    *model_cases.CASES,
    *author_cases.CASES,
    *sender_cases.CASES,
    *server_cases.CASES,
    *ensemble_cases.CASES,
    *held_cases.CASES,
    *control_cases.CASES,
    *scheduling_cases.CASES,
]
REPOSITORIES = ("conformance", "broken", "control", "ensembles", "held", "managed", "scheduling")

_names = [case.name for case in CASES]
assert len(set(_names)) == len(_names), sorted({name for name in _names if _names.count(name) > 1})
