"""Checks that every part must pass.

The tests of clientwise run them on all of its parts. Run them on yours:

    from clientwise.testing import check_criterion

    def test_battery():
        check_criterion("battery", attributes={"battery": [0.9, 0.1, 0.5]})

A check raises an AssertionError that says what is wrong. It compares what a part declares (who
measures it, its largest value, what it needs) with what it does, so that a wrong declaration fails
here and not in the first round of a run.
"""

from .formula import (
    check_criterion,
    check_engine,
    check_rule,
    check_score,
)
from .surroundings import (
    check_attack,
    check_dataset,
    check_metric,
    check_model,
)

__all__ = [
    "check_attack",
    "check_criterion",
    "check_dataset",
    "check_engine",
    "check_metric",
    "check_model",
    "check_rule",
    "check_score",
]
