from __future__ import annotations

import grpc

from gateway.status import GRPC_CODE, HTTP_STATUS
from protocol.errors import ErrorKind


def test_every_kind_has_a_code_on_both_fronts() -> None:
    assert set(HTTP_STATUS) == set(GRPC_CODE) == set(ErrorKind)


def test_grpc_codes_are_those_of_grpc() -> None:
    names = {code.value[0]: code.name for code in grpc.StatusCode}
    renamed = {"INVALID_ARG": "INVALID_ARGUMENT", "UNSUPPORTED": "UNIMPLEMENTED"}
    assert all(names[number] == renamed.get(kind.name, kind.name) for kind, number in GRPC_CODE.items())


def test_http_statuses_are_tritons() -> None:
    assert HTTP_STATUS[ErrorKind.ALREADY_EXISTS] == HTTP_STATUS[ErrorKind.CANCELLED] == 400
    assert HTTP_STATUS[ErrorKind.INTERNAL] == 500
    assert HTTP_STATUS[ErrorKind.NOT_FOUND] == 404
    assert HTTP_STATUS[ErrorKind.UNAVAILABLE] == 503
    assert HTTP_STATUS[ErrorKind.UNSUPPORTED] == 501
