"""The shipped experiments: every one loads in every size, has the papers' network, and its quick size shows what it shows.

The last is `make test-experiments`: it needs the data folder and a quarter of an hour.
"""

from __future__ import annotations

import os
import re
import statistics
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clientwise as cw
from clientwise.data.folder import DataError
from clientwise.experiment.schema import make
from clientwise.models.networks import MODELS

FOLDER = Path(__file__).parents[1] / "experiments"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}
PAPERS = {
    "p1-mnist-iid",
    "p1-mnist-shards",
    "p1-celeba",
    "p2-digits-by-writer",
    "p3-1a",
    "p3-1b",
    "p3-1c",
    "p3-1d",
    "p3-2-cifar10",
    "p3-3a-malaria",
    "p3-3b-cells",
}
SIZES = [
    (name, preset)
    for name, path in FILES.items()
    for preset in [None, *tomllib.loads(path.read_text(encoding="utf-8")).get("presets", {})]
]


def test_every_experiment_of_the_papers_is_there_and_says_what_it_is() -> None:
    assert FILES.keys() >= PAPERS
    for name, path in FILES.items():
        text = path.read_text(encoding="utf-8")
        header = text.split("\nname = ")[0]
        assert (name, "quick") in SIZES
        assert all(line.startswith("#") for line in header.strip().splitlines())
        assert re.search(r"Data: \w+ \(\d+ MB\)", header.replace("\n# ", " ")), "what it needs, and how large it is"
        if name in PAPERS:
            assert all(word in header for word in ("The paper:", "Published", "Here:"))


@pytest.mark.parametrize(("name", "preset"), SIZES)
def test_every_size_of_every_experiment_loads(name: str, preset: str | None) -> None:
    experiment = cw.load(FILES[name], preset=preset)
    assert experiment.name == (f"{name}-{preset}" if preset else name)
    experiment.build_methods()
    assert tomllib.loads(experiment.to_toml()) == experiment.to_dict()


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "parameters"),
    [
        ("p1-mnist-iid", (1, 28, 28), 10, 1_663_370),
        ("p1-mnist-shards", (1, 28, 28), 10, 1_663_370),
        ("p1-celeba", (3, 64, 64), 1, 8_409_025),
        ("p2-digits-by-writer", (1, 28, 28), 62, 6_603_710),
        *((name, (1, 28, 28), 10, 1_199_882) for name in ("p3-1a", "p3-1b", "p3-1c", "q-adafed-controls")),
        ("p3-1d", (200,), 1, 706_625),
        ("p3-2-cifar10", (1280,), 10, 2_002_058),
        ("p3-3a-malaria", (3, 64, 64), 1, 1_335_841),
        ("p3-3b-cells", (3, 256, 256), 256 * 256, 3_727_105),
    ],
)
def test_the_networks_are_the_papers(name: str, shape: tuple[int, ...], outputs: int, parameters: int) -> None:
    module = make(MODELS, cw.load(FILES[name]).model)(shape, outputs)
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters
