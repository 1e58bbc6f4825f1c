"""Before a deployment, on a machine like those it is for: what to install, each file with its hash, and an SBOM.

    python deploy/lock.py CLIENTWISE.whl      writes deploy/requirements.lock and deploy/sbom.json (CycloneDX)

clientwise comes from the file you name and is not looked for anywhere. Then, on the server and on every node:

    pip install --require-hashes --no-deps -r deploy/requirements.lock
    pip install --no-deps --no-index CLIENTWISE.whl
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

wheel, folder = Path(sys.argv[1]), Path(__file__).parent
command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
done = subprocess.run([*command, f"{wheel}[flower]"], stdout=subprocess.PIPE, check=True)
lines, components = [], []
for one in json.loads(done.stdout)["install"]:
    name, version = one["metadata"]["name"], one["metadata"]["version"]
    mine = name == "clientwise"
    sha256 = (
        hashlib.sha256(wheel.read_bytes()).hexdigest()
        if mine
        else one["download_info"]["archive_info"]["hashes"]["sha256"]
    )
    if not mine:
        lines.append(f"{name}=={version} --hash=sha256:{sha256}")
    component = {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name.lower()}@{version}"}
    components.append(component | {"hashes": [{"alg": "SHA-256", "content": sha256}]})
(folder / "requirements.lock").write_text("\n".join(sorted(lines, key=str.lower)) + "\n")
sbom = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}
(folder / "sbom.json").write_text(json.dumps(sbom, indent=1) + "\n")
print(f"{len(lines)} packages in {folder / 'requirements.lock'}, and clientwise; {folder / 'sbom.json'}")
