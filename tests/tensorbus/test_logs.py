import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tensorbus.logs import LogSettings, configure, current_settings, log_line, log_table


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def messages(text: str) -> list[str]:
    """What stands behind the preamble."""
    return [line.partition("] ")[2] for line in text.splitlines()]


def test_a_line_has_tritons_default_shape(capfd: pytest.CaptureFixture[str]) -> None:
    configure(LogSettings())
    structlog.get_logger().info("loaded", model="m", version=1)
    out, err = capfd.readouterr()
    assert re.fullmatch(
        rf'I\d{{4}} \d\d:\d\d:\d\d\.\d{{6}} {os.getpid()} test_logs\.py:\d+\] "loaded" model=m version=1\n',
        out,
    )
    assert err == ""


def test_a_line_has_the_iso8601_shape_as_soon_as_the_format_is_switched(capfd: pytest.CaptureFixture[str]) -> None:
    settings = LogSettings()
    configure(settings)
    log = structlog.get_logger()
    log.info("before")
    settings.log_format = "ISO8601"
    log.info("after")
    after = capfd.readouterr().out.splitlines()[1]
    assert re.fullmatch(rf'\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ I {os.getpid()} test_logs\.py:\d+\] "after"', after)


def test_lines_of_models_follow_the_settings_as_they_are_now(capfd: pytest.CaptureFixture[str]) -> None:
    configure(LogSettings())
    log_line("V", "model.py", 1, "not yet")
    current_settings().log_verbose_level = 1
    log_line("V", "model.py", 2, "shown")
    current_settings().log_info = False
    log_line("I", "model.py", 3, "no more")
    assert messages(capfd.readouterr().out) == ['"shown"']


def test_information_goes_to_stdout_and_warnings_and_errors_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    configure(LogSettings())
    log = structlog.get_logger()
    log.info("i")
    log.warning("w")
    log.error("e")
    out, err = capfd.readouterr()
    assert [line[0] for line in out.splitlines()] == ["I"]
    assert [line[0] for line in err.splitlines()] == ["W", "E"]


def test_a_log_file_takes_every_line_behind_what_it_holds(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("earlier\n")
    log = configure(LogSettings(log_file=str(file)))
    structlog.get_logger().info("i")
    structlog.get_logger().error("e")
    log.close()
    assert capfd.readouterr() == ("", "")
    assert [line[0] for line in file.read_text().splitlines()] == ["e", "I", "E"]


def test_a_log_file_that_cannot_be_opened_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        configure(LogSettings(log_file=str(tmp_path / "absent" / "log")))


def test_levels_are_switched_while_running(capfd: pytest.CaptureFixture[str]) -> None:
    settings = LogSettings(log_info=False, log_warning=False, log_error=False)
    configure(settings)
    log = structlog.get_logger().bind(model="m")
    for _ in range(2):
        log.info("i")
        log.warning("w")
        log.error("e")
        log.exception("x")
        settings.log_info = settings.log_warning = settings.log_error = True
    out, err = capfd.readouterr()
    assert (len(out.splitlines()), len(err.splitlines())) == (1, 3)


def test_no_text_can_forge_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    configure(LogSettings())
    forged = 'x"\nE1129 20:36:28.129911 1 core.py:1] "forged \x1b[2J \ud800'
    structlog.get_logger().info(forged, cause=forged)
    log_line("I", "dir/mo\ndel.py", 1, forged)
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("I") and "\x1b" not in line for line in lines)
    assert ' cause="x\\"\\nE1129' in lines[0]


def test_escaping_can_be_switched_off(capfd: pytest.CaptureFixture[str]) -> None:
    configure(LogSettings(), escape=False)
    log_line("I", "model.py", 1, 'a "b"\nc')
    assert capfd.readouterr().out.endswith('model.py:1] a "b"\nc\n')


def test_a_models_line_keeps_the_models_file_and_line(capfd: pytest.CaptureFixture[str]) -> None:
    configure(LogSettings())
    log_line("I", "/models/m/1/model.py", 12, 'hello "q" \n é')
    log_line("W", "model.py", 13, "careful")
    log_line("V", "model.py", 14, "not shown")
    out, err = capfd.readouterr()
    assert out.endswith(' model.py:12] "hello \\"q\\" \\n é"\n')
    assert err.startswith("W") and err.endswith(' model.py:13] "careful"\n')


def test_a_table_is_printed_as_it_is_below_an_empty_heading(capfd: pytest.CaptureFixture[str]) -> None:
    settings = LogSettings()
    configure(settings)
    log_table("+--+\n|  |\n+--+\n")
    assert re.fullmatch(r"I.* test_logs\.py:\d+\] \n\+--\+\n\|  \|\n\+--\+\n\n", capfd.readouterr().out)
    settings.log_info = False
    log_table("+--+\n")
    assert capfd.readouterr().out == ""


def test_an_exception_brings_its_traceback_in_the_same_line(capfd: pytest.CaptureFixture[str]) -> None:
    configure(LogSettings())
    log = structlog.get_logger()
    try:
        raise KeyError("lost")
    except KeyError as error:
        log.exception("first", model="a")
        kept = error
    log.warning("second", model="b", exc_info=kept)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2
    assert '"first\\nTraceback (most recent call last):\\n' in lines[0]
    assert lines[0].endswith("KeyError: 'lost'\" model=a") and lines[1].endswith("KeyError: 'lost'\" model=b")


def test_ten_thousand_failures_of_a_model_are_a_few_lines_and_do_not_hide_another_model(
    capfd: pytest.CaptureFixture[str],
) -> None:
    configure(LogSettings())
    log = structlog.get_logger()
    bound = log.bind(model="bound")
    for i in range(10_000):
        log.warning("inference failed", model="flood", cause=f"bad input {i}")
        bound.error("inference failed", cause=f"bad input {i}")
    log.warning("inference failed", model="other")
    lines = capfd.readouterr().err.splitlines()
    # One burst a second; how many seconds it takes is the machine's affair.
    assert 20 <= len([line for line in lines if "model=flood" in line or "model=bound" in line]) < 500
    assert len([line for line in lines if "model=other" in line]) == 1


def test_the_first_line_after_a_flood_says_how_many_are_missing(capfd: pytest.CaptureFixture[str]) -> None:
    log = configure(LogSettings())
    flooded = structlog.get_logger().bind(model="m")
    flooded.warning("inference failed")
    log.rate_limit._windows["inference failed", "m"].turned_away = 7
    flooded.warning("inference failed")
    assert messages(capfd.readouterr().err) == [
        '"inference failed" model=m',
        '"inference failed" model=m suppressed=7',
    ]


def test_errors_of_libraries_come_in_the_same_shape(capfd: pytest.CaptureFixture[str]) -> None:
    configure(LogSettings())
    logging.getLogger("asyncio").error("Task %s was lost", "t")
    logging.getLogger("asyncio").info("not worth a line")
    out, err = capfd.readouterr()
    assert re.fullmatch(r'E.* test_logs\.py:\d+\] "asyncio: Task t was lost"\n', err)
    assert out == ""


def test_a_reader_that_went_away_does_not_stop_the_server(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    log = configure(LogSettings(log_file=str(tmp_path / "log")))
    os.close(reader)
    structlog.get_logger().info("to nobody")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    structlog.get_logger().info("to the next")
    log.close()
    with open(reader) as lines:
        assert messages(lines.read()) == ['"to the next"']
