"""The process that a node forks for each message."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

SCRIPT = """
from clientwise.hosts.deployment.zygote import PROGRAM, Zygote

zygote = Zygote()
zygote._process.kill()
zygote._process.wait(60)
zygote.start([PROGRAM, "--help"])
zygote.start(["echo", "another program"])
zygote._process.stdin.close()
zygote._process.wait(300)
"""


@pytest.mark.timeout(400)
def test_a_program_runs_in_a_fork_also_after_the_zygote_was_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=380,
        check=True,
    )
    assert "another program" in done.stdout
    assert "usage: flwr-clientapp" in done.stdout
