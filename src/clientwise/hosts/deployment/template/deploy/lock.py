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
from urllib.parse import urlsplit
from urllib.request import url2pathname

FOLDER = Path(__file__).parent
RESOLVE = ["pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]


def resolve(wheel: Path) -> list[dict[str, Any]]:
    """What pip would install for this wheel, with hashes."""
    command = [sys.executable, "-m", *RESOLVE, f"{wheel}[deployment]"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    packages: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return packages


def hash_of(package: dict[str, Any]) -> str:
    """The hash that the index gives, or that of a file of this machine, which pip need not give."""
    archive = package["download_info"]
    address = urlsplit(archive["url"])
    if address.scheme == "file":
        return hashlib.sha256(Path(url2pathname(address.path)).read_bytes()).hexdigest()
    found = archive["archive_info"].get("hashes", {})
    if "sha256" not in found:
        sys.exit(f"{archive['url']}: the index gives no SHA-256; use an index that does")
    return str(found["sha256"])


def main(wheel: Path) -> None:
    """Write the lock file and the SBOM."""
    lines = []
    components = []
    for package in resolve(wheel):
        name = package["metadata"]["name"]
        version = package["metadata"]["version"]
        sha256 = hash_of(package)
        if name != "clientwise":
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
