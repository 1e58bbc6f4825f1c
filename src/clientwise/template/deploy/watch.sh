#!/usr/bin/env bash
# On the server: the nodes, the runs, and how far the run is. `clientwise serve state/run` shows it as a page.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
flwr supernode list federation
flwr list federation
if [[ -e "$STATE/run/config.toml" ]]; then clientwise show "$STATE/run"; fi
