"""Tables and figures that `lab/default/make_default.py` makes: from the raw results, and current."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest

import clientwise as cw
from clientwise.experiment.config_file import read_config
from clientwise.experiment.matrix.grid import Matrix, load_matrix, make
from clientwise.experiment.matrix.runs import run_matrix
from clientwise.report.standings import read_results
from recorded import curve, last

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "lab" / "default" / "make_default.py"
MOST_OFF = 0.06  # the last bits differ between processors, and rounds enlarge them
METHODS = [
    "FedAvg",
    "Recommended",
    "KnowsHonestTuned",
    "ServerOnly",
]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_default", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Several tests read the same tables, of which each takes a part of a second.
    for name in ("read_raw", "make_table"):
        setattr(module, name, cache(getattr(module, name)))
    return module


def config(seeds: list[int], federations: dict[str, Any], methods: list[Any]) -> dict[str, Any]:
    backdoor = {"attack": {"name": "pixel_backdoor", "target": 3}}
    flip = {"attack": {"name": "sign_flip", "strength": 5.0}}
    return {
        "name": "claim",
        "rounds": 2,
        "seeds": seeds,
        "device": "cpu",
        "data": "digits",
        "partition": {"name": "iid", "clients": 5},
        "model": "linear",
        "server_set": {"fraction": 0.3, "report_fraction": 0.5},
        "methods": methods,
        "matrix": {
            "attacks": {"flip": flip, "door": backdoor},
            "shares": [0.4],
            "data": federations,
        },
    }


@pytest.fixture(scope="module")
def parts(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two federations, each a run of its own."""
    folder = tmp_path_factory.mktemp("parts")
    dirichlet = {"name": "dirichlet", "clients": 6, "concentration": 1.0}
    first = config([1, 2], {"one": {}}, METHODS)
    second = config([1, 2], {"two": {"partition": dirichlet}}, METHODS)
    return [
        run_matrix(load_matrix(first), folder / "first"),
        run_matrix(load_matrix(second), folder / "second"),
    ]


def test_the_tables_of_the_pages_are_current(script: ModuleType) -> None:
    for page in script.PAGES:
        text = page.read_text(encoding="utf-8")
        assert script.MARKER.search(text), f"{page.name} has no table"
        assert script.with_tables(text) == text, "run `python lab/default/make_default.py`"


def test_the_figures_of_the_pages_are_current(script: ModuleType) -> None:
    for path, (raw, figure) in script.FIGURES.items():
        expected = figure(script.read_raw(raw)).numbers
        assert script.numbers_in(path) == expected, "run `python lab/default/make_default.py`"


def test_the_shipped_matrix_gives_what_its_figure_shows(script: ModuleType, tmp_path: Path) -> None:
    """One cell with one seed and the methods that are fast; the whole matrix takes minutes."""
    methods = ["FedAvg", "ServerTuning"]
    only = {"methods": methods, "seeds": [1]}
    file = ROOT / "lab" / "default" / "arena-quick.toml"
    matrix = make(*read_config(file, [], only), only)
    assert isinstance(matrix, Matrix)
    (cell,) = [cell for cell in matrix.cells if cell.column == "sign flip 40%"]
    run = cw.Run(cw.run(cell.experiment, tmp_path / "cell", progress=False))
    raw = script.read_raw("arena-quick")
    for method in methods:
        rows = raw[(raw["method"] == method) & (raw["seed"] == 1) & (raw["share"] == 0.4)]
        (recorded,) = rows.loc[rows["column"] == "sign flip", str(run.facts.rounds)]
        assert abs(last(run, "metric")[method] - recorded) < MOST_OFF, method


def test_a_wrong_number_in_a_page_is_noticed(script: ModuleType) -> None:
    text = script.PAGES[0].read_text(encoding="utf-8")
    block = script.MARKER.search(text)
    assert block is not None
    wrong = re.sub(r"\d\d\.\d", "12.3", block[0], count=1)
    assert wrong != block[0]
    assert script.with_tables(wrong) == block[0]


def test_the_raw_results_are_small(script: ModuleType) -> None:
    for path in script.RAW.glob("*.csv.gz"):
        assert path.stat().st_size < 5_000_000


def test_parts_of_a_matrix_are_collected_into_one_file(
    script: ModuleType, parts: list[Path], tmp_path: Path
) -> None:
    script.collect([*parts, parts[0]], tmp_path)
    raw = script.read_raw("claim", tmp_path)
    assert len(raw) == 2 * 3 * len(METHODS) * 2, "a part that is given twice counts once"
    results = script.results_of(raw)
    assert [one.name for one in results.federations] == ["one", "two"]
    assert results.unavailable == {"KnowsHonestTuned"}
    for folder, one in zip(parts, results.federations, strict=True):
        theirs = read_results(folder)
        (expected,) = theirs.federations
        order = [theirs.methods.index(method) for method in results.methods]
        columns = [expected.columns.index(column) for column in one.columns]
        for field in ("values", "success", "alarms"):
            values = getattr(expected, field)[order][:, columns]
            numpy.testing.assert_allclose(getattr(one, field), values, rtol=0, atol=6e-6)
    first = cw.Run(parts[0] / "one--flip--40")
    row = raw[(raw["federation"] == "one") & (raw["column"] == "flip") & (raw["seed"] == 2)]
    found = row[row["method"] == "FedAvg"][["1", "2"]].to_numpy()[0]
    expected = list(curve(first, "metric", "FedAvg", 2).values())
    numpy.testing.assert_allclose(found, expected, rtol=0, atol=6e-6)
