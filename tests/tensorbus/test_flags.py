import pytest

from tensorbus.command_line import UsageError, read
from tensorbus.flags import FLAGS, Flag

VALUES = {
    "boolean": "false",
    "port": "1",
    "none": "none",
    "default|ISO8601": "default",
    "[backend,]key=value": "b,k=v",
    "name:count[:device]": "r:1",
}


def sample(flag: Flag) -> str:
    """Some value that the flag takes."""
    for text in (VALUES.get(flag.shape, "4"), "false", "none", "off", "b,k=v", "k=v"):
        try:
            assert flag.read is not None
            flag.read(text)
            return text
        except ValueError:
            continue
    raise AssertionError(flag.name)


TAKING_A_VALUE = [flag for flag in FLAGS if flag.read is not None]


@pytest.mark.parametrize("flag", TAKING_A_VALUE, ids=lambda flag: flag.name)
def test_each_flag_takes_its_value_in_both_forms(flag: Flag) -> None:
    text = sample(flag)
    (one,) = read([f"--{flag.name}={text}"])
    (other,) = read([f"--{flag.name}", text])
    assert one == other
    assert (one.flag, one.text) == (flag, text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("On", True), ("1", True), ("false", False), ("off", False), ("0", False)],
)
def test_booleans_are_read_in_any_case(text: str, value: bool) -> None:
    assert read([f"--allow-http={text}"])[0].value is value


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("--allow-http=maybe", 'Bad option: "--allow-http".\ninvalid value for bool option: maybe'),
        ("--allow-http=", 'Bad option: "--allow-http".\ninvalid value for bool option: '),
        ("--http-port=abc", 'Bad option: "--http-port".\nInvalid option value. Got abc'),
        ("--http-port=80_0", 'Bad option: "--http-port".\nInvalid option value. Got 80_0'),
        ("--http-port=65536", 'Bad option: "--http-port".\nProvided option value is out of bound. Got 65536'),
        ("--grpc-port=-1", 'Bad option: "--grpc-port".\nProvided option value is out of bound. Got -1'),
        (
            "--exit-timeout-secs=" + "9" * 5000,
            'Bad option: "--exit-timeout-secs".\nProvided option value is out of bound. Got ' + "9" * 5000,
        ),
        ("--log-format=iso8601", 'Bad option: "--log-format".\ninvalid argument for --log-format'),
        ("--log-verbose=maybe", 'Bad option: "--log-verbose".\nInvalid option value. Got maybe'),
        (
            "--http-max-input-size=0",
            'Bad option: "--http-max-input-size".\nError: --http-max-input-size must be greater than 0.',
        ),
        (
            "--model-control-mode=foo",
            'Bad option: "--model-control-mode".\ninvalid argument for --model-control-mode',
        ),
        (
            "--grpc-infer-thread-count=1",
            'Bad option: "--grpc-infer-thread-count".\n'
            "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.",
        ),
        (
            "--backend-config=foo",
            'Bad option: "--backend-config".\n'
            "--backend-config option format is '<backend name>,<setting>=<value>'. Got foo",
        ),
        (
            "--backend-config=,a=b",
            'Bad option: "--backend-config".\nNo backend specified. --backend-config option format is '
            "<backend name>,<setting>=<value> or <setting>=<value>. Got ,a=b",
        ),
        (
            "--metrics-config=a,b=c",
            'Bad option: "--metrics-config".\n--metrics-config option format is <setting>=<value>. Got a,b=c',
        ),
        ("--nosuch=1", "unrecognized option '--nosuch=1'"),
        ("--http-por=1", "unrecognized option '--http-por=1'"),
        ("--http-port", "option '--http-port' requires an argument"),
        ("--disable-auto-complete-config=true", "option '--disable-auto-complete-config' doesn't allow an argument"),
        ("stray", "Unexpected argument: stray"),
        ("-h", "Unexpected argument: -h"),
        ("--help", ""),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(argument: str, reason: str) -> None:
    with pytest.raises(UsageError) as refusal:
        read([argument])
    assert str(refusal.value) == reason


def test_the_argument_behind_a_flag_is_its_value_whatever_it_looks_like() -> None:
    assert [(one.flag.name, one.value) for one in read(["--id", "--http-port", "--log-verbose", "-1"])] == [
        ("id", "--http-port"),
        ("log-verbose", 0),
    ]


@pytest.mark.parametrize(("text", "level"), [("true", 1), ("False", 0), ("3", 3), ("-2", 0)])
def test_verbosity_is_a_number_or_a_boolean(text: str, level: int) -> None:
    assert read([f"--log-verbose={text}"])[0].value == level
