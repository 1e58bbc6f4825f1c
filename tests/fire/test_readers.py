"""Two hundred people watch a run: they are answered at once, and the run does not notice."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w

import processes

CONFIG = {
    "name": "live",
    "rounds": 100_000,
    "workers": 1,
    "device": "cpu",
    "data": "digits",
    "model": {"name": "mlp", "hidden": [200]},
    "partition": {"name": "dirichlet", "clients": 20, "concentration": 0.5},
    "training": {"epochs": 5, "batch_size": 10, "learning_rate": 0.05},
    "hostile": [{"clients": 2, "attack": "wrong_labels"}],
    "methods": [
        {"name": "FedAvg"},
        {"name": "P1", "criteria": ["dataset_size", "label_diversity"], "score": "prioritized"},
        {"name": "AdaFed", "criteria": ["server_performance"], "adapt_loss": "class_weights"},
    ],
}
READERS, SECONDS = 200, 30.0


class Page:
    """An open page: asks again and again whether there is anything new, and for all of it where there is."""

    def __init__(self, port: int) -> None:
        self._port, self._streams = port, None
        self.seen, self.took = 0, list[float]()

    async def _ask(self, path: str) -> bytes:
        """Over a connection that stays open, or another where the server has closed it."""
        for _ in range(2):
            reader, writer = self._streams or await asyncio.open_connection("127.0.0.1", self._port)
            self._streams = reader, writer
            try:
                writer.write(
                    f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n".encode()
                )
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                self.close()
                continue
            assert head.startswith(b"HTTP/1.1 200"), head
            return await reader.readexactly(
                int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            )
        raise AssertionError("the server does not answer")

    def close(self) -> None:
        if self._streams:
            self._streams[1].close()
        self._streams = None

    async def watch(self, first: float, until: float) -> None:
        await asyncio.sleep(first)
        version = None
        while time.monotonic() < until:
            standing = json.loads(await self._ask("/api/runs/live/version"))
            if (told := standing["version"]) != version:
                asked = time.monotonic()
                await self._ask("/api/runs/live")
                self.took.append(time.monotonic() - asked)
                version, self.seen = told, self.seen + 1
            await asyncio.sleep(max(1.0, standing["again"]))
        self.close()


async def watched(port: int) -> list[Page]:
    """The pages after they were watched."""
    pages, until = [Page(port) for _ in range(READERS)], time.monotonic() + SECONDS
    await asyncio.gather(
        *(page.watch(number / READERS, until) for number, page in enumerate(pages))
    )
    return pages


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.alone
@pytest.mark.fire
@pytest.mark.timeout(0)
def test_two_hundred_readers_of_a_live_run(tmp_path: Path) -> None:
    (tmp_path / "live.toml").write_text(tomli_w.dumps(CONFIG))
    live = processes.start(
        processes.COMMAND, "run", tmp_path / "live.toml", "--out", tmp_path / "runs" / "live"
    )
    (tmp_path / "runs").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "clientwise", "serve", str(tmp_path / "runs"), "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    try:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as serving:
            try:
                assert serving.stdout is not None
                port = int(serving.stdout.readline().strip().rstrip("/").rpartition(":")[2])
                deadline = time.monotonic() + 60
                while not (tmp_path / "runs" / "live" / "checkpoints").exists():
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
                asyncio.run(Page(port).watch(0, time.monotonic() + 3))
                slowness = [processes.slowness()]
                before, began = processor_seconds(serving.pid), time.monotonic()
                pages = asyncio.run(watched(port))
                used = (processor_seconds(serving.pid) - before) / (time.monotonic() - began)
                slowness.append(processes.slowness())
            finally:
                serving.terminate()
    finally:
        live.kill()
        live.join()
    took = [seconds for page in pages for seconds in page.took]
    print(
        f"{len(took)} documents, median {statistics.median(took):.3f} s, {used:.3f} of a core, {slowness=}"
    )
    assert min(page.seen for page in pages) > 1, "the run did not grow"
    assert statistics.median(took) < 0.5 * max(slowness)
    # Documents that are made for each reader anew take a whole core; those that all readers share
    # take about a tenth of an ordinary one.
    assert used < 0.25 * max(slowness)
