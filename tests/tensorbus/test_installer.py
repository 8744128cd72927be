from __future__ import annotations

import pytest

from tensorbus.installer import NoInstaller, find_python, install_apart, make_environment, wished_version

UV = ["/bin/uv"]


def test_packages_are_installed_into_a_directory_of_their_own_and_never_compiled() -> None:
    (command,) = install_apart(UV, "/env/bin/python", True, ["pyzmq>=25"], "/cache/it", "/cache/scratch")
    assert command[:4] == ["/bin/uv", "pip", "install", "--python"]
    options = ["--target", "/cache/it", "--no-deps", "--only-binary", ":all:", "pyzmq>=25"]
    assert command[4:] == ["/env/bin/python", *options]
    (command,) = install_apart([], "/env/bin/python", True, ["pyzmq>=25"], "/cache/it", "/cache/scratch")
    assert command == ["/env/bin/python", "-m", "pip", "install", *options]


def test_without_uv_and_pip_a_pip_of_that_python_is_made() -> None:
    make, install = install_apart([], "/env/bin/python", False, ["msgpack>=1.0"], "/cache/it", "/cache/scratch")
    assert make == ["/env/bin/python", "-m", "venv", "/cache/scratch"]
    assert install[:4] == ["/cache/scratch/bin/python", "-m", "pip", "install"]


@pytest.mark.parametrize("uv", [UV, []])
def test_an_environment_is_made_and_then_filled(uv: list[str]) -> None:
    make, fill = make_environment(uv, "/usr/bin/python3", "requirements.txt", "/cache/env")
    assert make[-1] == "/cache/env" and "/usr/bin/python3" in make
    assert "/cache/env/bin/python" in fill and fill[-2:] == ["-r", "requirements.txt"]


@pytest.mark.parametrize(
    "text, version", [("3.10\n", "3.10"), ("# ours\n\n3.10.13  # for torch\n3.9\n", "3.10.13"), ("", ""), ("#\n", "")]
)
def test_the_first_line_says_which_python_is_wished(text: str, version: str) -> None:
    assert wished_version(text) == version


@pytest.mark.parametrize("version", ["3.99", "pypy3.10", "../bin/evil"])
def test_a_python_that_is_not_there_is_told(version: str) -> None:
    with pytest.raises(NoInstaller, match=version):
        find_python(version)
