"""The routes of the HTTP front and all endpoints but those of inference: path to Route, Route and body to
HttpResponse."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from gateway import http_json, log_settings
from gateway.bus import Done
from gateway.dataplane import DataPlane
from gateway.header_forwarding import HeaderForwarding
from gateway.http_control import load_parameters, unloads_dependents
from gateway.http_json import MISSING, JsonError
from gateway.load_report import load_report
from gateway.model_metadata import TensorMetadata
from gateway.refusals import NO_REPOSITORY_NAME, SHM_DISABLED
from gateway.status import HTTP_STATUS
from metrics.custom import CustomMetrics
from protocol.errors import InvalidArgument, NotFound, ServingError, Unavailable, Unsupported
from protocol.signature import IndexEntry, Signature
from protocol.statistics import BatchStatistics, Duration, InferStatistics, ModelStatistics, ResponseStatistics

T = TypeVar("T")
# Those that may take a while.
ASKED = READY, MODEL_READY, STATISTICS, INDEX, LOAD, UNLOAD = (
    "ready",
    "model_ready",
    "statistics",
    "index",
    "load",
    "unload",
)
INFER, GENERATE, GENERATE_STREAM = "infer", "generate", "generate_stream"


@dataclass(slots=True)
class Route:
    """Never changed once made; its attributes are asked for several times in each request."""

    endpoint: str  # a method of Endpoints, or one of the names above
    method: bytes
    model: str = ""  # as it stands in the path
    version: str = ""
    name: str = ""  # of a repository or shared memory region


class HttpResponse(NamedTuple):
    status: int
    body: bytes = b""
    content_type: bytes = b"application/json"
    headers: bytes = b""  # further ones, each with its line end


Respond = Callable[[HttpResponse], None]


# Possessive: a name ends at a slash or never, and a long one is not tried at every length.
_MODEL = r"/v2/models/(?P<model>[^/]++)(?:/versions/(?P<version>[0-9]+))?"
_REPOSITORY = r"/v2/repository(?:/(?P<name>[^/]++))?"
_TABLE = [
    ("server_metadata", b"GET", r"/v2"),
    ("live", b"GET", r"/v2/health/live"),
    (READY, b"GET", r"/v2/health/ready"),
    (STATISTICS, b"GET", r"/v2/models/stats"),
    (INFER, b"POST", _MODEL + r"/infer"),
    (GENERATE, b"POST", _MODEL + r"/generate"),
    (GENERATE_STREAM, b"POST", _MODEL + r"/generate_stream"),
    (MODEL_READY, b"GET", _MODEL + r"/ready"),
    ("model_config", b"GET", _MODEL + r"/config"),
    (STATISTICS, b"GET", _MODEL + r"/stats"),
    ("model_metadata", b"GET", _MODEL),
    (INDEX, b"POST", _REPOSITORY + r"/index"),
    (LOAD, b"POST", _REPOSITORY + r"/models/(?P<model>[^/]++)/load"),
    (UNLOAD, b"POST", _REPOSITORY + r"/models/(?P<model>[^/]++)/unload"),
    ("system_regions", b"GET", r"/v2/systemsharedmemory(?:/region/(?P<name>[^/]++))?/status"),
    ("cuda_regions", b"GET", r"/v2/cudasharedmemory(?:/region/(?P<name>[^/]++))?/status"),
    ("log_settings", b"GET", r"/v2/logging"),
    ("change_log_settings", b"POST", r"/v2/logging"),
    ("change_regions", b"POST", r"/v2/(?:system|cuda)sharedmemory(?:/region/(?P<name>[^/]++))?/(?:un)?register"),
]
_ROUTES = [(endpoint, method, re.compile(pattern)) for endpoint, method, pattern in _TABLE]


_LONGEST_REMEMBERED = 256  # a client chooses what it asks for, and so what we would keep


def find_route(url: bytes, method: bytes) -> Route | None:
    """By the whole raw path, percent signs and all; the query and an absolute form's host are dropped. The route is of
    another method where the path has none of this one."""
    path = url.partition(b"?")[0]
    if len(path) <= _LONGEST_REMEMBERED:
        return _remembered_route(path, method)
    return _route(path, method)


def _route(raw_path: bytes, method: bytes) -> Route | None:
    path = raw_path.decode("utf-8", "surrogateescape")
    if not path.startswith("/"):
        path = re.sub(r"^https?://[^/]*", "", path)
    route = None
    for endpoint, expected, pattern in _ROUTES:
        found = pattern.fullmatch(path)
        if found:
            route = Route(endpoint, expected, **{key: value or "" for key, value in found.groupdict().items()})
            if expected == method:
                break
    return route


_remembered_route = lru_cache(maxsize=4096)(_route)


def error_response(error: ServingError, headers: bytes = b"") -> HttpResponse:
    return HttpResponse(HTTP_STATUS[error.kind], error_body(str(error)), headers=headers)


def _telling(respond: Respond) -> Done:
    return lambda error: respond(EMPTY if error is None else error_response(error))


def _showing(shown: Callable[[T], object], respond: Respond) -> Callable[[T | ServingError], None]:
    """Answers with the JSON that ``shown`` makes of what is told, or with the error."""

    def tell(told: T | ServingError) -> None:
        if isinstance(told, ServingError):
            respond(error_response(told))
        else:
            respond(HttpResponse(200, http_json.encode(shown(told))))

    return tell


def error_body(text: str) -> bytes:
    return b'{"error":' + http_json.string(text) + b"}"


NO_ROUTE = HttpResponse(404, error_body("Not Found"))
WRONG_METHOD = HttpResponse(405, error_body("Method Not Allowed"))
EMPTY = HttpResponse(200)
NOT_READY = HttpResponse(400, error_body("Model version not ready"))


def version_of(route: Route) -> int:
    """-1 without one. Raises InvalidArgument."""
    if not route.version:
        return -1
    version = int(route.version.lstrip("0")[:20] or "0")
    if version > http_json.INT64_MAX:
        raise InvalidArgument(
            f"failed to get model version from specified version string '{route.version}' (details: stol), version "
            "should be an integral value > 0"
        )
    return version


def for_model(route: Route, ask: Callable[[str, int], T]) -> T:
    """``ask`` with the model's name as it stands in the path, then with percent signs decoded. Raises ServingError."""
    version = version_of(route) if route.version else -1
    try:
        return ask(route.model, version)
    except NotFound:
        if "%" not in route.model:
            raise
        try:
            return ask(unquote(route.model), version)
        except NotFound:
            pass
        raise


class Endpoints:
    """Each method answers one endpoint; ServingErrors become error bodies in ``answer``."""

    def __init__(
        self,
        dataplane: DataPlane,
        max_input_size: int,
        custom_metrics: CustomMetrics | None = None,
        forwarding: HeaderForwarding | None = None,
    ) -> None:
        self._dataplane = dataplane
        self._custom_metrics = custom_metrics
        self.max_input_size = max_input_size
        self.forwarding = forwarding
        self.exiting = False

    def signature(self, route: Route) -> Signature:
        """Raises ServingError."""
        return for_model(route, self._dataplane.signature)

    def load_report(self, form: bytes) -> bytes:
        """A header of the answer to a request that wants it in this form, or none."""
        report = load_report(self._custom_metrics, form.decode("latin-1"))
        return b"endpoint-load-metrics: %b\r\n" % report.encode() if report else b""

    def answer(self, route: Route, body: bytes) -> HttpResponse:
        endpoint: Callable[[Route, bytes], HttpResponse] = getattr(self, route.endpoint)
        try:
            return endpoint(route, body)
        except ServingError as error:
            return error_response(error)

    def ask(self, route: Route, body: bytes, respond: Respond) -> None:
        """Answers one of ASKED by ``respond``, now or later."""
        endpoint: Callable[[Route, bytes, Respond], None] = getattr(self, route.endpoint)
        try:
            endpoint(route, body, respond)
        except ServingError as error:
            respond(error_response(error))

    def ready(self, route: Route, body: bytes, respond: Respond) -> None:
        self._refuse_while_exiting()
        self._dataplane.server_ready(lambda ready: respond(HttpResponse(200 if ready else 400)))

    def model_ready(self, route: Route, body: bytes, respond: Respond) -> None:
        def ask_model(model: str, version: int) -> None:
            self._dataplane.model_ready(model, version, lambda ready: respond(EMPTY if ready else NOT_READY))

        for_model(route, ask_model)

    def live(self, route: Route, body: bytes) -> HttpResponse:
        self._refuse_while_exiting()
        return HttpResponse(200 if self._dataplane.server_live() else 400)

    def server_metadata(self, route: Route, body: bytes) -> HttpResponse:
        return HttpResponse(200, http_json.encode(self._dataplane.server_metadata()._asdict()))

    def model_metadata(self, route: Route, body: bytes) -> HttpResponse:
        metadata = for_model(route, self._dataplane.model_metadata)
        tensors = {"inputs": _tensors(metadata.inputs), "outputs": _tensors(metadata.outputs)}
        return HttpResponse(200, http_json.encode({**metadata._asdict(), **tensors}))

    def model_config(self, route: Route, body: bytes) -> HttpResponse:
        return HttpResponse(200, self.signature(route).config_json.encode("utf-8", "surrogateescape"))

    def statistics(self, route: Route, body: bytes, respond: Respond) -> None:
        self._dataplane.statistics(
            route.model,
            version_of(route),
            _showing(lambda rows: {"model_stats": list(map(_model_statistics, rows))}, respond),
        )

    def index(self, route: Route, body: bytes, respond: Respond) -> None:
        ready = False
        if body:
            found = http_json.find(self._parse(body), "ready")
            if found is not MISSING:
                try:
                    ready = http_json.as_bool(found)
                except JsonError:
                    raise InvalidArgument("Invalid value for 'ready': expected a boolean") from None
        self._dataplane.index(ready, _showing(lambda rows: list(map(_index_entry, rows)), respond))

    def load(self, route: Route, body: bytes, respond: Respond) -> None:
        config, files = load_parameters(self._control_document(route, body))
        self._named(route, respond, lambda model: self._dataplane.load(model, config, files, _telling(respond)))

    def unload(self, route: Route, body: bytes, respond: Respond) -> None:
        dependents = unloads_dependents(self._control_document(route, body))
        self._named(route, respond, lambda model: self._dataplane.unload(model, dependents, _telling(respond)))

    def _control_document(self, route: Route, body: bytes) -> object:
        if route.name:
            raise Unsupported(NO_REPOSITORY_NAME)
        return self._parse(body) if body else MISSING

    def _named(self, route: Route, respond: Respond, ask: Callable[[str], None]) -> None:
        """``ask`` with the name as it stands in the path if there is such a model, else with percent signs decoded."""
        raw = route.model

        def ask_known(rows: list[IndexEntry] | ServingError) -> None:
            if isinstance(rows, ServingError):
                respond(error_response(rows))
            else:
                ask(raw if raw in {row.name for row in rows} else unquote(raw))

        if "%" in raw:
            self._dataplane.index(False, ask_known)
        else:
            ask(raw)

    def system_regions(self, route: Route, body: bytes) -> HttpResponse:
        return self._regions("system", route)

    def cuda_regions(self, route: Route, body: bytes) -> HttpResponse:
        return self._regions("cuda", route)

    def change_regions(self, route: Route, body: bytes) -> HttpResponse:
        raise Unsupported(SHM_DISABLED)

    def log_settings(self, route: Route, body: bytes) -> HttpResponse:
        return HttpResponse(200, http_json.encode(log_settings.shown(self._dataplane.log_settings)))

    def change_log_settings(self, route: Route, body: bytes) -> HttpResponse:
        log_settings.change(self._dataplane.log_settings, _log_changes(self._parse(body)))
        return self.log_settings(route, body)

    def _regions(self, kind: str, route: Route) -> HttpResponse:
        if route.name:
            raise NotFound(f"Unable to find {kind} shared memory region: '{route.name}'")
        return HttpResponse(200, b"[]")

    def _refuse_while_exiting(self) -> None:
        if self.exiting:
            raise Unavailable("Server exiting")

    def _parse(self, body: bytes) -> object:
        if len(body) > self.max_input_size:
            raise InvalidArgument(
                f"request JSON size of {len(body)} bytes exceeds the maximum allowed input size of "
                f"{self.max_input_size} bytes. Use --http-max-input-size to increase the limit."
            )
        return http_json.parse(body)


# --- log settings -----------------------------------------------------------------------------------------------


def _log_changes(document: object) -> dict[str, Any]:
    """What is absent or null stays as it is; other members are ignored. Raises ServingError."""
    if http_json.find(document, "log_file") not in (MISSING, None):
        raise Unsupported(log_settings.FILE_IS_FIXED)
    changes: dict[str, Any] = {}
    for name, read in _LOG_READERS:
        found = http_json.find(document, name)
        if found not in (MISSING, None):
            changes[name] = read(found)
    return changes


def _log_level(value: object) -> int:
    return min(http_json.as_uint(value), 2**32 - 1)  # gRPC could not show more


def _log_format(value: object) -> str:
    name = http_json.as_string(value)
    if name not in log_settings.FORMATS:
        raise Unavailable(f"invalid argument for --log_format, got: {name}")
    return name


_LOG_READERS: list[tuple[str, Callable[[Any], Any]]] = [
    *((name, http_json.as_bool) for name in log_settings.SWITCHES),
    ("log_verbose_level", _log_level),
    ("log_format", _log_format),
]

# --- JSON forms -------------------------------------------------------------------------------------------------


def _tensors(tensors: list[TensorMetadata]) -> list[dict[str, object]]:
    return [tensor._asdict() for tensor in tensors]


def _index_entry(entry: IndexEntry) -> dict[str, str]:
    if not entry.state:
        return {"name": entry.name}
    version = {"version": str(entry.version)} if entry.version >= 0 else {}
    row = {"name": entry.name, **version, "state": entry.state}
    return {**row, "reason": entry.reason} if entry.reason else row


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}


def _inference(statistics: InferStatistics) -> dict[str, dict[str, int]]:
    names = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    return {name: _duration(getattr(statistics, name)) for name in names}


def _batch(batch: BatchStatistics) -> dict[str, object]:
    names = ("compute_input", "compute_infer", "compute_output")
    return {"batch_size": batch.batch_size, **{name: _duration(getattr(batch, name)) for name in names}}


def _response(response: ResponseStatistics) -> dict[str, dict[str, int]]:
    names = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
    return {name: _duration(getattr(response, name)) for name in names}


def _model_statistics(model: ModelStatistics) -> dict[str, object]:
    return {
        "name": model.name,
        "version": str(model.version),
        "last_inference": model.last_inference_ms,
        "inference_count": model.inference_count,
        "execution_count": model.execution_count,
        "inference_stats": _inference(model.inference_stats),
        "response_stats": {str(one.index): _response(one) for one in model.response_stats},
        "batch_stats": [_batch(batch) for batch in model.batch_stats],
        "memory_usage": [],
    }
