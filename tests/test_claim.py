"""The tables of the claim about the default method: made from the raw results, and current."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pandas
import pytest
from scipy import stats

import clientwise as cw
from clientwise.experiment.config_file import read_config
from clientwise.experiment.matrix.grid import Matrix, load_matrix, make
from clientwise.experiment.matrix.runs import run_matrix
from clientwise.report.standings import read_results, standings
from recorded import curve, last

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "lab" / "default" / "make_default.py"
MOST_OFF = 0.06  # the last bits differ between processors, and rounds enlarge them
METHODS = [
    "FedAvg",
    {"name": "Recommended 0.1.0", "like": "Evidence"},
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


@pytest.mark.slow
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


def test_every_table_is_made_from_the_raw_file(
    script: ModuleType, parts: list[Path], tmp_path: Path
) -> None:
    script.collect(parts, tmp_path)
    raw = script.read_raw("claim", tmp_path)
    results = script.results_of(raw)
    found = standings(results)
    by_name = {one.method: one for one in found.itertuples()}
    assert script.kind_of("Recommended 0.1.0", raw) == "earlier version"
    assert script.kind_of("ServerOnly", raw) == "usable"
    regret = _rows(script.TABLES["regret"](raw))
    assert {*regret} == {*by_name} - {"KnowsHonestTuned"}


@pytest.fixture(scope="module")
def fifth(script: ModuleType) -> pandas.DataFrame:
    """The raw results of the fifth protocol, with the last round's accuracy in points."""
    raw: pandas.DataFrame = script.read_raw("federations")
    return raw.assign(points=100 * raw["25"])


def _lead(rows: pandas.DataFrame, other: str) -> tuple[float, float]:
    """Of Recommended over federations, with its margin: by hand, without the library's functions."""
    means = rows.groupby(["federation", "method"])["points"].mean().unstack()
    paired = means["Recommended"] - means[other]
    low, high = stats.t.interval(0.95, len(paired) - 1, paired.mean(), stats.sem(paired))
    return float(paired.mean()), float(high - low) / 2


def test_the_leads_of_the_fifth_protocol_are_those_of_its_raw_results(
    script: ModuleType, fifth: pandas.DataFrame
) -> None:
    table = _rows(script.make_table("federations", "lead-by-share"))
    assert len(table) == 15
    for other in ("FLTrust, tuned", "AlignIns, tuned", "FedAvg"):
        parts = [fifth[fifth["share"] == 0.2], fifth[fifth["share"] == 0.4], fifth]
        expected = ["{:+.1f} ± {:.1f}".format(*_lead(rows, other)) for rows in parts]
        assert table[other][:6:2] == expected
    of_seeds = fifth.groupby(["federation", "column", "share", "method"])["points"].mean().unstack()
    for row in ("Recommended", "FLTrust, tuned"):
        behind = of_seeds["KnowsHonestTuned"] - of_seeds[row]
        shown = _rows(script.make_table("federations", "regret"))[row]
        assert shown[0] == f"{100 * (behind <= 2).mean():.1f}%"
        for share, text in ((0.2, shown[4]), (0.4, shown[5])):
            assert text == f"{behind.xs(('slow turn', share), level=(1, 2)).mean():+.1f}"


def test_the_text_names_the_federations_with_too_many_false_alarms(fifth: pandas.DataFrame) -> None:
    honest = fifth[(fifth["hostile"] == 0) & (fifth["method"] == "Recommended")]
    shares = 100 * honest["lowered_clients"] / honest["honest_clients"]
    alarms = shares.groupby(honest["federation"]).mean()
    pages = ROOT / "docs" / "results"
    text = (pages / "federations.md").read_text(encoding="utf-8")
    medians = dict(re.findall(r"^\| ([^|]+) \|.*\| \d+, (\d+), \d+ \|", text, re.MULTILINE))
    assert {*medians} == {*alarms.index}
    missed = {name for name, median in medians.items() if alarms[name] > 5 and int(median) >= 50}
    assert len(missed) == 9
    said = " ".join((pages / "evidence.md").read_text(encoding="utf-8").split())
    assert [name for name in missed if f"{name} {alarms[name]:.1f}%" not in said] == []


def test_the_figures_of_the_fifth_protocol_show_every_federation(
    script: ModuleType, fifth: pandas.DataFrame
) -> None:
    names = {*fifth["federation"]}
    forest = script.numbers_in(script.DOCS / "federations-lead.png")
    lead = "{:+.1f} ± {:.1f}".format(*_lead(fifth, "AlignIns, tuned"))
    assert f"AlignIns, tuned, all 20 federations: {lead}" in forest
    assert forest.count(" ± ") == 4 * (len(names) + 1)
    columns, *rows = script.numbers_in(script.DOCS / "federations-regret.png").split("; ")
    assert columns.startswith("clean, ")
    assert {row.split(": ")[0] for row in rows} == names
    assert all(len(row.split(", ")) == 21 for row in rows)


def _rows(table: str) -> dict[str, list[str]]:
    """The cells of every row after its first one, by that."""
    found = {}
    for line in table.splitlines()[2:]:
        if line.startswith("|"):
            name, *cells = line.strip("| ").split(" | ")
            found[name] = cells
    return found
