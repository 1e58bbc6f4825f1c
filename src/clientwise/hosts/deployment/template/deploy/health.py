"""The checks of health.sh. None of them asks the process of the run, which may be gone.

    health.py STATE APP ADDRESS [MEMBERS] < NODES      NODES: JSON of `flwr supernode list`

Settings: FREE_MB, STALE, and CLIENTWISE_ALERT with HEALTH_ALERT=1.
"""

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.x509 import load_pem_x509_certificate

from clientwise.record.lock import is_locked
from clientwise.writing import write_atomically

SOON = timedelta(days=30)
CONNECT_SECONDS = 10
ENDED = ("finished", "stopped", "failed")
SETTLED = {"begun": 60}  # seconds until the lock counts: a run that begins reads its data first
SPARE = 300  # seconds that a round may take beyond the limits of the experiment


def main(state: Path, app: Path, address: str, members: str = "") -> int:
    """Print one line; the exit status is 0, or 2 where something is wrong."""
    experiment = _table(app / "federation" / "experiment.toml").get("flower", {})
    names = [one for one in experiment.get("clients", []) if one not in experiment.get("left", [])]
    online = _online(state)
    required = int(members or experiment.get("min_replies", 1))
    problems = [*_proxy(state, address), *_certificates(state, names), *_disk(state), *_run(state)]
    if online is None:
        problems.append("the SuperLink does not answer: systemctl status federation-superlink")
    elif len(online) < required:
        problems.append(
            f"{_members(len(online))} online, at least {required} required: see 'A silent node' in "
            "docs/deployment.md"
        )
    if os.environ.get("HEALTH_ALERT"):
        _alert(state, problems)
    if problems:
        print(f"BAD {'; '.join(problems)}")
        return 2
    assert online is not None
    missing = [name for name in names if name not in online]
    offline = f"; offline: {', '.join(missing)}" if missing else ""
    print(f"OK {_members(len(online))} online{offline}")
    return 0


def _members(count: int) -> str:
    return "1 member" if count == 1 else f"{count} members"


def _table(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8-sig")) if path.exists() else {}


def _online(state: Path) -> list[str] | None:
    """The members that are online; None where the SuperLink does not answer."""
    try:
        nodes = json.load(sys.stdin)["nodes"]
    except (ValueError, KeyError):
        return None
    file = state / "members" / "nodes"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    known = dict(line.split(maxsplit=1) for line in lines)
    return [known.get(node["node-id"], "?") for node in nodes if node["status"] == "online"]


def _proxy(state: Path, address: str) -> Iterator[str]:
    """A service that hangs accepts connections too: only a TLS handshake is an answer."""
    host, _, port = address.rpartition(":")
    authority = state / "certificates" / "ca.crt"
    try:
        context = ssl.create_default_context(cafile=authority)
        with (
            socket.create_connection((host, int(port)), CONNECT_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            pass
    except ssl.SSLCertVerificationError as error:
        yield f"{address} shows a wrong certificate ({error.verify_message}): restart the proxy"
    except OSError:
        yield f"nothing answers at {address}: restart federation-proxy"


def _certificates(state: Path, names: list[str]) -> Iterator[str]:
    remedies = {
        state / "certificates" / "ca.crt": "make a new authority",
        state / "certificates" / "server.crt": "run certificates.sh and restart the services",
    }
    for name in names:
        remedy = f"run register.sh {name} {name}.csr --renew"
        remedies[state / "members" / f"{name}.crt"] = remedy
    for path, remedy in remedies.items():
        if not path.exists():
            continue
        ends = load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
        if ends < datetime.now(UTC) + SOON:
            yield f"{path.name} expires on {ends:%Y-%m-%d}: {remedy}"


def _disk(state: Path) -> Iterator[str]:
    free = int(os.environ.get("FREE_MB") or 1024)
    if shutil.disk_usage(state).free < free * 2**20:
        yield f"less than {free} MB free on the disk of {state}: delete or move old runs"


def _run(state: Path) -> Iterator[str]:
    file = state / "run-events.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("}")]
    if not events:
        return
    last = events[-1]
    if last["event"] == "failed":
        yield "the run failed: read 'flwr log', then run start.sh"
    if last["event"] in ENDED:
        return
    if not is_locked(state / "run"):
        if _age(last) > SETTLED.get(last["event"], 5):
            yield "the process of the run is gone: run start.sh"
        return
    limits = _table(state / "run" / "config.toml").get("flower", {})
    in_time = limits.get("train_seconds", 600) + limits.get("evaluate_seconds", 300) + SPARE
    limit = float(os.environ.get("STALE") or in_time)
    rounds = [one for one in events if one["event"] in ("begun", "round")]
    if _age(rounds[-1]) > limit:
        yield f"no round ended for {limit:.0f} s: run watch.sh; if all members are online, stop.sh and start.sh"


def _age(event: dict[str, Any]) -> float:
    """Seconds since an event."""
    return time.time() - datetime.fromisoformat(event["time"]).timestamp()


def _alert(state: Path, problems: list[str]) -> None:
    """Send the problems to the alert command whenever they change."""
    file = state / "health.json"
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    if problems == before:
        return
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    line = json.dumps({"time": now, "event": "health", "problems": problems}) + "\n"
    owner = state.stat()
    as_owner: dict[str, Any] = {}
    if os.geteuid() == 0:  # as the alerts of a run: a file that gets them has one owner
        as_owner = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
    command = os.environ["CLIENTWISE_ALERT"]
    subprocess.run(command, shell=True, input=line, text=True, check=True, **as_owner)
    write_atomically(file, json.dumps(problems).encode())  # after the alert was sent
    os.chown(file, owner.st_uid, owner.st_gid)


if __name__ == "__main__":
    state, app, *others = sys.argv[1:]
    sys.exit(main(Path(state), Path(app), *others))
