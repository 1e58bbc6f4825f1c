"""B1: the guide's own commands. Deliveries that a courier of updates changed are tried in test_attacks.py (U01 to U10).

Hostile content writes a marker.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from conftest import Keys

GUIDE = Path(__file__).parents[1] / "docs" / "guide.md"


def commands(signers: Path, opt: Path) -> str:
    """The block of the guide, with this test's paths."""
    (block,) = re.findall(r"<!-- install -->\n```\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    for old, new in (
        ("/etc/clientwise/signers", str(signers)),
        ("/opt/clientwise", str(opt)),
        ("/usr/bin/python3", sys.executable),
    ):
        assert old in block
        block = block.replace(old, new)
    return block


def wheel(code: str) -> bytes:
    """A package `good` of one module."""
    files = {
        "good.py": code,
        "good-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: good\nVersion: 1.0\n",
        "good-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for name, text in files.items():
        hashed = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        lines.append(f"{name},sha256={hashed.decode()},{len(text)}")
    files["good-1.0.dist-info/RECORD"] = "\n".join([*lines, "good-1.0.dist-info/RECORD,,"])
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def sdist(code: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in (
            ("setup.py", code),
            ("PKG-INFO", "Metadata-Version: 2.1\nName: good\nVersion: 1.0\n"),
        ):
            entry = tarfile.TarInfo(f"good-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return content.getvalue()


class Delivery:
    """What a courier brings: a signed list, and the wheels."""

    def __init__(self, folder: Path, keys: Keys) -> None:
        self.folder = folder / "delivery"
        self.wheels = self.folder / "wheels"
        self.wheels.mkdir(parents=True)
        self.opt = folder / "opt"
        self.opt.mkdir()
        self.keys = keys
        keys.add("release", "clientwise-release")
        self.marker = folder / "PWNED"
        self.hostile = f"open({str(self.marker)!r}, 'w').close()\n"
        content = wheel("value = 1\n")
        (self.wheels / "good-1.0-py3-none-any.whl").write_bytes(content)
        self.lock = self.folder / "requirements.lock"
        self.lock.write_text(f"good==1.0 --hash=sha256:{hashlib.sha256(content).hexdigest()}\n")
        keys.sign(self.lock, "release", "clientwise-release")

    def install(self) -> int:
        script = commands(self.keys.signers, self.opt)
        done = subprocess.run(["sh"], input=script, cwd=self.folder, text=True, capture_output=True)
        return done.returncode

    def value(self) -> str:
        (installed,) = self.opt.iterdir()
        command = [str(installed / "bin" / "python"), "-c", "import good; print(good.value)"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def delivery(keys: Keys, tmp_path: Path) -> Delivery:
    return Delivery(tmp_path, keys)


def test_what_was_signed_is_installed(delivery: Delivery) -> None:
    assert delivery.install() == 0
    assert delivery.value() == "1"


def changed_wheel(delivery: Delivery) -> None:
    path = delivery.wheels / "good-1.0-py3-none-any.whl"
    path.write_bytes(wheel(delivery.hostile))


def sdist_instead(delivery: Delivery) -> None:
    (delivery.wheels / "good-1.0-py3-none-any.whl").unlink()
    (delivery.wheels / "good-1.0.tar.gz").write_bytes(sdist(delivery.hostile))


def sdist_with_its_hash(delivery: Delivery) -> None:
    content = sdist(delivery.hostile)
    sdist_instead(delivery)
    hashed = hashlib.sha256(content).hexdigest()
    delivery.lock.write_text(f"good==1.0 --hash=sha256:{hashed}\n")


def another_list(delivery: Delivery) -> None:
    content = wheel(delivery.hostile)
    changed_wheel(delivery)
    hashed = hashlib.sha256(content).hexdigest()
    delivery.lock.write_text(f"good==1.0 --hash=sha256:{hashed}\n")


def signed_by_a_member(delivery: Delivery) -> None:
    another_list(delivery)
    delivery.keys.sign(delivery.lock, "north", "clientwise-release")


def signed_for_another_purpose(delivery: Delivery) -> None:
    another_list(delivery)
    delivery.keys.sign(delivery.lock, "release", "clientwise-approval")


def check_that_other_files_are_not_run(delivery: Delivery) -> None:
    """A Python, modules, a pip configuration and a .pth beside the list: ignored."""
    shell = f"#!/bin/sh\ntouch {delivery.marker}\n"
    for name in (".venv/bin/python", "pip", "python3", "ssh-keygen", "state/start.sh"):
        path = delivery.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shell)
        path.chmod(0o755)
    modules = ("pip", "venv", "sitecustomize", "usercustomize", "encodings", "zipfile", "good")
    for name in (*(f"{module}.py" for module in modules), "pip/__main__.py", "wheels/good.pth"):
        path = delivery.folder / name
        if path.parent.name == "pip":
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(delivery.hostile)
    (delivery.folder / "hostile.pth").write_text(f"import os; {delivery.hostile}")
    (delivery.folder / "pip.conf").write_text("[global]\nindex-url = http://127.0.0.1:9/\n")
    (delivery.folder / "setup.cfg").write_text("[easy_install]\nindex_url = http://127.0.0.1:9/\n")
    assert delivery.install() == 0
    assert delivery.value() == "1"
    assert not delivery.marker.exists()
