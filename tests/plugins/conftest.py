"""Tests load plugins into this process."""

import pytest

from hpcps.registry import activate, installed


@pytest.fixture(autouse=True)
def no_plugins():
    """What one test loads is unknown to the next."""
    yield
    activate(installed())
