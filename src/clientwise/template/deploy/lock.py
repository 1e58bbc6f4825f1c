"""Lists what a deployment installs, each file with its hash, and writes an SBOM.

    python deploy/lock.py CLIENTWISE.whl

Run it before a deployment, on a machine like those it is for. It writes deploy/requirements.lock
and deploy/sbom.json (CycloneDX). clientwise itself is taken from the file you name, never from an
index. Then install, on the server and on every node:

    pip install --require-hashes --no-deps -r deploy/requirements.lock
    pip install --no-deps --no-index CLIENTWISE.whl
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RESOLVE = ["pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]


def resolve(wheel: Path) -> list[dict[str, Any]]:
    """What pip would install for this wheel, with hashes."""
    command = [sys.executable, "-m", *RESOLVE, f"{wheel}[flower]"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    packages: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return packages


def main(wheel: Path) -> None:
    """Write the lock file and the SBOM."""
    lines = []
    components = []
    for package in resolve(wheel):
        name = package["metadata"]["name"]
        version = package["metadata"]["version"]
        if name == "clientwise":
            sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        else:
            sha256 = package["download_info"]["archive_info"]["hashes"]["sha256"]
            lines.append(f"{name}=={version} --hash=sha256:{sha256}")
        component = {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name.lower()}@{version}",
            "hashes": [{"alg": "SHA-256", "content": sha256}],
        }
        components.append(component)
    lock = FOLDER / "requirements.lock"
    lock.write_text("\n".join(sorted(lines, key=str.lower)) + "\n")
    sbom = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}
    (FOLDER / "sbom.json").write_text(json.dumps(sbom, indent=1) + "\n")
    print(f"Wrote {lock} ({len(lines)} packages and clientwise) and {FOLDER / 'sbom.json'}.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
