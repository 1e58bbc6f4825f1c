from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clientwise.core.method import Method, Plan
from clientwise.core.round import first_state, run_round
from clientwise.core.rules import RULES, Ruled, State, median
from clientwise.core.types import LocalTraining
from clientwise.engine.local import LocalEngine


@given(seed=st.integers(0, 1000), copies=st.lists(st.integers(0, 4), min_size=2, max_size=6).filter(any))
def test_a_weight_counts_as_so_many_equal_clients(seed: int, copies: list[int]) -> None:
    updates = torch.randn(len(copies), 9, generator=torch.Generator().manual_seed(seed))
    weights = torch.tensor(copies, dtype=torch.float64) / sum(copies)
    repeated = updates.repeat_interleave(torch.tensor(copies), 0)
    plain = torch.from_numpy(numpy.median(repeated.numpy(), axis=0))
    torch.testing.assert_close(median(updates, weights).update, plain)


def test_a_rule_other_than_the_mean_sees_the_whole_matrix(make_engine: Callable[..., LocalEngine]) -> None:
    seen: list[tuple[int, ...]] = []

    @RULES.register("first", RULES.declared("median"))
    def first(updates: torch.Tensor, weights: torch.Tensor, state: State) -> Ruled:
        """The first client's update."""
        seen.append(tuple(updates.shape))
        return Ruled(updates[0], weights)

    engine = make_engine(chunk_size=3)
    training = LocalTraining(epochs=1, batch_size=20, learning_rate=0.1)
    method = Method(rule=first, training=training)
    state = first_state(engine.initial_model, method, engine)
    after, record = run_round(state, method, Plan(seed=1, cohort_size=8), engine)
    assert seen == [(8, 650)]
    alone = Method(training=training)
    only, _ = run_round(state, alone, Plan(seed=1, cohort_size=8), _Only(engine, record.client_ids[0]))
    torch.testing.assert_close(after.model, only.model)


class _Only:
    """An engine of which one client answers."""

    def __init__(self, engine: LocalEngine, client: int) -> None:
        self._engine, self._client = engine, client

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def train(self, client_ids, model, task):
        return self._engine.train([self._client], model, task)


def test_the_median_of_a_round_shrugs_off_a_liar(make_engine: Callable[..., LocalEngine]) -> None:
    from clientwise.attacks import Hostile, SignFlip

    training = LocalTraining(epochs=1, batch_size=20, learning_rate=0.1)
    plain, robust = Method(training=training), Method(rule=median, training=training)
    accuracies = []
    for method in (plain, robust):
        engine = make_engine(hostile={0: Hostile(SignFlip(strength=50.0))})
        state = first_state(engine.initial_model, method, engine)
        for _ in range(10):
            state, record = run_round(state, method, Plan(seed=1, cohort_size=8), engine)
        assert record.report is not None
        accuracies.append(float(record.report.overall()[0]))
    assert accuracies[1] > accuracies[0] + 0.2


def test_a_rule_is_named_in_toml(tiny: dict[str, object], tmp_path) -> None:
    import clientwise as cw

    tiny["methods"] = [{"name": "FedAvg"}, {"name": "median", "rule": "median"}]
    run = cw.Run(cw.run(tiny, tmp_path / "run"))
    assert run.finished
    with pytest.raises(cw.ClientwiseError, match=r"methods\[1\]\.rule: unknown rule 'medain'; did you mean 'median'"):
        cw.load(tiny | {"methods": [{"name": "FedAvg"}, {"name": "median", "rule": "medain"}]})
