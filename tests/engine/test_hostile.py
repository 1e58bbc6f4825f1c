"""Hostile clients wrap the honest engine: what they do not change stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from clientwise.attacks import Broken, Hostile, SignFlip
from clientwise.core.criteria import HONEST
from clientwise.core.types import LocalTraining, Task
from clientwise.engine.hostile import HostileEngine
from clientwise.testing import check_engine

pytestmark = pytest.mark.bits

MakeEngine = Callable[..., Any]


def task(engine: Any, **training: Any) -> Task:
    return Task(1, LocalTraining(batch_size=20, **training), engine.problem.loss, ())


def test_it_is_an_engine_as_any_other(make_engine: MakeEngine) -> None:
    check_engine(make_engine(hostile={1: Hostile(SignFlip())}))


def test_honest_clients_send_the_same_bits_beside_attackers(make_engine: MakeEngine) -> None:
    honest, engine = make_engine(), make_engine(hostile={1: Hostile(Broken())})
    (truth,) = honest.train(range(8), honest.initial_model, task(honest))
    (sent,) = engine.train(range(8), engine.initial_model, task(engine))
    assert sent.models.isnan().any(1).tolist() == [client == 1 for client in range(8)]
    assert torch.equal(sent.models[2:], truth.models[2:])
    assert engine.attributes[HONEST].tolist() == [1, 0, 1, 1, 1, 1, 1, 1]
    assert honest.attributes[HONEST].tolist() == [1] * 8


def test_idle_work_is_done_by_the_engine_inside(make_engine: MakeEngine) -> None:
    done: list[bool] = []
    engine = HostileEngine(make_engine(chunk_size=4), {})
    engine.idle_work = lambda: done.append(True)
    list(engine.train(range(8), engine.initial_model, task(engine)))
    assert done == [True, True]


def test_control_variates_follow_the_models_that_were_sent(make_engine: MakeEngine) -> None:
    honest, engine = make_engine(), make_engine(hostile={1: Hostile(SignFlip())})
    for one in (honest, engine):
        list(one.train(range(8), one.initial_model, task(one, control_variates=True)))
    ours, theirs = engine.state(), honest.state()
    torch.testing.assert_close(ours["variate 1"], -theirs["variate 1"], rtol=1e-3, atol=1e-4)
    assert torch.equal(ours["variate 2"], theirs["variate 2"])
