"""What the scripts in deploy/ refuse and print; without a federation."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tomllib
from datetime import datetime, timedelta
from importlib.resources import as_file, files
from pathlib import Path

import numpy
import pandas
import pytest

import processes

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "openssl", "ssh-keygen"))),
    reason="needs bash, openssl and ssh-keygen",
)
SYSTEM = "/usr/bin:/bin:/usr/sbin:/sbin"
FILE = """
import runpy, sys
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class App:
    """The scripts in a folder, and a `flwr` that accepts every command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        with as_file(
            files("clientwise") / "hosts" / "deployment" / "template" / "deploy"
        ) as deploy:
            shutil.copytree(deploy, folder / "deploy")
        for script in (folder / "deploy").glob("*.sh"):
            script.chmod(0o755)
        self.program("flwr", "echo SuperNode 7")
        self.program("python", f'exec {sys.executable} "$@"')

    def program(self, name: str, line: str) -> None:
        """A program in the app's environment."""
        path = self.folder / ".venv" / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    def script(
        self, name: str, *arguments: object, **settings: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a script in an environment that has these settings and nothing else."""
        command = [str(self.folder / "deploy" / name), *map(str, arguments)]
        return subprocess.run(
            command, env={"PATH": SYSTEM} | settings, capture_output=True, text=True, check=False
        )

    def program_of(self, name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run one of the Python files of deploy/."""
        return processes.run(FILE, self.folder / "deploy" / name, *arguments)


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(tmp_path / "app")


def test_a_certificate_has_the_registered_name_and_key(app: App) -> None:
    assert app.script("certificates.sh").returncode == 0
    for name in ("zurich", "cleveland"):
        assert app.script("node-key.sh", name).returncode == 0
        assert app.script("register.sh", name, app.state / "keys" / f"{name}.csr").returncode == 0
    keys, members = app.state / "keys", app.state / "members"
    before = {path.name: path.read_bytes() for path in members.iterdir()}
    kinds = ("pub", "crt", "csr")
    files = {f"{name}.{kind}" for name in ("zurich", "cleveland") for kind in kinds}
    assert set(before) == {"nodes", *files}

    for option in ([], ["--renew"]):  # another's request
        refused = app.script("register.sh", "zurich", keys / "cleveland.csr", *option)
        assert refused.returncode == 1
        assert "is a request of CN=cleveland, not of CN=zurich" in refused.stdout
    foreign = app.folder / "foreign.csr"  # the name is right, the key is not
    command = [
        "openssl",
        "req",
        "-new",
        "-key",
        str(keys / "cleveland.pem"),
        "-subj",
        "/CN=zurich",
        "-out",
    ]
    subprocess.run([*command, str(foreign)], check=True)
    refused = app.script("register.sh", "zurich", foreign, "--renew")
    assert refused.returncode == 1
    assert "not the key that is registered for zurich" in refused.stdout
    assert {path.name: path.read_bytes() for path in members.iterdir()} == before

    assert app.script("register.sh", "zurich", keys / "zurich.csr", "--renew").returncode == 0
    assert (members / "zurich.crt").read_bytes() != before["zurich.crt"]
    assert app.script("register.sh", "zurich", foreign).returncode == 0  # a new key
    assert (members / "zurich.pub").read_bytes() == before["cleveland.pub"]

    app.program("flwr", "exit 1")  # Flower refuses: the registered key stays
    assert app.script("register.sh", "zurich", keys / "zurich.csr").returncode != 0
    assert (members / "zurich.pub").read_bytes() == before["cleveland.pub"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_backup_keeps_the_owner(app: App) -> None:
    (app.state / "run").mkdir(parents=True)
    for name in ("superlink.sqlite", "run/run.sqlite"):
        sqlite3.connect(app.state / name).execute("CREATE TABLE one (two)").connection.close()
    (app.state / "token").write_text("secret")
    for path in (app.state, *app.state.rglob("*")):
        os.chown(path, 1234, 1235)
        path.chmod(0o700 if path.is_dir() else 0o640)
    done = app.script("backup.sh", app.folder / "copies")
    assert done.returncode == 0, done.stderr
    copy = Path(done.stdout.strip())
    kept = {path.relative_to(copy): path.stat() for path in (copy, *copy.rglob("*"))}
    assert set(kept) == {path.relative_to(app.state) for path in (app.state, *app.state.rglob("*"))}
    assert {(one.st_uid, one.st_gid) for one in kept.values()} == {(1234, 1235)}
    assert kept[Path("superlink.sqlite")].st_mode & 0o777 == 0o640


def test_the_scripts_find_their_environment(app: App) -> None:
    app.program("python", 'echo "$0 $*"')
    here = app.folder / ".venv" / "bin" / "python"
    agree = ("agree.sh", "ward-a", "/data")
    assert app.script(*agree).stdout.startswith(f"{here} -m clientwise.hosts.deployment.node agree")
    (app.folder / ".venv").rename(app.folder / "other")
    there = app.folder / "other" / "bin" / "python"
    assert app.script(*agree, VENV=str(app.folder / "other")).stdout.startswith(f"{there} -m")
    assert app.script(*agree, PATH=f"{there.parent}:{SYSTEM}").stdout.startswith(f"{there} -m")


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("curl"), reason="needs root and curl")
def test_a_socket_that_does_not_exist_is_not_called_closed(app: App, tmp_path: Path) -> None:
    app.state.mkdir(mode=0o700)
    (app.state / "superlink.pid").write_text("0")
    with socket.create_server(("127.0.0.1", 0)) as proxy, socket.socket(socket.AF_UNIX) as door:
        settings = {"PORT": str(proxy.getsockname()[1]), "LINK_PORT": "1"}
        app.program("curl", "exit 7")  # nothing answers
        missing = app.script("check.sh", UPSTREAM="unix:/nonexistent/fleet.sock", **settings)
        assert missing.returncode == 1
        assert (
            "BROKEN  the SuperLink's socket does not exist: /nonexistent/fleet.sock"
            in missing.stdout
        )
        door.bind(str(tmp_path / "fleet.sock"))
        there = app.script("check.sh", UPSTREAM=f"unix:{tmp_path / 'fleet.sock'}", **settings)
        assert "closed  the SuperLink's socket, for another user" in there.stdout
        assert "BROKEN" not in there.stdout


def test_the_environment_counts_before_the_file(app: App) -> None:
    app.program("python", 'echo "$4"')
    (app.folder / "deploy" / "local.sh").write_text(
        'STATE="$APP/from file"\nPATH="$APP/tools:$PATH"\n'
    )
    ledger = "nodes/ward-a/ledger.jsonl\n"
    agree = ("agree.sh", "ward-a", "/data")
    assert app.script(*agree).stdout == f"{app.folder}/from file/{ledger}"
    said = app.script(*agree, STATE=f"{app.folder}/it's said").stdout
    assert said == f"{app.folder}/it's said/{ledger}"
    (app.folder / ".venv" / "bin").rename(app.folder / "tools")  # the file's PATH is kept
    assert app.script(*agree).stdout == f"{app.folder}/from file/{ledger}"


def test_inside_says_that_the_superlink_does_not_run(app: App) -> None:
    app.state.mkdir()
    for pid in (
        None,
        "99999999",
        str(os.getpid()),
    ):  # never started, ended, number of another process
        if pid:
            (app.state / "superlink.pid").write_text(pid)
        done = app.script("inside.sh", "true")
        assert (done.returncode, done.stdout) == (1, "")
        assert (
            "the SuperLink is not running (after a start, it takes up to a minute)" in done.stderr
        )


def test_a_stop_that_fails_leaves_no_mark(app: App) -> None:
    app.state.mkdir()
    assert app.script("stop.sh", 7).returncode == 0
    assert (app.state / "run-stop").read_text() == "7\n"
    app.program("flwr", "exit 1")
    assert app.script("stop.sh", 7).returncode == 1
    assert not (app.state / "run-stop").exists()


def test_health_after_a_stop(app: App) -> None:
    app.state.mkdir()
    for event, failed in (("stopped", False), ("failed", True)):
        (app.state / "run-events.jsonl").write_text(f'{{"time": "now", "event": "{event}"}}\n')
        assert ("the run failed" in app.script("health.sh", PORT="1").stdout) == failed


def write_events(app: App, *events: str, age: float = 0.0) -> None:
    """The events of a run, the last of them `age` seconds old."""
    app.state.mkdir(exist_ok=True)
    time = (datetime.now().astimezone() - timedelta(seconds=age)).isoformat()
    lines = [json.dumps({"time": time, "event": event}) + "\n" for event in events]
    (app.state / "run-events.jsonl").write_text("".join(lines))


def test_health_of_a_run_does_not_depend_on_its_process(app: App) -> None:
    (app.state / "run").mkdir(parents=True)
    gone = "the process of the run is gone: run start.sh"
    write_events(app, "begun", "round", age=20)
    done = app.script("health.sh", PORT="1")
    assert done.returncode == 2
    assert gone in done.stdout
    assert "the SuperLink does not answer: systemctl status" in done.stdout
    app.program("flwr", """echo '{"nodes": []}'""")
    assert "0 members online, at least 1 required" in app.script("health.sh", PORT="1").stdout
    with (app.state / "run" / ".lock").open("w") as lock:  # as a run that goes on
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "the run" not in app.script("health.sh", PORT="1").stdout
        write_events(app, "begun", "round", age=1500)
        stale = app.script("health.sh", PORT="1").stdout
        assert "no round ended for 1200 s: run watch.sh" in stale
        assert "no round" not in app.script("health.sh", PORT="1", STALE="1600").stdout
    write_events(app, "begun", "round", "finished", age=9000)
    assert "run" not in app.script("health.sh", PORT="1").stdout.partition("nothing answers")[0]


def test_health_warns_before_disk_and_certificates_end(app: App) -> None:
    assert app.script("certificates.sh").returncode == 0
    assert "free on the disk" not in app.script("health.sh", PORT="1", FREE_MB="1").stdout
    full = app.script("health.sh", PORT="1", FREE_MB=str(10**9))
    assert full.returncode == 2
    assert "less than 1000000000 MB free on the disk" in full.stdout
    assert "expires" not in full.stdout
    authority = app.state / "certificates"
    command = ["openssl", "req", "-x509", "-key", authority / "server.key", "-subj", "/CN=here"]
    command += ["-days", "20", "-out", authority / "server.crt"]
    subprocess.run(list(map(str, command)), check=True)
    said = app.script("health.sh", PORT="1").stdout
    assert "server.crt expires on " in said
    assert "run certificates.sh and restart the services" in said


def test_health_is_told_once_at_every_change(app: App) -> None:
    app.state.mkdir()
    told = app.folder / "told"
    settings = {"ALERT": f"cat >> {told}", "PORT": "1"}
    for free in ("1", "1", str(10**9), "1"):
        app.script("health.sh", "--alert", FREE_MB=free, **settings)
    problems = [json.loads(line)["problems"] for line in told.read_text().splitlines()]
    assert [len(one) for one in problems] == [2, 3, 2]
    assert app.script("health.sh", "--alert").returncode == 1  # no command to tell it to
    if os.geteuid() == 0:  # as the user of the services, as the alerts of a run
        os.chown(app.state, 65534, 65534)
        full = {"FREE_MB": str(10**9), "ALERT": "id -u >&2", "PORT": "1"}
        assert app.script("health.sh", "--alert", **full).stderr == "65534\n"


def test_start_keeps_paths_and_samples_on_the_server(app: App) -> None:
    app.state.mkdir()
    app.program("flwr", 'echo "run 7: $*"')
    data = app.folder / "server.npz"
    data.touch(mode=0o644)
    refused = app.script("start.sh", data, DETACH="1")
    assert refused.returncode == 1
    assert f"{data} can be read by other users of this machine: run chmod" in refused.stdout
    data.chmod(0o600)
    done = app.script("start.sh", data, DETACH="1", ACCEPT_CHANGES="true")
    assert done.stdout == f"run 7: run {app.folder} federation\n"
    started = json.loads((app.state / "run-start.json").read_text())
    assert started == {"server-data": str(data), "initial-model": "", "accept-changes": True}


def test_a_restore_names_members_that_joined_or_left_since(app: App) -> None:
    (app.folder / "federation").mkdir()
    experiment = app.folder / "federation" / "experiment.toml"
    experiment.write_text('flower = { clients = ["old", "gone"] }')
    app.state.mkdir()
    sqlite3.connect(app.state / "superlink.sqlite").execute("CREATE TABLE one (two)")
    assert app.script("certificates.sh").returncode == 0
    for name in ("old", "gone", "kept", "sent"):
        assert app.script("node-key.sh", name).returncode == 0
    for name in ("old", "gone"):
        app.script("register.sh", name, app.state / "keys" / f"{name}.csr")
    copy = app.script("backup.sh", app.folder).stdout.strip()
    app.script("register.sh", "kept", app.state / "keys" / "kept.csr")
    experiment.write_text('flower = { clients = ["old", "gone", "kept", "sent"], left = ["gone"] }')
    done = app.script("restore.sh", copy)
    assert done.returncode == 0, done.stderr
    request = app.state / "members" / "kept.csr"  # found in the state that was replaced
    register = "joined after the backup: deploy/inside.sh deploy/register.sh"
    assert done.stdout.splitlines()[1:-1] == [
        f"kept {register} kept {request}",
        f"sent {register} sent sent.csr",
        "gone has left: deploy/inside.sh flwr supernode unregister 7 federation",
        "gone has left: deploy/revoke.sh gone, as the owner of state/",
    ]
    assert app.script("register.sh", "kept", request).returncode == 0
    assert "is not a backup" in app.script("restore.sh", app.folder).stdout


def test_members_share_a_scaling_without_showing_counts(app: App) -> None:
    random = numpy.random.default_rng(1)
    rows = random.normal(5, 3, (90, 3))
    rows[:, 1] = rows[:, 1] > 5  # two values: their sum would be a count
    rows = numpy.append(rows, numpy.zeros((90, 1)), 1)
    rows[::40, 3] = [71, 83, 92]  # two patients in a part: the two sums would tell their values
    sent = []
    for number, part in enumerate((rows[:30], rows[30:])):
        numpy.savez(app.folder / f"{number}.npz", train_inputs=part)
        done = app.program_of("scaling.py", "sums", app.folder / f"{number}.npz")
        columns = json.loads(done.stdout)["columns"]
        assert [column is None for column in columns] == [False, True, False, True]
        sent.append(app.folder / f"{number}.json")
        sent[-1].write_text(done.stdout)
    found = json.loads(app.program_of("scaling.py", "combine", *sent).stdout)
    assert found["mean"] == pytest.approx([rows[:, 0].mean(), 0, rows[:, 2].mean(), 0], abs=0.2)
    assert found["deviation"] == pytest.approx([rows[:, 0].std(), 1, rows[:, 2].std(), 1], rel=0.06)
    numpy.savez(app.folder / "small.npz", train_inputs=rows[:19])
    refused = app.program_of("scaling.py", "sums", app.folder / "small.npz")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "19 training samples; with fewer than 20, nothing is sent" in refused.stderr


def test_the_sums_before_and_after_a_patient_joined_do_not_tell_the_patient(app: App) -> None:
    rows = numpy.random.default_rng(1).normal(50, 10, (60, 8))
    told = []
    for count in (58, 59):
        numpy.savez(app.folder / "rows.npz", train_inputs=rows[:count])
        told.append(
            json.loads(app.program_of("scaling.py", "sums", app.folder / "rows.npz").stdout)
        )
    before, after = (numpy.array(one["columns"])[:, 0] for one in told)
    assert numpy.abs(after - before - rows[58]).min() > 1
    assert told[0]["count"] == told[1]["count"] == 50


def test_members_with_tables_share_a_scaling(app: App) -> None:
    random = numpy.random.default_rng(1)
    experiment = app.folder / "federation" / "experiment.toml"
    experiment.parent.mkdir(exist_ok=True)
    experiment.write_text(
        'name = "f"\nrounds = 1\nmodel = "linear"\nmethods = ["FedAvg"]\nevaluation = { test_fraction = 0.2 }\n'
        '[flower]\nclients = ["a", "b"]\n[flower.table]\ntarget = "y"\ncolumns = ['
        '{ name = "Größe", marks_missing = true }, { name = "sex", categories = ["f", "m"] }, { name = "b" }]\n',
        encoding="utf-8",
    )
    rows = {"y": random.normal(size=80), "Größe": random.normal(5, 3, 80)}
    rows |= {"sex": ["f", "m"] * 40, "b": random.choice([0, 1], 80)}
    file = app.folder / "a.csv"
    pandas.DataFrame(rows).to_csv(file, index=False)
    done = app.program_of("scaling.py", "sums", file)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["names"] == ["Größe", "b"]
    assert found["columns"][1] is None
    assert 50 <= found["count"] < 75  # those to train on
    sent = [app.folder / "a.json", app.folder / "b.json"]
    sent[0].write_text(done.stdout, encoding="utf-8")
    found["columns"][0] = None  # almost constant at this member
    sent[1].write_text(json.dumps(found), encoding="utf-8")
    combined = app.program_of("scaling.py", "combine", *sent)
    assert "Größe: left out in b.json; the scaling is that of the others" in combined.stderr
    assert "b: left out in a.json, b.json; it is not scaled: mean 0, deviation 1" in combined.stderr
    columns = tomllib.loads(f"columns = [\n{combined.stdout}]")["columns"]
    assert [column["name"] for column in columns] == ["Größe", "b"]
    assert columns[0]["marks_missing"] is True
    assert columns[0]["mean"] == pytest.approx(5, abs=1)
    assert columns[0]["deviation"] == pytest.approx(3, abs=0.6)
    assert columns[1] == {"name": "b", "mean": 0.0, "deviation": 1.0}


def test_a_node_prints_what_was_asked_of_it(app: App) -> None:
    ledger = app.state / "nodes" / "ward-a" / "ledger.jsonl"
    ledger.parent.mkdir(parents=True)
    ledger.write_text(
        '{"time": "2026-11-17T10:00:00+0100", "approval": "none", "event": "refused", "run": "7", '
        '"round": 3, "kind": "evaluate", "reason": "too many models"}\n'
    )
    settings = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "WHY": "the officer says so"}
    done = app.script("withdraw.sh", "ward-a", **settings)
    assert "answers nothing until deploy/agree.sh approves an app" in done.stdout, done.stderr
    said = app.script("ledger.sh", "ward-a", **settings)
    assert said.returncode == 0, said.stderr
    assert "2026-11-17  approval none, Flower run 7" in said.stdout
    assert "refused 1 times: too many models" in said.stdout
    assert "withdrawn: the officer says so" in said.stdout
