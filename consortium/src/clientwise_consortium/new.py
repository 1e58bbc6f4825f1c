"""The files that a coordinator or a site begins with: `clientwise-consortium new`."""

from __future__ import annotations

import shutil
from pathlib import Path

UNITS = {
    "coordinator": ("flower-superlink.service", "clientwise-server.service"),
    "site": ("flower-supernode.service", "clientwise-node.service"),
}
SIGNERS = """\
# Whom this machine knows. Read its hash (sha256sum) to the others by telephone. One line each, without wildcards:
# release namespaces="clientwise-release" ssh-ed25519 AAAA...
# coordinator namespaces="clientwise-coordinator" ssh-ed25519 AAAA...
# north namespaces="clientwise-member" ssh-ed25519 AAAA...
# doctor namespaces="clientwise-approval" ssh-ed25519 AAAA...
"""
EXPERIMENT = """\
# What all sites approve. It names no code: own parts are packages in requirements.lock.
name = "first"
engine = "flower"
rounds = 20
seeds = [1]
model = "linear"

[training]
epochs = 1
batch_size = "full"
learning_rate = 0.3
sample_clip = 1.0  # the noise that hides a patient's row
sample_noise = 8.0

[[methods]]
name = "Sizes"
criteria = ["dataset_size"]

[evaluation]
clients_every = 0  # the coordinator's own samples are enough

[flower]
clients = ["east", "north", "south"]  # names in the signers file
input_shape = [30]
num_classes = 2
"""
NODE = """\
site = "north"
approver = "doctor"
data = "/srv/clientwise/north.npz"
most_mu = 3.0  # the house's limit over all approvals together
"""
SERVER = """\
server_data = "/srv/clientwise/server.npz"
"""
APP = """\
# `flwr run` needs an app. No service unpacks it or runs it.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "clientwise-stub"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "clientwise"

[tool.flwr.app.components]
serverapp = "stub:app"
clientapp = "stub:app"
"""
CONNECTION = """\
[superlink]
default = "here"

[superlink.here]
address = "127.0.0.1:8000"
insecure = true  # the loopback interface
"""
STUB = '''\
"""Nothing: the services have the code."""

app = None
'''


def write(role: str, folder: Path) -> list[Path]:
    """Write the files of a role into a new folder; their paths."""
    folder.mkdir(parents=True)
    texts = {"signers": SIGNERS, "experiment.toml": EXPERIMENT}
    if role == "site":
        texts["node.toml"] = NODE
    else:
        texts |= {"server.toml": SERVER, "app/pyproject.toml": APP, "app/stub.py": STUB}
        texts["flwr/config.toml"] = CONNECTION
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    copied = list(UNITS[role]) if role == "site" else [*UNITS[role], "nginx.conf"]
    for name in copied:
        shutil.copyfile(shipped(name), folder / name)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def shipped(name: str) -> Path:
    """A unit, or nginx's file: beside this module where the package is installed, above it in a checkout."""
    here = Path(__file__).parent
    checkout = here.parents[1] / ("units" if name.endswith(".service") else "")
    installed = here / "files" / name
    return installed if installed.exists() else checkout / name
