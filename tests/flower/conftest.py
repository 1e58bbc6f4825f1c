"""Time for tests of the Flower engine.

It passes when the engine sleeps, and costs no real seconds.
"""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from grid import FakeClock

from clientwise.hosts.flower import engine, exchange


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The engine's clock."""
    fake = FakeClock()
    for module in (engine, exchange):
        monkeypatch.setattr(module, "time", fake)
    return fake
