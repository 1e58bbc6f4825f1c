"""The page about Flower and NVFlare: its commands, word by word, with a wheel in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import processes
from installing import install

pytest.importorskip("flwr", reason="needs clientwise[flower]")
pytest.importorskip("nvflare", reason="needs clientwise[nvflare]")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?:^    \S.*\n)+", re.MULTILINE)
EXPERIMENT = """name = "digits"
rounds = 1
data = "digits"
partition = { name = "iid", clients = 2 }
model = "linear"
methods = ["FedAvg"]
"""


def blocks_of(page: str) -> list[list[str]]:
    """The lines of every block of commands of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = [[line.strip() for line in block.splitlines()] for block in BLOCK.findall(text)]
    return [
        lines for lines in found if lines[0].startswith(("pip ", "clientwise ", "flwr ", "cd "))
    ]


BLOCKS = [("frameworks.md", lines) for lines in blocks_of("frameworks.md")]
LEFT = {  # what has to be there afterwards
    "clientwise run": "runs/*/config.toml",
    "clientwise report": "examples/nvflare_job/workspace/**/report/*.html",
    "clientwise new": "*/pyproject.toml",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True)
    (wheel,) = folder.iterdir()
    return wheel


def installed(lines: list[str], wheel: Path, folder: Path) -> Path:
    """The programs of an environment with what `pip install` names; without it, all that a host needs."""
    wanted = [shlex.split(line)[2:] for line in lines if line.startswith("pip install ")]
    names = wanted[0] if wanted else [".[datasets,flower]"]
    (ours,) = (name for name in names if name.startswith("."))
    extras = re.findall(r"\w+", ours)
    return install(wheel, folder, *extras, others=[name for name in names if name != ours])


def end_all_below(folder: Path) -> None:
    """End the processes that name a folder in their command: Flower leaves its SuperLink running."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            is_ours = bytes(folder) in entry.read_bytes()
            if is_ours and int(entry.parent.name) != os.getpid():
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except OSError:
            continue


def test_the_pages_have_commands() -> None:
    shown = {" ".join(line.split()[:2]) for _, lines in BLOCKS for line in lines}
    assert shown >= {"flwr run", "clientwise run", "clientwise report", "python job.py"}


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize(("page", "lines"), BLOCKS, ids=lambda one: str(one)[:40])
def test_the_commands_of_a_page_work(
    page: str, lines: list[str], wheel: Path, tmp_path: Path
) -> None:
    programs = installed(lines, wheel, tmp_path / "environment")
    place = tmp_path / "place"
    shutil.copytree(
        ROOT / "examples", place / "examples", ignore=shutil.ignore_patterns("workspace", "runs")
    )
    (place / "experiment.toml").write_text(EXPERIMENT, encoding="utf-8")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV") and not name.startswith("CLIENTWISE_")
    }
    environment |= {
        "HOME": str(tmp_path / "home"),
        "FLWR_HOME": str(tmp_path / "home" / ".flwr"),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "UV_OFFLINE": "1",
    }
    program = "\n".join(line for line in lines if not line.startswith("pip install "))
    try:
        done = subprocess.run(
            ["bash", "-e", "-c", program],
            cwd=place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=300 * processes.pace(),
        )
    finally:
        end_all_below(tmp_path)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "Traceback" not in done.stdout
    if "\nflwr run " in program:
        assert "round 3: weights" in done.stdout, done.stdout[-5000:]
    for command, left in LEFT.items():
        if f"\n{command} " in f"\n{program}":
            assert list(place.glob(left)), done.stdout[-5000:]
