from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="session")
def promtool() -> str:
    found = shutil.which("promtool")
    if not found:
        pytest.skip("there is no promtool (Debian package prometheus)")
    return found


@pytest.fixture(scope="session")
def helm() -> str:
    found = shutil.which("helm")
    if not found:
        pytest.skip("there is no helm (https://helm.sh)")
    return found


@pytest.fixture(scope="session")
def kubectl() -> str:
    found = shutil.which("kubectl")
    if not found:
        pytest.skip("there is no kubectl")
    return found
