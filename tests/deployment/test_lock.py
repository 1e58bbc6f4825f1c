"""What is installed is what was locked: versions and hashes, and nothing of our own name from outside."""

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

pytestmark = pytest.mark.flower


def wheel(folder: Path, name: str, version: str, needs: str = "") -> Path:
    """A package with one empty module."""
    path, about = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    content = {
        f"{name}.py": "",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    hashes = {
        file: urlsafe_b64encode(sha256(text.encode()).digest()).decode().rstrip("=") for file, text in content.items()
    }
    record = "".join(f"{file},sha256={hashes[file]},{len(text)}\n" for file, text in content.items())
    with ZipFile(path, "w") as file:
        for place, text in {**content, f"{about}/RECORD": f"{record}{about}/RECORD,,\n"}.items():
            file.writestr(place, text)
    return path


def pip(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "install", "--quiet", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=180)


def test_what_is_installed_is_what_was_locked(tmp_path: Path) -> None:
    index = tmp_path / "index"
    index.mkdir()
    dependency = wheel(index, "dependency", "1.5")
    wheel(index, "clientwise", "99.0")  # somebody else's, of our name
    needs = 'Provides-Extra: flower\nRequires-Dist: dependency>=1; extra == "flower"\n'
    ours = wheel(tmp_path, "clientwise", "0.1.0", needs)
    environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    deploy = tmp_path / "deploy"
    with as_file(files("clientwise") / "template" / "deploy") as template:
        shutil.copytree(template, deploy)
    subprocess.run([sys.executable, str(deploy / "lock.py"), str(ours)], env=environment, check=True, timeout=180)

    found = sha256(dependency.read_bytes()).hexdigest()
    lock = deploy / "requirements.lock"
    assert lock.read_text() == f"dependency==1.5 --hash=sha256:{found}\n"
    components = {one["name"]: one for one in json.loads((deploy / "sbom.json").read_text())["components"]}
    assert {name: one["version"] for name, one in components.items()} == {"dependency": "1.5", "clientwise": "0.1.0"}
    assert components["clientwise"]["hashes"][0]["content"] == sha256(ours.read_bytes()).hexdigest()

    install = ["--require-hashes", "--no-deps", "--target", str(tmp_path / "installed"), "-r", str(lock)]
    assert pip(*install, environment=environment).returncode == 0
    assert (tmp_path / "installed" / "dependency.py").exists()
    dependency.unlink()
    wheel(index, "dependency", "1.5", "Summary: changed on its way\n")
    refused = pip(*install, "--upgrade", environment=environment)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
