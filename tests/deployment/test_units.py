"""The systemd units of deploy/systemd, booted: server and node of one machine, set up as the guide says.

A systemd of its own runs as process 1 of new namespaces, with /etc and /run of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import tomli_w

pytest.importorskip("flwr", reason="needs clientwise[deployment]")

from federation import require

import processes

pytestmark = [
    pytest.mark.netns,
    pytest.mark.long,  # it boots systemd in a container
    pytest.mark.timeout(3600),  # the waits have limits of their own
]
APP = "/opt/federation"
SILENCE = 45  # seconds: longer than a busy machine takes to answer
NODE = "NAME=ward-a\nDATA=/opt/federation/data/ward-a.npz\nHOST=127.0.0.1\n"
# What a container does not need at boot is masked: devices, kernel settings, temporary files.
BOOT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/etc/upper /run/etc/work
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work /etc || {
    cp -a /etc /run/etc/copy
    mount --bind /run/etc/copy /etc
}
rm -rf /etc/systemd/system
mkdir -p /etc/systemd/system
for unit in /lib/systemd/system/sysinit.target.wants/*; do
    case "$unit" in *journald*) ;; *) ln -s /dev/null "/etc/systemd/system/${unit##*/}" ;; esac
done
echo 0123456789abcdef0123456789abcdef > /etc/machine-id
echo "federation:x:64123:64123::/nonexistent:/usr/sbin/nologin" >> /etc/passwd
echo "federation:x:64123:" >> /etc/group
mount -t tmpfs tmpfs /opt
mkdir /opt/federation
mount --bind "$1" /opt/federation
if [[ "$2" == "$HOME"/* ]]; then  # a Python of root's own: other users may read this copy
    mkdir /run/python
    mount --bind "$2" /run/python
    mount -t tmpfs -o mode=755 tmpfs "$HOME"
    mkdir -p "$2"
    mount --bind /run/python "$2"
fi
chown -R root:root /opt/federation  # the services cannot change the app
install -d -o federation -g federation -m 700 /opt/federation/state
chown -R federation:federation /opt/federation/data
mount -t proc proc /proc
ip link set lo up
export container=other
exec /lib/systemd/systemd --system --unit=basic.target --log-target=journal --show-status=no
"""


class Machine:
    """A booted systemd; commands run inside it."""

    def __init__(self, app: Path) -> None:
        spaces = ["--pid", "--mount", "--uts", "--ipc", "--cgroup", "--net"]
        command = ["unshare", "--fork", "--kill-child", *spaces, "bash", "-c", BOOT, "boot"]
        self._process = subprocess.Popen(
            [*command, str(app), sys.base_prefix],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self._app = app
        self.wait_for(self._has_booted, 60, "systemd to boot")

    def _has_booted(self) -> bool:
        assert self._process.poll() is None, "systemd did not boot"
        return self("systemctl", "is-system-running").stdout.strip() in ("running", "degraded")

    def __call__(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command as root; it may fail."""
        pid = self._process.pid
        child = Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()
        enter = ["nsenter", "--target", child, "--mount", "--pid", "--uts", "--ipc", "--cgroup"]
        path = "/usr/sbin:/usr/bin:/sbin:/bin"
        return subprocess.run(
            [*enter, "--net", "--wd=/", "--", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            env={"PATH": path, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        )

    def run(self, *command: str, user: str = "root") -> str:
        """Run a command, which must succeed; returns what it printed."""
        done = self("runuser", "--user", user, "--", *command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.journal()}"
        return done.stdout

    def health(self) -> str:
        """What health.sh says."""
        return self(f"{APP}/deploy/health.sh").stdout

    def journal(self) -> str:
        """The last lines of all services."""
        return self("journalctl", "--no-pager", "-n", "60", "-u", "federation-*").stdout

    def wait_for(self, condition: object, seconds: float, what: str) -> None:
        """Until the condition holds."""
        assert callable(condition)
        processes.wait_until(condition, seconds, what, self.journal)

    def halt(self) -> None:
        """End everything in it."""
        self._process.kill()
        self._process.wait(60)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    needed = ["unshare", "nsenter", "ip", "nft", "nginx", "openssl", "ssh-keygen", "systemctl"]
    require(needed, root=True)
    hidden = Path(sys.prefix).is_relative_to(Path.home())
    if hidden or not os.access("/sys/fs/cgroup/systemd", os.W_OK):
        pytest.skip("systemd needs its control group, and a Python that its services can read")
    app = tmp_path / "app"
    subprocess.run([sys.executable, "-m", "clientwise", "new", str(app)], check=True)
    prepare(app)
    one = Machine(app)
    yield one
    one.halt()
    with contextlib.suppress(OSError):
        shutil.rmtree(app)


def prepare(app: Path) -> None:
    """An experiment with one member, and the environment that the units expect."""
    path = app / "federation" / "experiment.toml"
    table = tomllib.loads(path.read_text())
    table["rounds"] = 2
    table["flower"] |= {"clients": ["ward-a"], "min_replies": 1}
    del table["methods"][0]["bounds"]  # a cap on one member's weight is infeasible
    path.write_text(tomli_w.dumps(table))
    (app / ".venv").symlink_to(sys.prefix)
    (app / "deploy" / "local.sh").write_text('ALERT="cat >> $APP/state/alerts"\n')
    for path in (app / "data", *(app / "data").iterdir()):
        path.chmod(0o700)


def install(machine: Machine, *units: str) -> None:
    """Copy units to where systemd finds them; they find the tested sources, and Python anywhere."""
    for unit in units:
        machine.run(
            "bash", "-c", f"cp {APP}/deploy/systemd/federation-{unit}.* /etc/systemd/system"
        )
        folder = f"/etc/systemd/system/federation-{unit}.service.d"
        line = f"[Service]\nProtectHome=no\nEnvironment=PYTHONPATH={os.environ.get('PYTHONPATH', '')}\n"
        machine.run("bash", "-c", f"mkdir {folder} && printf '{line}' > {folder}/test.conf")
    machine.run("systemctl", "daemon-reload")


def restarts(machine: Machine) -> int:
    return int(machine.run("systemctl", "show", "-P", "NRestarts", "federation-node"))


def test_units_run_a_federation_and_restart_a_silent_node(machine: Machine) -> None:
    machine.run(f"{APP}/deploy/certificates.sh", user="federation")
    install(machine, "superlink", "fleet", "proxy", "health", "limits")
    machine.run("systemctl", "enable", "--now", "federation-limits.service")
    assert "ct count over 64" in machine.run("nft", "list", "ruleset")
    server = ["federation-superlink.service", "federation-fleet.socket", "federation-proxy.service"]
    machine.run("systemctl", "enable", "--now", *server)
    inside = f"{APP}/deploy/inside.sh"
    machine.wait_for(
        lambda: (
            machine(inside, "flwr", "supernode", "list", "federation").returncode == 0
            or "members online" in machine.health()
        ),
        120,
        "the SuperLink",
    )
    machine.run(f"{APP}/deploy/node-key.sh", "ward-a", user="federation")
    machine.wait_for(
        lambda: (
            machine(
                inside, f"{APP}/deploy/register.sh", "ward-a", f"{APP}/state/keys/ward-a.csr"
            ).returncode
            == 0
        ),
        60,
        "the registration",
    )
    machine.run("cp", f"{APP}/state/members/ward-a.crt", f"{APP}/state/keys/")
    machine.run("chown", "-R", "federation", f"{APP}/state/keys")
    data = f"{APP}/data/ward-a.npz"
    refused = machine(f"{APP}/deploy/agree.sh", "ward-a", data)  # root's file would close the node
    assert "run this as the owner of" in refused.stdout
    machine.run(f"{APP}/deploy/agree.sh", "ward-a", data, user="federation")
    machine.run("bash", "-c", f"printf '{NODE}SILENCE={SILENCE}\n' > /etc/federation-node")
    install(machine, "node", "uplink")
    machine.run("systemctl", "enable", "--now", "federation-uplink.socket", "federation-node")
    machine.wait_for(lambda: machine.health() == "OK 1 member online\n", 180, "the node")
    machine.run("systemctl", "enable", "--now", "federation-health.timer")

    # The node's network has one connection; other users of the machine reach nothing.
    socket = "UPSTREAM=unix:/run/federation/fleet.sock"
    said = machine.run("env", socket, f"{APP}/deploy/check.sh", "ward-a")
    assert "closed  the SuperLink's socket, for another user" in said
    assert "works   the fleet API, for members alone" in said

    before = restarts(machine)
    machine.run("systemctl", "kill", "--signal=STOP", "federation-proxy")
    machine.wait_for(lambda: restarts(machine) > before, 180, "the node to be restarted")
    assert machine.health().startswith("BAD nothing answers at 127.0.0.1:9092")
    machine.run("systemctl", "start", "federation-health")  # as the timer does
    machine.run("systemctl", "kill", "--signal=CONT", "federation-proxy")
    machine.wait_for(lambda: machine.health() == "OK 1 member online\n", 180, "the node")
    alerts = machine.run("cat", f"{APP}/state/alerts").splitlines()
    assert any("nothing answers" in line for line in json.loads(alerts[0])["problems"])

    machine.run(inside, f"{APP}/deploy/start.sh", f"{APP}/data/server.npz")
    assert "2 rounds" in machine.run(
        inside, f"{APP}/.venv/bin/clientwise", "show", f"{APP}/state/run"
    )
    units = {
        path.name for path in Path(str(files("clientwise") / "template/deploy/systemd")).iterdir()
    }
    for unit in units:
        assert machine.run("systemctl", "show", "-P", "LoadState", unit) == "loaded\n", unit
