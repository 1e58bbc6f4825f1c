"""Time for tests of the Flower engine.

It passes when the engine sleeps, and costs no real seconds.
"""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from grid import FakeClock

from clientwise.hosts.flower import engine


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The engine's clock."""
    fake = FakeClock()
    monkeypatch.setattr(engine, "time", fake)
    return fake
