"""Every option of every part at the ends of what its type allows: `check` refuses it, or it runs."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import guarded
import pytest
from annotated_types import Ge, Gt, Le, Lt

from clientwise.experiment.reference import KINDS
from clientwise.registry import Option
from fire_share import EVERY

# How a part of each kind is named in a method, and what else it takes there.
METHOD = {
    "criteria": 'criteria=["dataset_size",{part}]',
    "scores": 'criteria=["dataset_size","label_diversity"],score={part}',
    "normalisers": "normalise={part}",
    "evidence": "evidence={part}",
    "before": "before=[{part}]",
    "rules": "rule={part}",
    "adjustments": 'criteria=["dataset_size","label_diversity"],adjust={part}',
    "adapt_loss": "adapt_loss={part}",
    "server_steps": "server_step={part}",
}
TOP = {
    "partitions": "partition={part}",
    "models": "model={part}",
    "attacks": "hostile=[{{clients=2,attack={part}}}]",
}
REQUIRED = {"clients": 6, "of": "x", "counts": [[1] * 10] * 6, "values": {"dataset_size": 1.0}}


def ends(kind: Any) -> Iterator[object]:
    """The least and the largest values of a type of numbers; none of another."""
    if get_origin(kind) in (types.UnionType, typing.Union):
        for one in get_args(kind):
            yield from ends(one)
    elif get_origin(kind) is Annotated and (base := get_args(kind)[0]) in (int, float):
        tiny = 1 if base is int else 1e-300
        for mark in kind.__metadata__:
            match mark:
                case Ge(low):
                    yield low
                case Gt(low):
                    yield low + tiny
                case Le(high):
                    yield high
                case Lt(high):
                    yield high - 1 if base is int else high * (1 - 1e-9)


def cases() -> Iterator[list[str]]:
    """Changes of a small experiment."""
    for plural, registry in KINDS.items():
        for name in registry if plural in METHOD or plural in TOP else ():
            for option in registry.options(name):
                for value in ends(option.type):
                    yield _changed(plural, name, registry.options(name), {option.name: value})


def _changed(
    plural: str, name: str, options: tuple[Option, ...], given: dict[str, object]
) -> list[str]:
    required = {option.name: REQUIRED.get(option.name, 1) for option in options if option.required}
    part = ",".join(
        f"{key}={json.dumps(value)}" for key, value in {"name": name, **required, **given}.items()
    )
    if plural in TOP:
        return [TOP[plural].format(part=f"{{{part}}}")]
    return ['methods=[{name="a",' + METHOD[plural].format(part=f"{{{part}}}") + "}]"]


@pytest.mark.fire
@pytest.mark.timeout(0)
def test_every_option_at_its_ends() -> None:
    assert set(METHOD) | set(TOP) <= set(KINDS), sorted(KINDS)
    some = list(cases())[::EVERY]
    assert guarded.faults("attempts:run", [json.dumps(["rounds=2", *one]) for one in some]) == {}
