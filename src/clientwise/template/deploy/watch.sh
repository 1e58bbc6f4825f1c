#!/usr/bin/env bash
# On the server: the nodes by name, the runs, and how far the run is. `clientwise serve state/run` shows it as a page.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
flwr supernode list federation --format json | python -c '
import json, pathlib, sys
known = pathlib.Path(sys.argv[1])
names = dict(line.split(maxsplit=1) for line in known.read_text().splitlines()) if known.exists() else {}
for node in json.load(sys.stdin)["nodes"]:
    print("{:20} {status:12} node {node-id}".format(names.get(node["node-id"], "?"), **node))' "$STATE/members/nodes"
flwr list federation
if [[ -e "$STATE/run/config.toml" ]]; then clientwise show "$STATE/run"; fi
