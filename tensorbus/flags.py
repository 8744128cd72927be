"""tritonserver's command line flags, and ours: the table.

A flag sets the field of the same name in ServeSettings, or is accepted without effect, or is known and only accepted
with a value that needs nothing we do not offer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tensorbus.flag_values import (
    Reader,
    above_zero,
    backend_setting,
    boolean,
    cache_setting,
    grpc_threads,
    integer,
    metrics_setting,
    name_of_config,
    number,
    one_of,
    pattern,
    rate_limit_resource,
    starts_tracing,
    traces_level,
    verbosity,
)


class Flag(NamedTuple):
    name: str  # without the dashes
    group: str
    read: Reader | None  # None: takes no value
    help: str = ""
    shape: str = ""  # of the value, for the usage
    repeatable: bool = False
    ignored: bool = False  # accepted without effect, with a warning
    inert: tuple[Any, ...] | None = None  # known, but only these values are offered
    instead: str = ""  # deprecated: what to use


_PORT = integer(0, 65535)
_COUNT = integer(0)
_SIZE = integer(0, 2**63 - 1)


def _ignored(name: str, group: str, read: Reader = str) -> Flag:
    return Flag(name, group, read, ignored=True)


def _later(name: str, group: str, read: Reader, *inert: Any, repeatable: bool = False, instead: str = "") -> Flag:
    return Flag(name, group, read, inert=inert, repeatable=repeatable, instead=instead)


_REPOSITORY = "directory of models; may be given several times"

FLAGS: tuple[Flag, ...] = (
    Flag("help", "", None, "print this text"),
    Flag("id", "Server", str, "name of this server in its metadata", "string"),
    Flag("exit-timeout-secs", "Server", _COUNT, "how long the exit waits for requests in flight", "seconds"),
    Flag("log-verbose", "Logging", verbosity, "show verbose messages up to this level; 0 shows none", "integer"),
    Flag("log-info", "Logging", boolean, "show information", "boolean"),
    Flag("log-warning", "Logging", boolean, "show warnings", "boolean"),
    Flag("log-error", "Logging", boolean, "show errors", "boolean"),
    Flag("log-format", "Logging", one_of("log-format", "default", "ISO8601"), "form of a line", "default|ISO8601"),
    Flag("log-file", "Logging", str, "append every line to this file instead of stdout and stderr", "path"),
    Flag("model-repository", "Model Repository", str, _REPOSITORY, "path", repeatable=True),
    Flag("model-store", "Model Repository", str, "the same as --model-repository", "path", repeatable=True),
    Flag("exit-on-error", "Model Repository", boolean, "exit if a model fails to load at start", "boolean"),
    Flag(
        "disable-auto-complete-config",
        "Model Repository",
        None,
        "do not complete model configurations: each must be there and whole",
    ),
    Flag("reload", "Model Repository", None, "load a model again when its files have changed; for who writes it"),
    Flag(
        "strict-readiness", "Model Repository", boolean, "ready only while every model is; else once started", "boolean"
    ),
    Flag(
        "model-control-mode",
        "Model Repository",
        one_of("model-control-mode", "none", "poll", "explicit"),
        "none: load all models at start and leave it at that; poll: follow what changes in the repositories; explicit: "
        "load and unload models by request",
        "none|poll|explicit",
    ),
    Flag(
        "repository-poll-secs",
        "Model Repository",
        _COUNT,
        "in poll mode, how often the repositories are looked at; 0 is never",
        "seconds",
    ),
    Flag("model-load-thread-count", "Model Repository", integer(1), "how many models load at the same time", "integer"),
    Flag(
        "load-model",
        "Model Repository",
        str,
        "in explicit mode, a model to begin with; may be given several times, * is all",
        "name",
        repeatable=True,
    ),
    Flag(
        "model-config-name",
        "Model Repository",
        name_of_config,
        "read <model>/configs/<name>.pbtxt in place of config.pbtxt, where there is one",
        "name",
    ),
    Flag(
        "model-load-retry-count",
        "Model Repository",
        _COUNT,
        "how often a model that fails to load is tried again at once",
        "integer",
    ),
    Flag(
        "model-namespacing",
        "Model Repository",
        boolean,
        "models of several repositories may have the same name, each for the ensembles beside it",
        "boolean",
    ),
    _ignored("enable-peer-access", "Model Repository", boolean),
    Flag("allow-http", "HTTP", boolean, "serve HTTP", "boolean"),
    Flag("http-address", "HTTP", str, "address to listen on", "address"),
    Flag("http-port", "HTTP", _PORT, "port to listen on; 0 takes a free one", "port"),
    Flag(
        "http-max-input-size",
        "HTTP",
        above_zero("http-max-input-size", 2**63 - 1),
        "largest JSON, raw or inflated request in bytes; binary tensors behind a JSON header are not limited",
        "bytes",
    ),
    _ignored("http-thread-count", "HTTP", integer()),
    _later("reuse-http-port", "HTTP", boolean, False),
    Flag("http-header-forward-pattern", "HTTP", pattern, "headers of requests that become parameters", "regex"),
    _later("http-restricted-api", "HTTP", str, repeatable=True),
    Flag("allow-grpc", "GRPC", boolean, "serve gRPC", "boolean"),
    Flag("grpc-address", "GRPC", str, "address to listen on", "address"),
    Flag("grpc-port", "GRPC", _PORT, "port to listen on; 0 takes a free one", "port"),
    _later("reuse-grpc-port", "GRPC", boolean, False),
    Flag("grpc-header-forward-pattern", "GRPC", pattern, "headers of requests that become parameters", "regex"),
    _ignored("grpc-infer-thread-count", "GRPC", grpc_threads),
    _ignored("grpc-infer-allocation-pool-size", "GRPC", integer()),
    _later("grpc-max-response-pool-size", "GRPC", above_zero("grpc-max-response-pool-size", 2**31 - 1), 2**31 - 1),
    _later("grpc-use-ssl", "GRPC", boolean, False),
    _later("grpc-use-ssl-mutual", "GRPC", boolean, False),
    _ignored("grpc-server-cert", "GRPC"),
    _ignored("grpc-server-key", "GRPC"),
    _ignored("grpc-root-cert", "GRPC"),
    _later(
        "grpc-infer-response-compression-level",
        "GRPC",
        one_of("grpc_infer_response_compression_level", "none", "low", "medium", "high"),
        "none",
    ),
    _later("grpc-keepalive-time", "GRPC", integer(), 7200000),
    _later("grpc-keepalive-timeout", "GRPC", integer(), 20000),
    _later("grpc-keepalive-permit-without-calls", "GRPC", boolean, False),
    _later("grpc-http2-max-pings-without-data", "GRPC", integer(), 2),
    _later("grpc-http2-min-recv-ping-interval-without-data", "GRPC", integer(), 300000),
    _later("grpc-http2-max-ping-strikes", "GRPC", integer(), 2),
    _later("grpc-max-connection-age", "GRPC", integer()),
    _later("grpc-max-connection-age-grace", "GRPC", integer()),
    _later("grpc-restricted-protocol", "GRPC", str, repeatable=True),
    _later("allow-sagemaker", "Sagemaker", boolean, False),
    _ignored("sagemaker-port", "Sagemaker", _PORT),
    _ignored("sagemaker-safe-port-range", "Sagemaker"),
    _ignored("sagemaker-thread-count", "Sagemaker", integer()),
    _later("allow-vertex-ai", "Vertex", boolean, False),
    _ignored("vertex-ai-port", "Vertex", _PORT),
    _ignored("vertex-ai-thread-count", "Vertex", integer()),
    _ignored("vertex-ai-default-model", "Vertex"),
    Flag("allow-metrics", "Metrics", boolean, "serve Prometheus metrics", "boolean"),
    Flag("metrics-address", "Metrics", str, "address to listen on; that of HTTP unless given", "address"),
    Flag("metrics-port", "Metrics", _PORT, "port to listen on; 0 takes a free one", "port"),
    Flag("allow-cpu-metrics", "Metrics", boolean, "with the gauges of CPU and memory use", "boolean"),
    Flag("metrics-interval-ms", "Metrics", integer(1), "least age at which those are sampled again", "milliseconds"),
    _ignored("allow-gpu-metrics", "Metrics", boolean),
    _later(
        "metrics-config",
        "Metrics",
        metrics_setting,
        *(("counter_latencies", "true"), ("histogram_latencies", "false"), ("summary_latencies", "false")),
        repeatable=True,
    ),
    _later("trace-config", "Tracing", starts_tracing, False, repeatable=True),
    Flag("backend-directory", "Backend", str, "where Python-based backends are looked for", "path"),
    Flag(
        "backend-config",
        "Backend",
        backend_setting,
        "setting of a backend, or of all; may be given several times",
        "[backend,]key=value",
        repeatable=True,
    ),
    _ignored("repoagent-directory", "Repository Agent"),
    Flag(
        "cache-config",
        "Response Cache",
        cache_setting,
        "keep responses of models that enable response_cache, in so much shared memory",
        "local,size=<bytes>",
        repeatable=True,
    ),
    _ignored("cache-directory", "Response Cache"),
    Flag(
        "rate-limit",
        "Rate Limiter",
        one_of("rate-limit", "off", "execution_count"),
        "execution_count: instances execute by priority and as their resources allow; off: whenever they can",
        "off|execution_count",
    ),
    Flag(
        "rate-limit-resource",
        "Rate Limiter",
        rate_limit_resource,
        "how much there is of a resource, of every device or of one; may be given several times; "
        "unless given, as much of each as the neediest instance needs",
        "name:count[:device]",
        repeatable=True,
    ),
    Flag(
        "max-queued-requests",
        "Back Pressure",
        _COUNT,
        "how many requests of all models may wait; more are refused, 0 is any number",
        "integer",
    ),
    Flag(
        "max-queued-bytes",
        "Back Pressure",
        _SIZE,
        "how many bytes of request tensors the server holds; requests beyond are refused, 0 is any number; "
        "unless given, half of the shared memory, 1 GiB at least",
        "bytes",
    ),
    Flag(
        "max-unread-bytes",
        "Back Pressure",
        _SIZE,
        "how far the responses of one request may be ahead of a client that reads slowly, 0 is without end; "
        "unless given, a sixteenth of the shared memory, 64 MiB at most",
        "bytes",
    ),
    _ignored("pinned-memory-pool-byte-size", "Memory/Device Management", _SIZE),
    _ignored("cuda-memory-pool-byte-size", "Memory/Device Management"),
    _ignored("cuda-virtual-address-size", "Memory/Device Management"),
    _ignored("min-supported-compute-capability", "Memory/Device Management", number),
    _ignored("buffer-manager-thread-count", "Memory/Device Management", integer()),
    _ignored("host-policy", "Memory/Device Management"),
    _ignored("model-load-gpu-limit", "Memory/Device Management"),
    _later("allow-client-shm", "Shared Memory", boolean, False),
    Flag("strict-model-config", "DEPRECATED", boolean, instead="--disable-auto-complete-config"),
    Flag("response-cache-byte-size", "DEPRECATED", _SIZE, instead="--cache-config"),
    _later("trace-level", "DEPRECATED", traces_level, False, instead="--trace-config level=<level>"),
    Flag("trace-file", "DEPRECATED", str, ignored=True, instead="--trace-config triton,file=<path>"),
    Flag("trace-rate", "DEPRECATED", integer(), ignored=True, instead="--trace-config rate=<rate>"),
    Flag("trace-count", "DEPRECATED", integer(), ignored=True, instead="--trace-config count=<count>"),
    Flag(
        "trace-log-frequency",
        "DEPRECATED",
        integer(),
        ignored=True,
        instead="--trace-config triton,log-frequency=<frequency>",
    ),
)

BY_NAME = {flag.name: flag for flag in FLAGS}


def flags_of(*groups: str) -> tuple[Flag, ...]:
    """In the order of the table."""
    return tuple(flag for flag in FLAGS if flag.group in groups)


def flag_of(name: str) -> Flag:
    return BY_NAME[name]
