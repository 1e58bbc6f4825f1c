"""The programs in examples/ run, and show what they say. Flower, NVFlare and Hugging Face have tests of their own."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"
PAGE = 70  # lines


def output(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def results(text: str) -> dict[str, float]:
    """The metric of every method: lines such as "  FedAvg 95.6% ± 0.9" below the head of the table."""
    _, table = re.split(r"^ *method .*$", text, maxsplit=1, flags=re.MULTILINE)
    found = re.findall(r"^ *(\S+)(?:\s[†‡]+)? +([\d.]+)%?(?: ±.*)?$", table, re.MULTILINE)
    return {method: float(value) for method, value in found}


def test_every_program_is_here_or_has_a_test_of_its_own() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py")}
    here = {
        "own_csv.py",
        "own_images.py",
        "segmentation.py",
        "imbalanced.py",
        "attacked.py",
        "regression.py",
        "own_criterion.py",
    }
    assert programs == here | {"my_criteria.py", "aggregator.py"}
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= PAGE, f"{path.name} is longer than a page"


def test_hospitals_with_csv_files(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output("own_csv.py", capsys)
    found = results(shown)
    assert found["Recommended"] > found["FedAvg"] > 80
    assert re.search(
        r"^Recommended +(0\.\d+ +){3}0\.00$", shown, re.MULTILINE
    )  # west has no weight
    assert "probability of malignant" in shown


def test_own_images_with_augmentation(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output("own_images.py", capsys)
    assert results(shown)["FedAvg"] > 80
    assert "their labels:" in shown


def test_segmentation(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output("segmentation.py", capsys)
    assert min(results(shown).values()) > 80
    mask = re.findall(r"^[#.]{8}$", shown, re.MULTILINE)
    assert len(mask) == 8
    assert "#" in "".join(mask)


def test_a_rare_class(capsys: pytest.CaptureFixture[str]) -> None:
    found = results(output("imbalanced.py", capsys))
    assert found["balanced"] > found["plain"]
    assert found["focal"] > found["plain"]


def test_an_attacked_federation(capsys: pytest.CaptureFixture[str]) -> None:
    found = results(output("attacked.py", capsys))
    assert found["Recommended"] > found["FLTrust"] > found["FedAvg"]


def test_regression(capsys: pytest.CaptureFixture[str]) -> None:
    found = results(output("regression.py", capsys))
    assert found["Recommended"] < found["FedAvg"]  # an error


def test_an_own_criterion(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output("own_criterion.py", capsys)
    weights = [float(weight) for weight in re.findall(r"\d\.\d{3}", shown)]
    assert len(weights) == 6
    assert weights[1] == 0  # the battery of 0.1 is below the floor
    assert max(weights) == weights[3]  # the full one
