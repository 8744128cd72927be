import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from tensorbus import service_settings
from tensorbus.__main__ import main
from tensorbus.command_line import UsageError
from tensorbus.curve import make_keys
from tensorbus.flag_values import BackendSetting
from tensorbus.flags import FLAGS
from tensorbus.service_settings import COMMANDS, FLAGS_OF, parse

DOCS = Path(__file__).resolve().parents[2] / "docs" / "services.md"


def refusal(command: str, *argv: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(UsageError) as error:
        parse(command, argv, environ or {})
    return str(error.value)


def changed(settings: Any) -> dict[str, Any]:
    """What is not as it is without any argument."""
    command = next(command for command, kind in COMMANDS.items() if kind is type(settings))
    defaults = parse(command, [], {})
    return {
        each.name: getattr(settings, each.name)
        for each in dataclasses.fields(settings)
        if getattr(settings, each.name) != getattr(defaults, each.name)
    }


def test_the_defaults_are_those_of_one_host() -> None:
    broker, gateway, stub = (parse(command, [], {}) for command in ("broker", "gateway", "stub"))
    assert broker.bind == gateway.broker == stub.broker == "tcp://127.0.0.1:8003"
    assert {one.cluster_id for one in (broker, gateway, stub)} == {"tensorbus"}
    assert {(one.metrics_address, one.metrics_port) for one in (broker, gateway, stub)} == {("0.0.0.0", 8002)}
    assert (broker.trust, gateway.trust, stub.trust) == (None, None, None)
    assert stub.model == ("*",) and stub.host_name and stub.model_repository == ()


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('http-port = 1\ngrpc-port = 2\nmetrics-port = 3\nallow-grpc = false\nid = "of the file"\n')
    environ = {"TENSORBUS_GRPC_PORT": "20", "TENSORBUS_METRICS_PORT": "30", "TENSORBUS_CONFIG_FILE": str(file)}
    settings = parse("gateway", ["--metrics-port=300"], environ)
    assert changed(settings) == {
        "http_port": 1,
        "grpc_port": 20,
        "metrics_port": 300,
        "allow_grpc": False,
        "id": "of the file",
    }
    other = tmp_path / "other.toml"
    other.write_text("http-port = 1000")
    assert parse("gateway", [f"--config-file={other}"], environ).http_port == 1000


def test_flags_that_may_be_given_several_times_replace_those_of_less_weight(tmp_path: Path) -> None:
    file = tmp_path / "stub.toml"
    file.write_text('model = ["a*", "b"]\nmodel-repository = "/models"\n')
    config = f"--config-file={file}"
    assert changed(parse("stub", [config], {})) == {"model": ("a*", "b"), "model_repository": ("/models",)}
    assert parse("stub", [config], {"TENSORBUS_MODEL": "c d"}).model == ("c", "d")
    assert parse("stub", [config, "--model=e", "--model=f"], {"TENSORBUS_MODEL": "c d"}).model == ("e", "f")


def test_every_type_of_toml_that_a_flag_takes(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        'model-repository = ["/a b", "/c"]\ndisable-auto-complete-config = true\nreload = false\n'
        'backend-config = ["python,shm-default-byte-size=4194304", "x=y"]\nmodel-load-thread-count = 2\n'
    )
    settings = parse("broker", ["--config-file", str(file)], {})
    assert changed(settings) == {
        "model_repository": ("/a b", "/c"),
        "disable_auto_complete_config": True,
        "backend_config": (
            BackendSetting("python", "shm-default-byte-size", "4194304"),
            BackendSetting("", "x", "y"),
        ),
        "model_load_thread_count": 2,
    }
    assert parse("broker", [], {"TENSORBUS_RELOAD": "1"}).reload is True


@pytest.mark.parametrize(
    "text, reason",
    [
        ("http-prot = 1", "'http-prot' in FILE is no setting of tensorbus gateway"),
        ("http_port = 1", "'http_port' in FILE is no setting of tensorbus gateway"),
        ("bind = 'tcp://127.0.0.1:1'", "'bind' in FILE is no setting of tensorbus gateway"),
        ("config-file = 'other'", "'config-file' in FILE is no setting of tensorbus gateway"),
        ("help = true", "'help' in FILE is no setting of tensorbus gateway"),
        ("http-port = 'x'", "'http-port' in FILE: Invalid option value. Got x"),
        ("http-port = 70000", "'http-port' in FILE: Provided option value is out of bound. Got 70000"),
        ("http-port = [1]", "'http-port' in FILE: a list is not expected"),
        ("http-port = 1979-05-27", "'http-port' in FILE: a value of this type is not expected"),
        ("[http]\nport = 1", "'http' in FILE is no setting of tensorbus gateway"),
        ("broker = 'broker:8003'", "'broker' in FILE: 'broker:8003' is not of the form tcp://HOST:PORT"),
        ("nonsense", "the config file FILE is not TOML: "),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    assert refusal("gateway", f"--config-file={file}").startswith(reason.replace("FILE", str(file)))


def test_each_flag_of_a_whole_server_is_one_of_a_service_too() -> None:
    known = {flag.name for flags in FLAGS_OF.values() for flag in flags}
    assert {flag.name for flag in FLAGS} - known == {"exit-on-error"}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = f"cannot read the config file {tmp_path}/none: No such file or directory"
    assert refusal("gateway", f"--config-file={tmp_path}/none") == missing
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "is not TOML" in refusal("gateway", f"--config-file={tmp_path}/binary")


def test_what_is_wrong_in_the_environment_is_named() -> None:
    environ = {"TENSORBUS_HTTP_PORT": "tcp://10.0.0.1:80"}
    assert refusal("gateway", environ=environ) == "TENSORBUS_HTTP_PORT: Invalid option value. Got tcp://10.0.0.1:80"
    assert parse("broker", [], {**environ, "TENSORBUS_OTHER": "x", "TENSORBUS_HELP": "1"}).bind.endswith(":8003")


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_of_other_services_are_unknown(command: str) -> None:
    known = {flag.name for flag in FLAGS_OF[COMMANDS[command]]}
    others = {flag.name for kind in COMMANDS.values() for flag in FLAGS_OF[kind]} - known
    assert others
    for name in others:
        assert refusal(command, f"--{name}=1") == f"unrecognized option '--{name}=1'"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_has_its_field_or_no_effect(command: str) -> None:
    kind = COMMANDS[command]
    fields = {each.name for each in dataclasses.fields(kind)}
    without = {
        flag.name
        for flag in FLAGS_OF[kind]
        if flag.name.replace("-", "_") not in fields and not flag.ignored and flag.inert is None
    }
    others = {"config-file", "curve-key", "curve-authorized", "curve-broker-key", "model-store", "strict-model-config"}
    assert without <= {"help", *others}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_its_flags_and_defaults(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 1  # as serve does
    shown = capsys.readouterr().err
    assert shown.startswith(f"Usage: tensorbus {command} [options]\n")
    for flag in FLAGS_OF[COMMANDS[command]]:
        assert not flag.help or f"  --{flag.name}" in shown
    assert "tcp://127.0.0.1:8003]" in shown


# --- trust --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bind", ["tcp://0.0.0.0:8003", "tcp://*:8003", "tcp://[::]:8003", "tcp://10.0.0.1:8003"])
def test_a_broker_that_others_can_reach_needs_keys(bind: str, tmp_path: Path) -> None:
    reason = f'Bad option: "--bind".\nOther hosts can reach {bind}: that requires --curve-key and --curve-authorized'
    assert refusal("broker", f"--bind={bind}").startswith(reason)
    assert refusal("broker", environ={"TENSORBUS_BIND": bind}).startswith(reason)
    make_keys(str(tmp_path))
    keys = [f"--curve-key={tmp_path}/broker.key", f"--curve-authorized={tmp_path}/service.pub"]
    settings = parse("broker", [f"--bind={bind}", *keys], {})
    assert settings.bind == bind and settings.trust.authorized == f"{tmp_path}/service.pub"


def test_keys_of_both_sides_come_from_files_and_fit(tmp_path: Path) -> None:
    make_keys(str(tmp_path))
    broker = parse(
        "broker", [], {"TENSORBUS_CURVE_KEY": f"{tmp_path}/broker.key", "TENSORBUS_CURVE_AUTHORIZED": f"{tmp_path}"}
    )
    for command in ("gateway", "stub"):
        own = parse(command, [f"--curve-key={tmp_path}/service.key", f"--curve-broker-key={tmp_path}/broker.pub"], {})
        assert own.trust.broker == broker.trust.public


def test_half_of_the_keys_is_refused(tmp_path: Path) -> None:
    make_keys(str(tmp_path))
    assert refusal("broker", f"--curve-key={tmp_path}/broker.key") == (
        "Error: --curve-key requires --curve-authorized as well."
    )
    assert refusal("gateway", f"--curve-broker-key={tmp_path}/broker.pub") == (
        "Error: --curve-broker-key requires --curve-key as well."
    )


def test_a_key_file_that_is_none_is_named(tmp_path: Path) -> None:
    make_keys(str(tmp_path))
    said = refusal("stub", f"--curve-key={tmp_path}/service.pub", f"--curve-broker-key={tmp_path}/broker.pub")
    assert said == f"Error: there is no secret key in {tmp_path}/service.pub"


# --- the page -----------------------------------------------------------------------------------------------------


def settings_table(command: str) -> list[str]:
    """The lines of the page: what a service takes besides the flags of serve."""
    kind = COMMANDS[command]
    theirs = {flag.name: flag for flag in FLAGS}
    lines = []
    for flag in FLAGS_OF[kind]:
        if flag != theirs.get(flag.name) and flag.name != "metrics-address":
            default = getattr(kind, flag.name.replace("-", "_"), "")
            shown = " ".join(default) if isinstance(default, tuple) else str(default)
            lines.append(f"| `--{flag.name}` | {f'`{shown}`' if shown else ''} | {flag.help} |")
    return lines


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_shows_the_settings_as_they_are(command: str) -> None:
    (section,) = re.findall(rf"^### `tensorbus {command}`\n(.*?)(?=^##)", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    assert re.findall(r"^\| `--.*$", section, re.MULTILINE) == settings_table(command)


def test_usage_and_commands_agree() -> None:
    assert all(service_settings.usage(command) for command in COMMANDS)
