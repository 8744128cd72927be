from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="session")
def promtool() -> str:
    found = shutil.which("promtool")
    if not found:
        pytest.skip("there is no promtool (Debian package prometheus)")
    return found
