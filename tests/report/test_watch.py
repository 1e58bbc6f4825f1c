"""`clientwise report --watch`: real runs in other processes."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import processes

STATUS = re.compile(r'class="status"[^>]*>(\w+), (\d+) rounds?<')
CONFIG: dict[str, Any] = {
    "name": "small",
    "device": "cpu",
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 6, "concentration": 0.5},
    "model": "linear",
    "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
    "plugins": ["unhurried"],
    "methods": [{"name": "FedAvg", "criteria": ["unhurried"]}],
}

# Rounds of a real federation take longer than those of a test.
UNHURRIED = """
import time
import clientwise as cw

@cw.criterion("unhurried", measured_by="client", high=1.0)
def unhurried(clients):
    '''One for each client, after a while.'''
    time.sleep(0.05)
    return clients.num_samples * 0 + 1
"""


def start_run(folder: Path, rounds: int) -> Any:
    file = folder.with_suffix(".toml")
    file.with_name("unhurried.py").write_text(UNHURRIED)
    file.write_text(tomli_w.dumps(CONFIG | {"rounds": rounds}))
    return processes.start(processes.COMMAND, "run", file, "--out", folder)


def watch(folder: Path, said: Path) -> Any:
    command = ("report", folder, "--out", said.with_suffix(""), "--watch")
    return processes.start(processes.COMMAND, *command, stdout=said, stderr=said)


def rounds_in(page: Path) -> int:
    """The rounds on a page, which is whole at any moment; 0 before there is one."""
    if not page.exists():
        return 0
    text = page.read_text("utf-8")
    assert text.rstrip().endswith("</html>")
    return int(STATUS.findall(text)[0][1])


def state_on(page: Path) -> str:
    """Whether a page says that its run goes on."""
    return str(STATUS.findall(page.read_text("utf-8"))[0][0])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_follows_a_run_until_it_ends_or_until_ctrl_c(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    page = tmp_path / "one" / "report.html"
    run = start_run(folder, rounds=100_000)
    watching: list[Any] = []
    try:
        processes.wait_until((folder / ".lock").exists, 60, "the run to begin")
        watching = [watch(folder, tmp_path / f"{name}.txt") for name in ("one", "two")]
        processes.wait_until(lambda: rounds_in(page) > 0, 60, "a page")
        assert state_on(page) == "running"
        before = rounds_in(page)
        processes.wait_until(lambda: rounds_in(page) > before, 60, "more rounds on the page")
        processes.wait_until((tmp_path / "two" / "report.html").exists, 60, "the other page")
        os.kill(watching[1].pid, signal.SIGINT)
        watching[1].join(60 * processes.pace())
        assert watching[1].exitcode in (0, 130)  # between two writings, or while it wrote
        assert run.is_alive()
        run.kill()
        run.join()
        watching[0].join(60 * processes.pace())
        assert watching[0].exitcode == 0, (tmp_path / "one.txt").read_text()
        assert state_on(page) == "stopped"
    finally:
        for process in (run, *watching):
            process.kill()
            process.join()
    said = (tmp_path / "one.txt").read_text()
    assert f"Watching     {page}" in said
    assert "Ctrl-C stops" in said


def test_a_finished_run_is_written_once(run_folder: Path, tmp_path: Path) -> None:
    watching = watch(run_folder, tmp_path / "said.txt")
    watching.join(60 * processes.pace())
    assert watching.exitcode == 0
    assert rounds_in(tmp_path / "said" / "report.html") == 5
