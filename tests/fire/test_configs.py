"""No config ends in a traceback, takes seconds or gigabytes; and what `check` lets pass, runs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import guarded
import mutants
import pytest

from fire_share import EVERY

LONG = "x" * 300
LARGE = (10**9, 2**63 - 1, 10**30)
METHOD = 'methods=[{{name="a",criteria=["dataset_size","label_diversity"],{}}}]'
EXTREMES = [  # changes of a small experiment, each refused by `check` or run
    *([f"training.{key}={value}"] for key in ("epochs", "batch_size") for value in LARGE),
    *([f"training.{key}=1e308"] for key in ("learning_rate", "proximal")),
    ["training.learning_rate=1e30"],
    ['training.optimizer="adam"', "training.learning_rate=1e30"],
    ["mode=loop", "training.batch_size=1000000000"],
    ['methods=[{name="a",fine_tune={epochs=1000000}}]'],
    *([f"{key}={value}"] for key in ("workers", "federation.clients_per_round") for value in LARGE),
    ["checkpoint_seconds=1e308"],
    *([f'name="{name}"'] for name in (LONG, "é" * 150, "../../x", "\\u0000", ".")),
    *([f'methods=[{{name="{name}"}}]'] for name in (LONG, "a\\nb", "$\\\\frac{$", "/")),
    *([f'partition={{name="{name}",clients=6,concentration={value}}}'] for name in ("quantity", "dirichlet")
      for value in ("1e-300", "1e30", "1e300")),
    ['partition={name="shards",clients=6,per_client=1000000000}'],
    ["partition.clients=719"],
    ['hostile=[{clients=1000000000,attack="noise"}]'],
    *([f'hostile=[{{clients=2,attack={{name="{attack}={value}}}}}]']
      for attack in ('noise",deviation', 'sign_flip",strength', 'boast",factor') for value in ("1e30", "1e300")),
    *([f'methods=[{{name="a",server_step={{name="{step}={value}}}}}]']
      for step in ('sgd",learning_rate', 'adam",tau') for value in ("1e30", "1e300", "1e-300")),
    *([METHOD.format(f'score={{name="product",powers={{dataset_size={value}}}}}')] for value in ("1e300", "-30")),
    *([METHOD.format(f'score={{name="weighted_mean",weights={{dataset_size={value},label_diversity=1}}}}')]
      for value in ("1e308", "-1")),
    ["attributes={x=[1e308,1e308,1,1,1,1]}", 'methods=[{name="a",criteria=[{name="attribute",of="x"}]}]'],
    *([f"model={{name={model}}}"] for model in ('"mlp",hidden=[]', '"mlp",hidden=[1000000,1000000]',
      '"cnn",channels=[]', '"cnn",kernel=99', '"lstm",layers=10000', '"fully_convolutional",channels=[],middle=[]')),
    *([f"{key}={value}"] for key in ("server_set.fraction", "evaluation.test_fraction", "server_set.report_fraction")
      for value in ("0.9999999999999999", "1e-300")),
    *([f'device="{device}"'] for device in ("cuda:99999999999", "cuda:٣")),
]  # fmt: skip


def check_changed(folder: Path, first: int, count: int, **environment: str) -> dict[str, str]:
    """What goes wrong with so many configs, from this number on."""
    shutil.copy(mutants.ROOT / "examples" / "my_criteria.py", folder)
    for number, content in enumerate(mutants.mutants(first, count), start=first):
        (folder / f"{number}.toml").write_bytes(content)
    cases = [str(folder / f"{number}.toml") for number in range(first, first + count)]
    return guarded.faults("attempts:check", cases, **environment)


@pytest.mark.fire
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", [0, 2_500])
def test_thousands_of_configs_changed_at_random(tmp_path: Path, first: int) -> None:
    quickly_read = tmp_path / "data"
    quickly_read.mkdir()
    published = Path(os.environ.get("CLIENTWISE_DATA") or tmp_path / "none")
    if (published / "mnist").is_dir():
        (quickly_read / "mnist").symlink_to(published / "mnist")
    count = 2_500 // EVERY
    assert check_changed(tmp_path, first, count, CLIENTWISE_DATA=str(quickly_read)) == {}


@pytest.mark.fire
def test_what_check_lets_pass_runs() -> None:
    assert guarded.faults("attempts:run", [json.dumps(changes) for changes in EXTREMES]) == {}
