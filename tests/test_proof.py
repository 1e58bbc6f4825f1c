"""The tables of the proof: made from raw results, and checked by a second computation."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pandas
import pytest
import torch
from proof import check_proof, collect, make_proof
from scipy import stats

from clientwise.data.federated import FederatedData, Samples
from clientwise.data.partition import iid
from clientwise.experiment.matrix.grid import load_matrix
from clientwise.experiment.matrix.runs import run_matrix
from dividing import federate

METHODS = [
    "Recommended",
    "KnowsHonestTuned",
    "FedAvg",
    "FedAvg, tuned",
    "FLTrust, tuned",
    "ServerOnly",
    "Recommended without history",
]
WITH_ALARMS = ("Recommended", "Recommended without history")


@pytest.fixture
def raw() -> pandas.DataFrame:
    """Made numbers of five federations, three columns and two seeds, of the second run and of a variant."""
    draw = numpy.random.default_rng(1)
    rows = []
    for federation in ("air", "chess", "flights", "genes", "leaves"):
        for variant in ("as it is", "second run", "5% of the clients")[
            : 3 if federation < "d" else 2
        ]:
            for attack, share in (("clean", 0.0), ("sign flip", 0.2), ("sign flip", 0.4)):
                for method in METHODS:
                    if (share, method) == (0.2, "ServerOnly"):
                        continue  # not run with this share
                    if variant == "as it is" and "without" in method:
                        continue
                    for seed in (1, 2):
                        has_alarms = method in WITH_ALARMS
                        rows.append(
                            {
                                "federation": federation,
                                "variant": variant,
                                "attack": attack,
                                "share": share,
                                "method": method,
                                "seed": seed,
                                "points": draw.normal(80 - 2 * METHODS.index(method), 2),
                                "alarms": draw.random() if has_alarms else numpy.nan,
                                "auroc": draw.random() if has_alarms and share else numpy.nan,
                                "seconds": draw.random(),
                            }
                        )
    return pandas.DataFrame(rows)


@pytest.fixture
def file(raw: pandas.DataFrame, tmp_path: Path) -> Path:
    path = tmp_path / "proof.csv.gz"
    raw.to_csv(path, index=False, float_format="%.6g")
    return path


@pytest.fixture
def page(file: Path, tmp_path: Path) -> Path:
    path = tmp_path / "proof.md"
    path.write_text("# Proof\n\n<!-- make_proof -->\n<!-- end -->\n\n1.0\n", encoding="utf-8")
    readme = path.with_name("README.md")
    readme.write_text("<!-- make_proof -->\n<!-- end -->\n", encoding="utf-8")
    make_proof.main(file, path, readme)
    return path


def test_the_second_computation_agrees(file: Path, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("**Lead on the same chassis") == 2, "the third run, and the second one"
    assert check_proof.differences(text, check_proof.read(file)) == []


def test_the_second_computation_finds_every_wrong_number(file: Path, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    runs = check_proof.read(file)
    tables = text.index("<!-- make_proof -->")
    numbers = [one for one in re.finditer(r"\d+\.\d+", text) if tables < one.start()][:-1]
    for one in numbers[::23]:
        digit = str((int(text[one.end() - 1]) + 3) % 10)
        wrong = text[: one.end() - 1] + digit + text[one.end() :]
        assert check_proof.differences(wrong, runs), text[one.start() - 40 : one.end()]


def test_the_second_computation_wants_all_rows(file: Path, page: Path) -> None:
    runs = check_proof.read(file)
    text = page.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("| FedAvg, tuned")]
    assert check_proof.differences("\n".join(lines), runs)
    assert len(check_proof.differences("no table", runs)) == 4


def test_a_lead_is_a_mean_over_federations(raw: pandas.DataFrame) -> None:
    rows = raw[raw["variant"] == "as it is"]
    attacked = rows[rows["share"] == 0.4]
    means = attacked.groupby(["federation", "method"])["points"].mean().unstack()
    paired = means["Recommended"] - means["FLTrust, tuned"]
    assert len(paired) == 5
    low, high = stats.t.interval(0.95, len(paired) - 1, paired.mean(), stats.sem(paired))
    expected = f"{paired.mean():+.1f} [{low:.1f}, {high:.1f}]"
    (line,) = [
        one
        for one in make_proof.on_chassis(rows).splitlines()
        if one.startswith("| FLTrust, tuned")
    ]
    assert line.split(" | ")[5] == expected


def test_a_missing_run_is_refused(raw: pandas.DataFrame) -> None:
    with pytest.raises(ValueError, match=r"seeds: as it is, air, 0.0, FedAvg$"):
        list(make_proof.all_tables(raw.drop(index=raw.index[raw["method"] == "FedAvg"][0])))


def test_raw_results_are_collected(tmp_path: Path) -> None:
    table = {
        "name": "small",
        "rounds": 2,
        "seeds": [1],
        "device": "cpu",
        "data": "digits",
        "partition": {"name": "iid", "clients": 5},
        "model": "linear",
        "server_set": {"fraction": 0.3, "report_fraction": 0.5},
        "methods": ["FedAvg", "Recommended"],
        "matrix": {
            "attacks": {"flip": {"attack": {"name": "sign_flip", "strength": 5.0}}},
            "shares": [0.4],
            "data": {"one": {}, "one: half": {"federation": {"fraction": 0.8}}},
        },
    }
    folder = run_matrix(load_matrix(table), tmp_path / "small")
    collect.main(tmp_path / "raw.csv.gz", [folder, folder])
    raw = pandas.read_csv(tmp_path / "raw.csv.gz")
    assert len(raw) == 2 * 2 * 2
    assert {*raw["variant"]} == {"as it is", "half"}
    assert raw["points"].between(0, 100).all()
    assert raw["points"].max() > 50
    ours = raw["method"] == "Recommended"
    assert (raw["alarms"].notna() == ours).all()
    assert (raw["auroc"].notna() == (ours & (raw["share"] > 0))).all()


LAB = Path(__file__).parents[1] / "lab" / "proof"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A script that imports another one beside it."""
    monkeypatch.syspath_prepend(str(LAB))
    return importlib.import_module


def test_the_matrix_has_the_federations_that_the_rule_keeps() -> None:
    page = make_proof.PAGE.read_text(encoding="utf-8")
    table = page.partition("<!-- select_federations -->")[2].partition("<!-- end -->")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    kept = [row[0] for row in rows[2:] if row[-1] == "yes"]
    candidates, proof = (
        tomllib.loads((LAB / name).read_text(encoding="utf-8"))
        for name in ("candidates.toml", "proof.toml")
    )
    assert {row[0] for row in rows[2:]} == {*candidates["matrix"]["data"]}
    new = [name for name in kept if name not in make_proof.TOUCHED]
    assert proof["matrix"]["data"] == {name: candidates["matrix"]["data"][name] for name in new}
    assert {*candidates["seeds"]}.isdisjoint(proof["seeds"])
    for key in ("rounds", "model", "training", "evaluation"):
        assert candidates[key] == proof[key]


def test_a_candidate_is_kept_by_lead_and_clients(script: Callable[[str], ModuleType]) -> None:
    verdict = script("select_federations").verdict
    assert [verdict(5.0, 5), verdict(4.9, 5), verdict(9.0, 4)] == [
        "yes",
        "lead below 5",
        "fewer than 5 clients",
    ]


def test_a_criterion_is_compared_with_dataset_size(script: Callable[[str], ModuleType]) -> None:
    rows = [
        ("wrong labels", federation, method, points + place)
        for place, federation in enumerate(("air", "heart", "hair"))
        for method, points in (("dataset size", 70.0), ("training loss", 71.0 + place))
    ]
    raw = pandas.DataFrame(rows, columns=["variant", "federation", "method", "points"])
    raw = raw.assign(curve=raw["points"], p10=numpy.nan)
    tests, _, by_method = script("make_criteria").all_tables(raw)
    low, high = stats.t.interval(0.95, 2, 2.0, stats.sem([1.0, 2.0, 3.0]))
    shown = f"+2.0 [{low:.1f}, {high:.1f}]"
    assert f"| wrong labels | training loss | {shown} | 0.074 | {shown} | – |" in tests
    assert f"| training loss | {shown} |" in by_method
    assert "| method | wrong labels (3) |" in by_method


DIGITS = {"name": "digits"}


def divided(samples: Samples) -> FederatedData:
    return federate(
        samples,
        lambda pool, seed: iid(pool, seed, clients=3),
        1,
        test_fraction=0.2,
        server_fraction=0.3,
        report_fraction=0.5,
    )


@pytest.fixture
def domains() -> ModuleType:
    """The plugin, whose parts are registered for this test alone."""
    return importlib.import_module("proof.domains")


def test_the_servers_set_can_be_wrong_or_biased(domains: ModuleType) -> None:
    def weigh(**options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        samples = domains.flawed_server(None, of=DIGITS, **options)
        held = divided(samples).weigh
        assert held is not None
        return samples.targets[held.indices], held.targets

    true, labels = weigh(wrong=0.2)
    changed = true != labels
    assert changed.float().mean() == pytest.approx(0.2, abs=0.01)
    assert torch.equal(labels[changed], 9 - true[changed])
    true, labels = weigh(lacks=3)
    assert torch.equal(true, labels)
    assert labels.unique().tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_every_nth_client_can_be_flawed(domains: ModuleType) -> None:
    plain = divided(domains.flawed_clients(None, of=DIGITS))
    flawed = divided(domains.flawed_clients(None, of=DIGITS, every=2, wrong=0.5, blur=1.0))
    assert flawed.attributes["sound"].tolist() == [0, 1, 0]
    blurry = flawed.samples.sample_attributes["blurry"]
    for client, is_sound in enumerate(flawed.attributes["sound"].tolist()):
        mine = flawed.train.slice(client)
        indices = flawed.train.indices[mine]
        wrong = flawed.train.targets[mine] != plain.train.targets[mine]
        changed = (flawed.samples.inputs[indices] != plain.samples.inputs[indices]).flatten(1)
        assert wrong.float().mean() == pytest.approx(0.0 if is_sound else 0.5, abs=0.01)
        assert changed.any(1).all() == (not is_sound)
        assert (blurry[indices] == 1 - is_sound).all()
    assert flawed.report is not None
    assert not blurry[flawed.report.indices].any()


def test_the_page_on_backdoors_has_the_tables_of_its_raw_results() -> None:
    made = importlib.import_module("backdoors.make_backdoors")
    text = made.PAGE.read_text(encoding="utf-8")
    for name, table in made.all_tables(pandas.read_csv(made.RAW)).items():
        assert f"<!-- make_backdoors: {name} -->\n{table}\n<!-- end -->" in text


def test_the_page_of_the_proof_has_the_numbers_of_its_raw_results() -> None:
    page = make_proof.PAGE.read_text(encoding="utf-8")
    results = make_proof.ROOT / "lab" / "results" / "proof.csv.gz"
    assert check_proof.differences(page, check_proof.read(results)) == []
    readme = make_proof.README.read_text(encoding="utf-8")
    assert make_proof.readme_table(pandas.read_csv(results)) in readme
