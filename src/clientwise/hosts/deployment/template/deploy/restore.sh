#!/usr/bin/env bash
# On the server: replaces state/ by a copy that backup.sh made, and says which members joined or
# left since. Stop the services before and start them afterwards. The present state/, if there is
# any, is kept beside it.
#   restore.sh COPY      a folder that backup.sh wrote
set -euo pipefail
source "$(dirname "$0")/settings.sh"
copy="$(realpath "${1:?usage: restore.sh COPY}")"
if [[ ! -e "$copy/superlink.sqlite" ]]; then
    echo "$copy is not a backup: it has no superlink.sqlite"
    exit 1
fi
pid="$(cat "$STATE/superlink.pid" 2> /dev/null || true)"
if grep -qs clientwise.hosts.deployment.link "/proc/$pid/cmdline"; then
    echo "the SuperLink is running: stop the services first"
    exit 1
fi
before=""
if [[ -e "$STATE" ]]; then
    before="$STATE-before-$(date +%Y%m%d-%H%M%S)"
    mv "$STATE" "$before"
    echo "Moved the present state to $before."
fi
cp -a "$copy" "$STATE"
python - "$APP/federation/experiment.toml" "$STATE/members" "$before/members" <<'PYTHON'
import shutil
import sys
import tomllib
from pathlib import Path

experiment, members, before = map(Path, sys.argv[1:])
settings = tomllib.loads(experiment.read_text(encoding="utf-8"))["flower"]
left = settings.get("left", [])
file = members / "nodes"
lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
nodes = [line.split(maxsplit=1) for line in lines]
known = {name for _, name in nodes}
for name in settings["clients"]:
    if name in known or name in left:
        continue
    request = before / f"{name}.csr"
    if request.exists():
        members.mkdir(exist_ok=True)
        request = Path(shutil.copy(request, members))
    else:
        request = Path(f"{name}.csr")  # the member has it
    print(f"{name} joined after the backup: deploy/inside.sh deploy/register.sh {name} {request}")
for node, name in nodes:
    if name in left:
        print(f"{name} has left: deploy/inside.sh flwr supernode unregister {node} federation")
        print(f"{name} has left: deploy/revoke.sh {name}, as the owner of state/")
PYTHON
echo "Start the services, run the commands above, if any, then start.sh."
