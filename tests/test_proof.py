"""The tables of the proof: made from raw results, and checked by a second computation."""

from __future__ import annotations

import re
from pathlib import Path

import numpy
import pandas
import pytest
import torch
from proof import check_proof, collect, domains, make_proof
from scipy import stats

from clientwise.experiment.matrix.grid import load_matrix
from clientwise.experiment.matrix.runs import run_matrix

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
    """Made numbers of five federations, three columns and two seeds, and of a variant of two of them."""
    draw = numpy.random.default_rng(1)
    rows = []
    for federation in ("air", "chess", "heart", "hair", "smiles"):
        for variant in ("as it is", "5% of the clients")[: 2 if federation < "d" else 1]:
            for attack, share in (("clean", 0.0), ("sign flip", 0.2), ("sign flip", 0.4)):
                for method in METHODS:
                    if (federation, method) == ("heart", "FLTrust, tuned"):
                        continue  # as a method that a federation cannot run
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
    make_proof.main(file, path)
    return path


def test_the_second_computation_agrees(file: Path, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("**Lead on the same chassis") == 2, "all federations, and the new ones"
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
    assert len(check_proof.differences("no table", runs)) == 5


def test_a_lead_is_a_mean_over_federations(raw: pandas.DataFrame) -> None:
    rows = raw[raw["variant"] == "as it is"]
    attacked = rows[rows["share"] > 0]
    means = attacked.groupby(["federation", "method"])["points"].mean().unstack()
    paired = (means["Recommended"] - means["FLTrust, tuned"]).dropna()
    assert len(paired) == 4
    low, high = stats.t.interval(0.95, len(paired) - 1, paired.mean(), stats.sem(paired))
    expected = f"{paired.mean():+.1f} [{low:.1f}, {high:.1f}]"
    (line,) = [
        one
        for one in make_proof.on_chassis(rows).splitlines()
        if one.startswith("| FLTrust, tuned")
    ]
    assert line.split(" | ")[3] == expected


def test_a_missing_run_is_refused(raw: pandas.DataFrame) -> None:
    with pytest.raises(ValueError, match=r"seeds: as it is, air, FedAvg$"):
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


DIGITS = {"name": "digits"}


def test_the_servers_set_can_be_wrong_or_biased() -> None:
    from clientwise.data.partition import iid
    from dividing import federate

    def weigh(**options: object) -> tuple[torch.Tensor, torch.Tensor]:
        samples = domains.flawed_server(None, of=DIGITS, **options)  # type: ignore[arg-type]
        data = federate(
            samples,
            lambda pool, seed: iid(pool, seed, clients=3),
            1,
            test_fraction=0.2,
            server_fraction=0.3,
            report_fraction=0.5,
        )
        assert data.weigh is not None
        return samples.targets[data.weigh.indices], data.weigh.targets

    true, labels = weigh(wrong=0.2)
    changed = true != labels
    assert changed.float().mean() == pytest.approx(0.2, abs=0.01)
    assert torch.equal(labels[changed], 9 - true[changed])
    true, labels = weigh(lacks=3)
    assert torch.equal(true, labels)
    assert labels.unique().tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
