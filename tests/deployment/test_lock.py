"""What is installed is what was locked: versions and hashes, and clientwise from no index."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from base64 import urlsafe_b64encode
from hashlib import sha256
from importlib.resources import as_file, files
from pathlib import Path
from zipfile import ZipFile

import pytest

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1800)]


def wheel(folder: Path, name: str, version: str, needs: str = "") -> Path:
    """A package with one empty module."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    content = {
        f"{name}.py": "",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name_in_wheel, text in content.items():
        digest = urlsafe_b64encode(sha256(text.encode()).digest()).decode().rstrip("=")
        record += f"{name_in_wheel},sha256={digest},{len(text)}\n"
    content[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n"
    with ZipFile(path, "w") as file:
        for name_in_wheel, text in content.items():
            file.writestr(name_in_wheel, text)
    return path


def pip(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "install", "--quiet", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=600
    )


def test_what_is_installed_is_what_was_locked(tmp_path: Path) -> None:
    index = tmp_path / "index"
    index.mkdir()
    dependency = wheel(index, "dependency", "1.5")
    wheel(index, "clientwise", "99.0")  # a foreign package of the same name
    needs = 'Provides-Extra: deployment\nRequires-Dist: dependency>=1; extra == "deployment"\n'
    ours = wheel(tmp_path, "clientwise", "0.1.0", needs)
    environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    deploy = tmp_path / "deploy"
    with as_file(files("clientwise") / "hosts" / "deployment" / "template" / "deploy") as template:
        shutil.copytree(template, deploy)
    subprocess.run(
        [sys.executable, str(deploy / "lock.py"), str(ours)],
        env=environment,
        check=True,
        timeout=600,
    )

    found = sha256(dependency.read_bytes()).hexdigest()
    lock = deploy / "requirements.lock"
    assert lock.read_text() == f"dependency==1.5 --hash=sha256:{found}\n"
    components = {
        one["name"]: one for one in json.loads((deploy / "sbom.json").read_text())["components"]
    }
    assert {name: one["version"] for name, one in components.items()} == {
        "dependency": "1.5",
        "clientwise": "0.1.0",
    }
    assert components["clientwise"]["hashes"][0]["content"] == sha256(ours.read_bytes()).hexdigest()

    install = [
        "--require-hashes",
        "--no-deps",
        "--target",
        str(tmp_path / "installed"),
        "-r",
        str(lock),
    ]
    assert pip(*install, environment=environment).returncode == 0
    assert (tmp_path / "installed" / "dependency.py").exists()
    dependency.unlink()
    wheel(index, "dependency", "1.5", "Summary: changed on its way\n")
    refused = pip(*install, "--upgrade", environment=environment)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
