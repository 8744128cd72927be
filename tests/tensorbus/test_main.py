"""The command without, or with an unknown, first word."""

import pytest

from tensorbus.__main__ import main


@pytest.mark.parametrize("argument", ["-h", "--help"])
def test_help_names_what_the_command_can_do(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([argument]) == 0
    shown = capsys.readouterr().out
    assert all(f"tensorbus {word} " in shown for word in ("serve", "run-model", "broker", "gateway", "stub", "keys"))


@pytest.mark.parametrize("arguments", [[], ["--model-repository=models"], ["nonsense"]])
def test_without_a_word_that_it_knows_the_usage_goes_to_stderr(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and "tensorbus serve" in shown.err
