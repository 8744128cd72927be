import dataclasses
import subprocess
import sys

import pytest

from tensorbus.flag_values import BackendSetting
from tensorbus.flags import FLAGS
from tensorbus.settings import ServeSettings, UsageError, from_values, parse_serve, usage

NO_FLAG = {
    "backlog_delay_scheduler",
    "cache_directory",
    "cloud",
    "delay_scheduler",
    "escape_log_messages",
    "deprecations",
    "ignored_flags",
    "small_nbytes",
}


def refusal(*argv: str) -> str:
    with pytest.raises(UsageError) as error:
        parse_serve(argv)
    return str(error.value)


def test_without_flags_the_defaults_hold() -> None:
    defaults = ServeSettings(metrics_address="0.0.0.0", cache_directory="/home/me/.cache/tensorbus")
    assert parse_serve([], {"HOME": "/home/me"}) == defaults


def test_the_environment_tells_where_to_keep_what_is_built_once() -> None:
    environ = {"HOME": "/home/me", "XDG_CACHE_HOME": "/var/me"}
    assert parse_serve([], environ).cache_directory == "/var/me/tensorbus"
    assert parse_serve([], {**environ, "TENSORBUS_CACHE": "/big"}).cache_directory == "/big"


def test_every_field_has_its_flag_and_every_flag_has_an_effect_or_says_that_it_has_none() -> None:
    fields = {field.name for field in dataclasses.fields(ServeSettings)}
    flags = {flag.name.replace("-", "_"): flag for flag in FLAGS}
    assert fields - NO_FLAG <= set(flags)
    without_field = [flag for name, flag in flags.items() if name not in fields]
    assert [flag.name for flag in without_field if not flag.ignored and flag.inert is None] == [
        "help",
        "model-store",
        "strict-model-config",
    ]


def test_repositories_add_up_under_both_names_and_of_other_flags_the_last_wins() -> None:
    settings = parse_serve(
        ["--model-repository=/a", "--model-store", "/b", "--model-repository=/a", "--http-port=1", "--http-port=2"]
    )
    assert settings.model_repository == ("/a", "/b")
    assert settings.http_port == 2


def test_the_environment_says_which_tensors_are_small() -> None:
    assert parse_serve([], {}).small_nbytes == 512
    assert parse_serve([], {"TENSORBUS_SMALL_NBYTES": "0"}).small_nbytes == 0


def test_metrics_listen_where_http_does_unless_told_otherwise() -> None:
    assert parse_serve(["--http-address=127.0.0.1"]).metrics_address == "127.0.0.1"
    assert parse_serve(["--http-address=127.0.0.1", "--metrics-address=::1"]).metrics_address == "::1"


def test_escaping_is_switched_off_by_the_environment() -> None:
    assert parse_serve([], {"TRITON_SERVER_ESCAPE_LOG_MESSAGES": "1"}).escape_log_messages
    assert not parse_serve([], {"TRITON_SERVER_ESCAPE_LOG_MESSAGES": "0"}).escape_log_messages


@pytest.mark.parametrize(("text", "count"), [("12", 12), ("", 0), ("-1", 0), ("x", 0)])
def test_the_scheduler_is_held_back_by_a_variable_of_the_environment(text, count):
    settings = parse_serve([], {"TRITONSERVER_DELAY_SCHEDULER": text, "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "7"})
    assert (settings.delay_scheduler, settings.backlog_delay_scheduler) == (count, 7)


def test_log_flags_become_log_settings() -> None:
    logs = parse_serve(["--log-verbose=2", "--log-info=off", "--log-format=ISO8601", "--log-file=/l"]).log_settings()
    assert (logs.log_verbose_level, logs.log_info, logs.log_error) == (2, False, True)
    assert (logs.log_format, logs.log_file) == ("ISO8601", "/l")


def test_a_backend_has_its_own_values_over_those_of_all() -> None:
    settings = parse_serve(
        ["--backend-config=python,x=1", "--backend-config=x=2", "--backend-config=y=3", "--backend-config=other,z=4"]
    )
    assert settings.backend_config[0] == BackendSetting("python", "x", "1")
    assert settings.backend_values("python") == {"x": "1", "y": "3"}


def test_the_python_backends_first_segment_size() -> None:
    assert ServeSettings().shm_default_byte_size == 1048576
    assert parse_serve(["--backend-config=python,shm-default-byte-size=5242880"]).shm_default_byte_size == 5242880


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("shm-default-byte-size=1048575", "shm-default-byte-size can't be smaller than 4 MiBs"),
        ("shm-growth-byte-size=0", "shm-growth-byte-size can't be smaller than or equal to zero."),
        ("stub-timeout-seconds=-1", "stub-timeout-seconds can't be smaller than or equal to zero."),
        ("thread-pool-size=0", "thread-pool-size can't be less than 1."),
        ("shm-growth-byte-size=big", "invalid argument for python,shm-growth-byte-size. Got big"),
        ("shm_message_queue_size=big", "invalid argument for python,shm_message_queue_size. Got big"),
    ],
)
def test_the_python_backends_limits_are_kept(setting: str, reason: str) -> None:
    assert refusal(f"--backend-config=python,{setting}") == f'Bad option: "--backend-config".\n{reason}'


def test_flags_without_effect_are_listed_once_each() -> None:
    settings = parse_serve(["--http-thread-count=4", "--host-policy=a,b=c", "--http-thread-count=5"])
    assert settings.ignored_flags == ("http-thread-count", "host-policy")


@pytest.mark.parametrize(
    "argument",
    [
        "--grpc-use-ssl=true",
        "--http-restricted-api=health:k=v",
        "--trace-config=level=TIMESTAMPS",
        "--trace-level=max",
        "--metrics-config=summary_latencies=true",
        "--allow-client-shm=1",
        "--allow-sagemaker=true",
    ],
)
def test_what_is_not_offered_yet_is_refused_by_name(argument: str) -> None:
    flag = argument.partition("=")[0]
    assert refusal(argument) == (
        f'Bad option: "{flag}".\n{argument} asks for something that tensorbus does not offer yet.'
    )


def test_a_flag_that_asks_for_nothing_new_is_accepted() -> None:
    settings = parse_serve(
        [
            "--model-control-mode=NONE",
            "--rate-limit=Off",
            "--grpc-use-ssl=false",
            "--trace-config=level=OFF",
            "--trace-config=triton,file=/t",
            "--metrics-config=counter_latencies=true",
            "--model-load-retry-count=0",
            "--grpc-keepalive-time=7200000",
        ]
    )
    assert settings == parse_serve([])


def test_resources_are_read_as_the_rate_limiter_wants_them() -> None:
    settings = parse_serve(
        ["--rate-limit=execution_count", "--rate-limit-resource=R1:4", "--rate-limit-resource", "r2:2:1"]
    )
    assert settings.rate_limit == "execution_count"
    assert settings.rate_limit_resource == (("r1", 4, None), ("r2", 2, 1))
    for wrong in ("R1", "r:1:2:3"):
        assert refusal(f"--rate-limit-resource={wrong}") == (
            'Bad option: "--rate-limit-resource".\n--rate-limit-resource option format is '
            f"'<resource_name>:<count>:<device>' or '<resource_name>:<count>'. Got {wrong.lower()}"
        )
    assert refusal("--rate-limit-resource=r:x") == 'Bad option: "--rate-limit-resource".\nInvalid option value. Got x'
    assert refusal("--rate-limit=no") == 'Bad option: "--rate-limit".\ninvalid argument for --rate-limit'


def test_load_model_needs_explicit_control() -> None:
    text = "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
    assert refusal("--load-model=m") == text
    assert refusal("--load-model=m", "--model-control-mode=none") == text


def test_explicit_mode_begins_with_the_models_named():
    explicit = "--model-control-mode=Explicit"
    assert parse_serve([]).models_at_start is None
    assert parse_serve([explicit]).models_at_start == ()
    assert parse_serve([explicit, "--load-model=b", "--load-model=a", "--load-model=b"]).models_at_start == ("b", "a")
    assert parse_serve([explicit, "--load-model=*"]).models_at_start is None
    wildcard = "Wildcard model name '*' must be the ONLY startup model if specified at all."
    assert refusal(explicit, "--load-model=*", "--load-model=a") == wildcard


def test_both_cache_flags_are_refused() -> None:
    assert refusal("--cache-config=local,size=1", "--response-cache-byte-size=1") == (
        "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. "
        "Please provide one or the other."
    )


def test_a_pattern_is_a_regular_expression() -> None:
    assert parse_serve(["--http-header-forward-pattern=^x-.*"]).http_header_forward_pattern == "^x-.*"
    assert refusal("--grpc-header-forward-pattern=(x").startswith(
        "Bad option: \"--grpc-header-forward-pattern\".\ninvalid regular expression '(x': "
    )


@pytest.mark.parametrize(
    ("argv", "names", "place"),
    [
        (["--http-port=8001"], "HTTP requests and GRPC requests", "0.0.0.0:8001"),
        (["--http-port=8002"], "HTTP requests and metrics requests", "0.0.0.0:8002"),
        (["--grpc-port=8002"], "GRPC requests and metrics requests", "0.0.0.0:8002"),
    ],
)
def test_two_services_cannot_share_a_port(argv: list[str], names: str, place: str) -> None:
    assert refusal(*argv) == f"The server cannot listen to {names} at the same address and port {place}"


@pytest.mark.parametrize(
    "argv",
    [
        ["--http-port=8001", "--allow-grpc=false"],
        ["--http-port=8001", "--grpc-address=127.0.0.1"],
        ["--http-port=0", "--grpc-port=0", "--metrics-port=0"],
    ],
)
def test_services_that_do_not_meet_may_have_the_same_port(argv: list[str]) -> None:
    parse_serve(argv)


def test_the_cache_has_the_size_that_either_flag_says() -> None:
    assert parse_serve([]).response_cache_nbytes == 0
    assert parse_serve(["--cache-config=local,size=1048576"]).response_cache_nbytes == 1048576
    assert parse_serve(["--cache-config", "local,size=1", "--cache-config", "local,size=2"]).response_cache_nbytes == 2
    old = parse_serve(["--response-cache-byte-size=4096"])
    assert old.response_cache_nbytes == 4096
    assert old.deprecations == (
        "Warning: '--response-cache-byte-size' has been deprecated! This will default to the 'local' cache "
        "implementation with the provided byte size for its config. Please use '--cache-config' instead. "
        "The equivalent --cache-config CLI args would be: '--cache-config=local,size=4096'",
    )
    assert parse_serve(["--cache-directory=/opt/caches"]).ignored_flags == ("cache-directory",)


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["local"], "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got local"),
        (["size=1"], "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got size=1"),
        (["local,size"], "--cache-config option format is '<cache name>,<setting>=<value>'. Got local,size"),
        (["local,size="], "--cache-config option format is '<cache name>,<setting>=<value>'. Got local,size="),
        (["local,foo=1"], "Failed to initialize LocalCache: config didn't contain a valid 'size' field."),
        (["local,size=0"], "Failed to initialize LocalCache: 'size' must be a number of bytes above 0. Got 0"),
        (["local,size=-5"], "Failed to initialize LocalCache: 'size' must be a number of bytes above 0. Got -5"),
        (["local,size=1k"], "Failed to initialize LocalCache: 'size' must be a number of bytes above 0. Got 1k"),
        (["redis,host=x"], "unable to find 'libtritoncache_redis.so' for cache. The only cache is 'local'"),
        (
            ["local,size=1024", "redis,host=x"],
            "found multiple cache configurations, but only a single cache is currently supported",
        ),
    ],
)
def test_a_cache_that_cannot_be_is_refused(arguments: list[str], reason: str) -> None:
    assert reason in refusal(*(f"--cache-config={text}" for text in arguments))


def test_deprecated_flags_work_and_are_told() -> None:
    settings = parse_serve(["--strict-model-config=true", "--trace-rate=5"])
    assert settings.disable_auto_complete_config
    assert settings.deprecations == (
        "Warning: '--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead.",
        "Warning: '--trace-rate' has been deprecated and will be removed in future releases. "
        "Please use '--trace-config rate=<rate>' instead.",
    )
    assert not parse_serve(["--strict-model-config=false"]).disable_auto_complete_config
    overridden = parse_serve(["--strict-model-config=false", "--disable-auto-complete-config"])
    assert overridden.disable_auto_complete_config
    assert overridden.deprecations[-1].startswith("Warning: Overriding deprecated '--strict-model-config'")


def test_the_usage_names_every_flag_with_its_default() -> None:
    text = usage()
    assert text.startswith("Usage: tensorbus serve [options]\n")
    assert "--http-port <port>\n\tport to listen on; 0 takes a free one [8000]\n" in text
    assert [flag.name for flag in FLAGS if f"  --{flag.name}" not in text] == []


@pytest.mark.parametrize(("argument", "reason"), [("--nosuch", "unrecognized option '--nosuch'"), ("--help", "")])
def test_the_command_prints_usage_on_stderr_with_the_reason_last_and_exits_1(argument: str, reason: str) -> None:
    command = subprocess.run(
        [sys.executable, "-m", "tensorbus", "serve", argument], capture_output=True, text=True, timeout=60
    )
    assert (command.returncode, command.stdout) == (1, "")
    assert command.stderr.startswith("Usage: tensorbus serve [options]\n")
    assert command.stderr.rstrip("\n").splitlines()[-1] == (reason or "  --trace-log-frequency")


# --- from Python --------------------------------------------------------------------------------------------------


def test_values_from_python_are_those_of_the_flags() -> None:
    settings = from_values(
        {
            "model_repository": ["/a", "/b=c"],
            "http_port": 0,
            "log_info": False,
            "disable_auto_complete_config": True,
            "reload": False,
            "load_model": ("m",),
            "model_control_mode": "EXPLICIT",
            "backend_config": [BackendSetting("python", "shm-default-byte-size", "1048576"), "key=value"],
            "cache_directory": "/cache",
            "http_address": "127.0.0.1",
        }
    )
    assert settings.model_repository == ("/a", "/b=c")
    assert (settings.http_port, settings.log_info, settings.reload) == (0, False, False)
    assert settings.disable_auto_complete_config and settings.models_at_start == ("m",)
    assert settings.shm_default_byte_size == 1048576 and settings.backend_values("x") == {"key": "value"}
    assert (settings.cache_directory, settings.metrics_address) == ("/cache", "127.0.0.1")


@pytest.mark.parametrize(
    ("name", "value", "argument"),
    [
        ("http_port", 70000, "--http-port=70000"),
        ("http_port", True, "--http-port=true"),
        ("http_max_input_size", -1, "--http-max-input-size=-1"),
        ("strict_readiness", "perhaps", "--strict-readiness=perhaps"),
        ("model_control_mode", "push", "--model-control-mode=push"),
        ("load_model", ["m"], "--load-model=m"),
        ("allow_sagemaker", True, "--allow-sagemaker=true"),
        ("backend_config", ["python,stub-timeout-seconds=0"], "--backend-config=python,stub-timeout-seconds=0"),
    ],
)
def test_values_from_python_are_checked_as_the_flags_are(name: str, value: object, argument: str) -> None:
    with pytest.raises(UsageError) as refused:
        from_values({name: value})
    assert str(refused.value) == refusal(argument)


@pytest.mark.parametrize("name", ["no_such_thing", "help", "deprecations", "models_at_start"])
def test_a_setting_that_is_none_is_a_type_error(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        from_values({name: ()})
