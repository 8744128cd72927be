"""All that is not inference: health, metadata, configuration, statistics, repository index, metrics, routes."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from tests.conformance.requests import (
    Case,
    Contents,
    Rpc,
    Scrape,
    case,
    grpc_input,
    http,
    infer,
    rpc_infer,
    tensor,
)

MODELS = [
    "add_sub",
    "arguments",
    "batched",
    "classified",
    "completed",
    "completed_batching",
    "configured",
    "counted",
    "decoupled",
    "echo",
    "matrix",
    "misbehaving",
    "optional",
    "raw_bytes",
    "reshaped",
    "versions",
]


def get(name: str, path: str, method: str = "GET") -> Case:
    return case(f"http {name}", http(method, path))


def post(name: str, path: str, body: bytes = b"", repository: str = "conformance") -> Case:
    return case(f"http {name}", http("POST", path, body), repository=repository)


HEALTH = [
    get("live", "/v2/health/live"),
    get("ready", "/v2/health/ready"),
    get("live with a query", "/v2/health/live?verbose=1"),
    get("live by POST", "/v2/health/live", "POST"),
    get("live by HEAD", "/v2/health/live", "HEAD"),
    get("ready by DELETE", "/v2/health/ready", "DELETE"),
    get("model ready", "/v2/models/add_sub/ready"),
    get("model version ready", "/v2/models/versions/versions/3/ready"),
    get("model version outside the policy ready", "/v2/models/versions/versions/2/ready"),
    get("model version that never was ready", "/v2/models/versions/versions/9/ready"),
    get("unknown model ready", "/v2/models/nobody/ready"),
    get("model ready by POST", "/v2/models/add_sub/ready", "POST"),
]

METADATA = [
    get("server metadata", "/v2"),
    get("server metadata by POST", "/v2", "POST"),
    *(get(f"metadata of {model}", f"/v2/models/{model}") for model in MODELS),
    get("metadata of one version", "/v2/models/versions/versions/1"),
    get("metadata of a version outside the policy", "/v2/models/versions/versions/2"),
    get("metadata of an unknown model", "/v2/models/nobody"),
    get("metadata of an unknown version", "/v2/models/add_sub/versions/5"),
    get("metadata by POST", "/v2/models/add_sub", "POST"),
    *(get(f"config of {model}", f"/v2/models/{model}/config") for model in MODELS),
    get("config of one version", "/v2/models/versions/versions/1/config"),
    get("config of an unknown model", "/v2/models/nobody/config"),
    get("config of an unknown version", "/v2/models/add_sub/versions/5/config"),
    get("config by POST", "/v2/models/add_sub/config", "POST"),
]

ROUTES = [
    get("root", "/"),
    get("v2 with a slash", "/v2/"),
    get("v2 in capitals", "/V2"),
    get("two slashes", "//v2"),
    get("all models", "/v2/models"),
    get("models with a slash", "/v2/models/"),
    get("model with a slash", "/v2/models/add_sub/"),
    get("version that is no number", "/v2/models/add_sub/versions/x"),
    get("versions without a number", "/v2/models/add_sub/versions"),
    get("unknown verb of a model", "/v2/models/add_sub/explode"),
    get("metrics on the inference port", "/metrics"),
    get("v1", "/v1/models/add_sub:predict", "POST"),
    get("unknown path by POST", "/v2/nothing", "POST"),
]

_ROWS = tensor("INPUT0", "INT32", [2, 2], [1, 2, 3, 4])
_ROW = tensor("INPUT0", "INT32", [1, 2], [1, 2])
_COUNTED = (
    infer("counted", [_ROWS]),
    infer("counted", [_ROW]),
    rpc_infer("counted", [grpc_input("INPUT0", "INT32", [1, 2], Contents({"int_contents": [1, 2]}))]),
    infer("counted", []),
)
STATISTICS = [
    case(
        "statistics after three successes and one that was refused",
        *_COUNTED,
        http("GET", "/v2/models/counted/stats"),
        http("GET", "/v2/models/counted/versions/1/stats"),
        Rpc("ModelStatistics", pb.ModelStatisticsRequest(name="counted")),
        Scrape("/metrics", "counted"),
    ),
    case(
        "statistics after two failures",
        infer("failing", [tensor("INPUT0", "INT32", [1], [0])]),
        infer("failing", [tensor("INPUT0", "INT32", [1], [1])]),
        http("GET", "/v2/models/failing/stats"),
        Rpc("ModelStatistics", pb.ModelStatisticsRequest(name="failing", version="1")),
        Scrape("/metrics", "failing"),
    ),
    case("statistics of an idle model", http("GET", "/v2/models/completed_batching/stats")),
    get("statistics of an unknown model", "/v2/models/nobody/stats"),
    get("statistics of an unknown version", "/v2/models/add_sub/versions/4/stats"),
    get("statistics of a version outside the policy", "/v2/models/versions/versions/2/stats"),
    get("statistics by POST", "/v2/models/stats", "POST"),
    case("metrics with a slash", Scrape("/metrics/", "completed_batching")),
    case("metrics of tags", Scrape("/metrics", "configured")),
    case("metrics port, other path", Scrape("/other")),
    case("metrics port, root", Scrape("/")),
    case("metrics by POST", Scrape("/metrics", method="POST")),
]

INDEX = [
    post("index", "/v2/repository/index"),
    post("index of what is ready", "/v2/repository/index", b'{"ready":true}'),
    post("index of all", "/v2/repository/index", b'{"ready":false}'),
    post("index, empty object", "/v2/repository/index", b"{}"),
    post("index of a repository", "/v2/repository/some/index"),
    post("index, ready as a number", "/v2/repository/index", b'{"ready":1}'),
    post("index, ready as text", "/v2/repository/index", b'{"ready":"yes"}'),
    post("index, no JSON", "/v2/repository/index", b"nonsense"),
    get("index by GET", "/v2/repository/index"),
    post("load in control mode none", "/v2/repository/models/add_sub/load"),
    post("unload in control mode none", "/v2/repository/models/add_sub/unload"),
]


def rpc(name: str, method: str, request: Message) -> Case:
    return case(f"grpc {name}", Rpc(method, request))


def per_model(name: str, method: str, request: type, models: Sequence[str] = MODELS) -> list[Case]:
    return [rpc(f"{name} of {model}", method, request(name=model)) for model in models]


GRPC = [
    rpc("live", "ServerLive", pb.ServerLiveRequest()),
    rpc("ready", "ServerReady", pb.ServerReadyRequest()),
    rpc("model ready", "ModelReady", pb.ModelReadyRequest(name="add_sub")),
    rpc("model version ready", "ModelReady", pb.ModelReadyRequest(name="versions", version="3")),
    rpc("model version outside the policy ready", "ModelReady", pb.ModelReadyRequest(name="versions", version="2")),
    rpc("model version ready, no number", "ModelReady", pb.ModelReadyRequest(name="versions", version="x")),
    rpc("unknown model ready", "ModelReady", pb.ModelReadyRequest(name="nobody")),
    rpc("server metadata", "ServerMetadata", pb.ServerMetadataRequest()),
    *per_model("metadata", "ModelMetadata", pb.ModelMetadataRequest),
    rpc("metadata of one version", "ModelMetadata", pb.ModelMetadataRequest(name="versions", version="1")),
    rpc("metadata of an unknown model", "ModelMetadata", pb.ModelMetadataRequest(name="nobody")),
    rpc("metadata of an unknown version", "ModelMetadata", pb.ModelMetadataRequest(name="add_sub", version="4")),
    rpc("metadata, version no number", "ModelMetadata", pb.ModelMetadataRequest(name="add_sub", version="x")),
    *per_model("config", "ModelConfig", pb.ModelConfigRequest),
    rpc("config of an unknown model", "ModelConfig", pb.ModelConfigRequest(name="nobody")),
    rpc("config of an unknown version", "ModelConfig", pb.ModelConfigRequest(name="add_sub", version="4")),
    rpc("statistics of an unknown model", "ModelStatistics", pb.ModelStatisticsRequest(name="nobody")),
    rpc("statistics of an unknown version", "ModelStatistics", pb.ModelStatisticsRequest(name="add_sub", version="4")),
    rpc("index", "RepositoryIndex", pb.RepositoryIndexRequest()),
    rpc("index of what is ready", "RepositoryIndex", pb.RepositoryIndexRequest(ready=True)),
    rpc("index of a repository", "RepositoryIndex", pb.RepositoryIndexRequest(repository_name="some")),
    rpc("load in control mode none", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="add_sub")),
    rpc("unload in control mode none", "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="add_sub")),
]

# The repository of models that must not load.
_INDEX = "/v2/repository/index"
_X = [tensor("X", "INT32", [1], [1])]
BROKEN = [
    case("index of a broken repository", http("POST", _INDEX), repository="broken"),
    case("index of a broken repository, what is ready", http("POST", _INDEX, b'{"ready":true}'), repository="broken"),
    case(
        "index of a broken repository by gRPC", Rpc("RepositoryIndex", pb.RepositoryIndexRequest()), repository="broken"
    ),
    case("live with a broken repository", http("GET", "/v2/health/live"), repository="broken"),
    case("ready with a broken repository", http("GET", "/v2/health/ready"), repository="broken"),
    case("ready with a broken repository by gRPC", Rpc("ServerReady", pb.ServerReadyRequest()), repository="broken"),
    case("infer beside broken models", infer("fine", _X), repository="broken"),
    case("infer of a model that failed to load", infer("initialize_raises", _X), repository="broken"),
    case("infer of a version that failed to load", infer("initialize_raises", _X, version="1"), repository="broken"),
    case("infer of a model whose configuration was refused", infer("priority_level", _X), repository="broken"),
    case(
        "infer of a model that failed to load by gRPC",
        rpc_infer("initialize_raises", [grpc_input("X", "INT32", [1], Contents({"int_contents": [1]}))]),
        repository="broken",
    ),
    case("metadata of a model that failed to load", http("GET", "/v2/models/initialize_raises"), repository="broken"),
    case(
        "config of a model that failed to load", http("GET", "/v2/models/initialize_raises/config"), repository="broken"
    ),
    case(
        "ready of a model that failed to load", http("GET", "/v2/models/initialize_raises/ready"), repository="broken"
    ),
    case("statistics of a model that failed to load", http("GET", "/v2/models/exits/stats"), repository="broken"),
    case("config without any configuration", http("GET", "/v2/models/nothing_configured/config"), repository="broken"),
    case("metadata without any configuration", http("GET", "/v2/models/nothing_configured"), repository="broken"),
    case("config without a backend", http("GET", "/v2/models/backend_missing/config"), repository="broken"),
]

CASES = [*HEALTH, *METADATA, *ROUTES, *STATISTICS, *INDEX, *GRPC, *BROKEN]
