from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from gateway.http_routes import ASKED, INFER, Endpoints, HttpResponse, Route, find_route
from protocol.errors import Unavailable
from tests.gateway.fake_bus import FakeBus, signature


@pytest.fixture
def endpoints(bus: FakeBus) -> Endpoints:
    return Endpoints(bus.dataplane, 1000)


def ask(endpoints: Endpoints, path: str, body: bytes = b"", method: str = "GET") -> HttpResponse:
    route = find_route(path.encode(), method.encode())
    assert route is not None
    if route.endpoint not in ASKED:
        return endpoints.answer(route, body)
    responses: list[HttpResponse] = []
    endpoints.ask(route, body, responses.append)
    (response,) = responses
    return response


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v2", Route("server_metadata", b"GET")),
        ("/v2?x=/v2/health/live", Route("server_metadata", b"GET")),
        ("http://host/v2/health/live", Route("live", b"GET")),
        ("/v2/models/m", Route("model_metadata", b"GET", "m")),
        ("/v2/models/a%20b/versions/01", Route("model_metadata", b"GET", "a%20b", "01")),
        ("/v2/models/m/infer", Route(INFER, b"POST", "m")),
        ("/v2/models/m/versions/3/infer", Route(INFER, b"POST", "m", "3")),
        ("/v2/models/stats", Route("statistics", b"GET")),
        ("/v2/models/m/stats", Route("statistics", b"GET", "m")),
        ("/v2/repository/r/index", Route("index", b"POST", name="r")),
        ("/v2/repository/models/m/unload", Route("unload", b"POST", "m")),
        ("/v2/systemsharedmemory/region/r/status", Route("system_regions", b"GET", name="r")),
        ("/v2/logging", Route("log_settings", b"GET")),
        ("/v2/logging", Route("change_log_settings", b"POST")),
        ("/v2/cudasharedmemory/unregister", Route("change_regions", b"POST")),
    ],
)
def test_a_path_is_matched_as_a_whole(path: str, route: Route) -> None:
    assert find_route(path.encode(), route.method) == route


@pytest.mark.parametrize(
    "path",
    ["/", "", "*", "/v2/", "//v2", "/V2", "/v2/models", "/v2/models//ready", "/v2/models/m/versions/x", "/metrics",
     "/v2/models/m/versions/-1/infer", "/v2/health/live/", "/v2#x", "/v2/models/m/infer/", "/v2/models/a/b/infer"],
)  # fmt: skip
def test_nothing_else_is_a_route(path: str) -> None:
    assert find_route(path.encode(), b"GET") is None


def test_a_path_without_the_method_has_a_route_of_another() -> None:
    assert find_route(b"/v2", b"POST") == Route("server_metadata", b"GET")
    route = find_route(b"/v2/logging", b"PUT")
    assert route is not None and route.method != b"PUT"


def test_long_urls_are_not_remembered() -> None:
    tracemalloc.start()
    try:
        for number in range(100):
            assert find_route(b"/v2/models/m?%d" % number + b"x" * 60000, b"GET") == Route(
                "model_metadata", b"GET", "m"
            )
            name = f"{number}" + "x" * 60000
            assert find_route(f"/v2/models/{name}".encode(), b"GET") == Route("model_metadata", b"GET", name)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 20


def test_health_has_no_body(bus: FakeBus, endpoints: Endpoints) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/add_sub/ready"):
        assert ask(endpoints, path)[:2] == (200, b"")
    bus.is_live = bus.is_ready = False
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert ask(endpoints, path)[:2] == (400, b"")
    assert ask(endpoints, "/v2/models/add_sub/ready")[:2] == (400, b'{"error":"Model version not ready"}')


def test_health_of_an_exiting_server(endpoints: Endpoints) -> None:
    endpoints.exiting = True
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert ask(endpoints, path)[:2] == (503, b'{"error":"Server exiting"}')


@pytest.mark.parametrize("path", ["/v2/models/nope", "/v2/models/nope/config", "/v2/models/nope/ready"])
def test_an_unknown_model_is_not_found(endpoints: Endpoints, path: str) -> None:
    response = ask(endpoints, path)
    assert response[:2] == (404, b'{"error":"Request for unknown model: \'nope\' is not found"}')


def test_a_models_name_is_tried_as_sent_and_then_decoded(endpoints: Endpoints) -> None:
    assert json.loads(ask(endpoints, "/v2/models/a%20b").body)["name"] == "a b"
    assert ask(endpoints, "/v2/models/x%20b").body == b'{"error":"Request for unknown model: \'x%20b\' is not found"}'


def test_a_version_is_a_number(endpoints: Endpoints) -> None:
    assert ask(endpoints, "/v2/models/add_sub/versions/0001").status == 200
    assert ask(endpoints, "/v2/models/add_sub/versions/99999999999999999999")[:2] == (
        400,
        b'{"error":"failed to get model version from specified version string \'99999999999999999999\' (details: '
        b'stol), version should be an integral value > 0"}',
    )


def test_server_metadata(endpoints: Endpoints) -> None:
    metadata = json.loads(ask(endpoints, "/v2").body)
    assert list(metadata) == ["name", "version", "extensions"]
    assert metadata["name"] == "triton"
    assert len(metadata["extensions"]) == 13


def test_model_metadata(endpoints: Endpoints) -> None:
    assert ask(endpoints, "/v2/models/id_fp32_b").body == (
        b'{"name":"id_fp32_b","versions":["1"],"platform":"python","inputs":[{"name":"INPUT0","datatype":"FP32",'
        b'"shape":[-1,-1,2]}],"outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[-1,-1,2]}]}'
    )


def test_the_configuration_is_the_brokers(endpoints: Endpoints) -> None:
    assert ask(endpoints, "/v2/models/add_sub/config")[:2] == (200, b'{"name":"add_sub"}')


def test_statistics(endpoints: Endpoints) -> None:
    names = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    figures = {name: {"count": number, "ns": number * 10} for number, name in enumerate(names, 1)}
    steps = {name: {"count": number, "ns": number * 10} for number, name in enumerate(names[3:6], 9)}
    expected = {
        "name": "add_sub",
        "version": "1",
        "last_inference": 1234,
        "inference_count": 5,
        "execution_count": 6,
        "inference_stats": figures,
        "response_stats": {},
        "batch_stats": [{"batch_size": 4, **steps}],
        "memory_usage": [],
    }
    body = ask(endpoints, "/v2/models/add_sub/versions/1/stats").body.decode()
    assert body == json.dumps({"model_stats": [expected]}, separators=(",", ":"))


def test_statistics_of_an_unknown_model_are_a_bad_request(endpoints: Endpoints) -> None:
    assert ask(endpoints, "/v2/models/nope/stats")[:2] == (
        400,
        b'{"error":"requested model \'nope\' is not available"}',
    )


def test_the_index_lists_states_and_reasons(endpoints: Endpoints) -> None:
    rows = json.loads(ask(endpoints, "/v2/repository/index").body)
    assert rows[0] == {"name": "a b", "version": "1", "state": "READY"}
    assert rows[-2:] == [
        {"name": "bad", "version": "1", "state": "UNAVAILABLE", "reason": "Internal: x"},
        {"name": "cold"},
    ]


def test_the_index_of_ready_models(endpoints: Endpoints) -> None:
    rows = json.loads(ask(endpoints, "/v2/repository/index", b'{"ready":true}').body)
    assert all(row["state"] == "READY" for row in rows)
    assert len(json.loads(ask(endpoints, "/v2/repository/index", b"[]").body)) == len(rows) + 2


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b'{"ready":3}', 400, "Invalid value for 'ready': expected a boolean"),
        (b"{x", 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        (
            b" " * 1001,
            400,
            "request JSON size of 1001 bytes exceeds the maximum allowed input size of 1000 bytes. Use "
            "--http-max-input-size to increase the limit.",
        ),
    ],
)
def test_a_bad_index_request(endpoints: Endpoints, body: bytes, status: int, text: str) -> None:
    response = ask(endpoints, "/v2/repository/index", body)
    assert (response.status, json.loads(response.body)) == (status, {"error": text})


def test_a_model_is_loaded_as_it_is_or_with_what_the_request_brings(bus: FakeBus, endpoints: Endpoints) -> None:
    for body in (b"", b"{}", b"[]", b'{"parameters":{}}'):
        assert ask(endpoints, "/v2/repository/models/m/load", body) == (200, b"", b"application/json", b"")
        assert bus.controlled.pop() == ("load", "m", None, {})
    body = b'{"parameters":{"config":"{}","file:1/model.py":"AAE="}}'
    assert ask(endpoints, "/v2/repository/models/m/load", body).status == 200
    assert bus.controlled == [("load", "m", "{}", {"file:1/model.py": b"\0\1"})]


def test_a_model_is_unloaded_with_those_that_it_needs_if_asked(bus: FakeBus, endpoints: Endpoints) -> None:
    for body, dependents in (
        (b"", False),
        (b'{"parameters":{"unload_dependents":true}}', True),
        (b'{"parameters":{"unload_dependents":false,"x":"y"}}', False),
        (b'{"parameters":{"unload_dependents":"x"}}', False),
    ):
        assert ask(endpoints, "/v2/repository/models/m/unload", body)[:2] == (200, b"")
        assert bus.controlled.pop() == ("unload", "m", dependents)


def test_why_a_model_is_not_loaded_is_said(bus: FakeBus, endpoints: Endpoints) -> None:
    bus.control_error = Unavailable("not allowed")
    for what in ("load", "unload"):
        assert ask(endpoints, f"/v2/repository/models/m/{what}")[:2] == (503, b'{"error":"not allowed"}')


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"{", 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        (b'{"parameters":3}', 500, "attempt to get members for non-object"),
        (b'{"parameters":[]}', 500, "attempt to get members for non-object"),
        (b'{"parameters":{"x":"y"}}', 500, "unexpected error on creating Triton parameter"),
        (b'{"parameters":{"config":3}}', 500, "attempt to access JSON non-string as string"),
        (b'{"parameters":{"unload_dependents":true}}', 500, "attempt to access JSON non-string as string"),
        (b'{"parameters":{"file:1/model.py":"!"}}', 400, "load parameter 'file:1/model.py' is not valid base64"),
        (b'{"parameters":{"file:1/model.py":"AA=A"}}', 400, "load parameter 'file:1/model.py' is not valid base64"),
    ],
)
def test_a_bad_load_request(bus: FakeBus, endpoints: Endpoints, body: bytes, status: int, text: str) -> None:
    response = ask(endpoints, "/v2/repository/models/m/load", body)
    assert (response.status, json.loads(response.body)["error"]) == (status, text)
    assert bus.controlled == []


def test_a_model_to_load_is_named_as_it_is_known_or_decoded(bus: FakeBus, endpoints: Endpoints) -> None:
    bus.add(signature("x%20y"))
    for path, name in (("a%20b", "a b"), ("x%20y", "x%20y"), ("n%C3%A9", "né")):
        ask(endpoints, f"/v2/repository/models/{path}/load")
        assert bus.controlled.pop()[1] == name


def test_a_repository_cannot_be_named_but_for_the_index(bus: FakeBus, endpoints: Endpoints) -> None:
    text = b'{"error":"\'repository_name\' specification is not supported"}'
    for what in ("load", "unload"):
        assert ask(endpoints, f"/v2/repository/r/models/m/{what}")[:2] == (501, text)
    assert ask(endpoints, "/v2/repository/r/index").status == 200 and bus.controlled == []


def test_client_shared_memory_is_off(endpoints: Endpoints) -> None:
    assert ask(endpoints, "/v2/systemsharedmemory/status")[:2] == (200, b"[]")
    assert ask(endpoints, "/v2/cudasharedmemory/region/r/status")[:2] == (
        404,
        b'{"error":"Unable to find cuda shared memory region: \'r\'"}',
    )
    response = ask(endpoints, "/v2/systemsharedmemory/region/r/register", b"{}")
    assert response.status == 501
    assert b"Client shared memory is disabled. Start the server with '--allow-client-shm=true'" in response.body


# --- logging ------------------------------------------------------------------------------------------------------

# What Triton 2.51 answers.
LOGGING = {
    "log_file": "server.log",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


def change(endpoints: Endpoints, body: bytes) -> HttpResponse:
    return ask(endpoints, "/v2/logging", body, "POST")


def shown(response: HttpResponse) -> Any:
    assert response.status == 200
    return json.loads(response.body)


def test_log_settings_are_shown_in_order(endpoints: Endpoints) -> None:
    body = ask(endpoints, "/v2/logging").body.decode()
    assert body == json.dumps(LOGGING, separators=(",", ":"))


def test_some_log_settings_are_changed_and_all_are_shown(bus: FakeBus, endpoints: Endpoints) -> None:
    changed = {**LOGGING, "log_info": False, "log_verbose_level": 2, "log_format": "ISO8601"}
    body = b'{"log_info":false,"log_verbose_level":2,"log_format":"ISO8601","log_file":null,"colour":1}'
    assert shown(change(endpoints, body)) == changed
    assert shown(ask(endpoints, "/v2/logging")) == changed
    assert bus.dataplane.log_settings.log_info is False
    for nothing in (b"{}", b"[]", b"3"):
        assert shown(change(endpoints, nothing)) == changed


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ('{"log_file":""}', 501, "log file location can not be updated through network protocol"),
        ('{"log_format":"iso8601"}', 503, "invalid argument for --log_format, got: iso8601"),
        ('{"log_format":3}', 500, "attempt to access JSON non-string as string"),
        ('{"log_warning":1}', 500, "attempt to access JSON non-boolean as boolean"),
        ('{"log_verbose_level":-1}', 500, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ("", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
    ],
)
def test_a_bad_log_setting_changes_nothing(endpoints: Endpoints, body: str, status: int, text: str) -> None:
    for tried in (body, body.replace("{", '{"log_info":false,')):
        response = change(endpoints, tried.encode())
        assert (response.status, json.loads(response.body)) == (status, {"error": text})
    assert shown(ask(endpoints, "/v2/logging")) == LOGGING


def test_a_log_level_is_cut_to_what_grpc_can_show(endpoints: Endpoints) -> None:
    assert shown(change(endpoints, b'{"log_verbose_level":18446744073709551615}'))["log_verbose_level"] == 2**32 - 1
