"""What users install: the wheel, with its dependencies and nothing else (test_base_install.py has the base install)."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

import clientwise as cw
import processes
from installing import install
from recorded import last

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True)
    (archive,) = folder.iterdir()
    return archive


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source archive, which is therefore whole."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "-w", str(folder), str(source)], check=True)
    (wheel,) = folder.iterdir()
    return wheel


def run(*command: object, cwd: Path) -> str:
    """What a program prints that knows nothing of where the tests find their modules."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240 * processes.pace(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    source = ROOT / "src"
    files = {
        path
        for path in (source / "clientwise").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if name.startswith("clientwise/")}
    assert inside == {path.relative_to(source).as_posix() for path in files}
    assert {
        "clientwise/py.typed",
        "clientwise/demo.toml",
        "clientwise/report/page.js",
    } <= inside


def test_an_index_would_accept_them(source: Path, wheel: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", source, wheel, cwd=ROOT)


def test_all_files_name_the_same_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert f"\nversion: {project['version']}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0] in ("Unreleased", project["version"])
    assert headings[1:2] in ([], [project["version"]])  # the newest release


@pytest.mark.slow  # the packaged demo, whole
def test_the_demo_keeps_its_promises(wheel: Path, tmp_path: Path) -> None:
    """It must end in time and its own claims must hold."""
    installed = install(wheel, tmp_path / "environment", "demo")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = run(installed / "clientwise", "demo", "--out", "demo", cwd=tmp_path)
    assert "Next" in printed
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (
        after.ru_utime - before.ru_utime < 200
    )  # of all cores together: what else runs does not count
    demo = cw.Run(tmp_path / "demo")
    metric = last(demo, "metric")
    assert metric["Recommended"] > metric["AdaFed"] > metric["FedAvg"] + 0.05
    assert abs(metric["Recommended"] - metric["FedAvg, fine-tuned"]) < 0.05  # the text says so
    influence = demo.frame("rounds").groupby("method")["hostile_influence"].mean()
    assert influence["Recommended"] < 0.25 * influence["FedAvg, fine-tuned"] < influence["FedAvg"]
    assert printed.count("Evidence found it.") == 3
