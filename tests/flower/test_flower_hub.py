"""What `clientwise new` writes can be published on Flower Hub: Flower's own checks, without the upload."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import requires
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from clientwise.cli import app

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.cli.build import build_fab_from_files
from flwr.cli.config_utils import load_and_validate
from flwr.cli.utils import collect_files

publish = import_module("flwr.cli.app_cmd.publish")  # the package has a function of that name


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new app whose owner has deployed and run it."""
    folder = tmp_path_factory.mktemp("apps") / "clinic"
    assert CliRunner().invoke(app, ["new", str(folder)]).exit_code == 0
    for private in ("state/keys/ward-a.json", "runs/federation/config.toml", "data/patients.json"):
        file = folder / private
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("", encoding="utf-8")
    return folder


def test_flower_builds_a_bundle_of_the_strict_format(clinic: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from flwr.cli.app import app; app()", "build", "--app"]
    built = subprocess.run([*command, clinic], cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "missing" not in built.stdout  # recommended properties
    (bundle,) = tmp_path.glob("*.fab")
    assert set(ZipFile(bundle).namelist()) == {
        ".info/CONTENT",
        "LICENSE",
        "pyproject.toml",
        *(f"federation/{name}.py" for name in ("__init__", "client_app", "server_app")),
        "federation/experiment.toml",
    }
    _, metadata = build_fab_from_files(collect_files(clinic))
    assert metadata.fab_format_version == 1


def test_flower_would_upload_the_app_and_nothing_private(clinic: Path) -> None:
    config, warnings = load_and_validate(clinic / "pyproject.toml", check_module=False)
    assert warnings == []
    publish._validate_description(config["project"]["description"])
    uploaded = publish._collect_file_paths(clinic)
    publish._validate_files(uploaded)
    names = {path.relative_to(clinic).as_posix() for path in uploaded}
    assert {"LICENSE", "README.md", "pyproject.toml", "federation/client_app.py"} <= names
    assert {name.split("/")[0] for name in names}.isdisjoint({"data", "runs", "state"})


def test_the_app_names_the_versions_of_flower_that_clientwise_supports(clinic: Path) -> None:
    project = tomllib.loads((clinic / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = {one.name: one.specifier for one in map(Requirement, project["dependencies"])}
    ours = [one for one in map(Requirement, requires("clientwise") or []) if one.name == "flwr"]
    assert wanted["flwr"] in [one.specifier for one in ours]
    assert "clientwise" in wanted
