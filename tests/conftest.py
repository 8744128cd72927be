"""For all tests: hypothesis judges what is computed, not how fast a busy machine does it; a test's log is its own."""

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def _log_of_its_own() -> Iterator[None]:
    """A server in the process of the tests configures structlog for good: the next test starts without."""
    yield
    structlog.reset_defaults()
