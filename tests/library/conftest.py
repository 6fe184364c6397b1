"""The folder of results is a temporary one, and nothing of a test stays in the registry."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcps.registry import components


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPCPS_RESULTS", raising=False)
    monkeypatch.setattr(components, "_session", components._session)
    token = components._active.set(None)
    yield
    components._active.reset(token)
