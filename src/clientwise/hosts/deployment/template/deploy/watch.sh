#!/usr/bin/env bash
# On the server: lists the nodes by name and the runs, and shows the progress of the run in
# state/run. `clientwise serve state/run` shows the run as a page.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
flwr supernode list federation --format json | python -c '
import json
import pathlib
import sys

file = pathlib.Path(sys.argv[1])
lines = file.read_text().splitlines() if file.exists() else []
names = dict(line.split(maxsplit=1) for line in lines)
for node in json.load(sys.stdin)["nodes"]:
    name = names.get(node["node-id"], "?")
    print("{:20} {status:12} node {node-id}".format(name, **node))
' "$STATE/members/nodes"
flwr list federation
if [[ -e "$STATE/run/config.toml" ]]; then clientwise show "$STATE/run"; fi
