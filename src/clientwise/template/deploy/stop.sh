#!/usr/bin/env bash
# On the server: end a run after its last finished round; start.sh goes on with it.
#   stop.sh RUN_ID      as watch.sh shows it
set -euo pipefail
source "$(dirname "$0")/settings.sh"
flwr stop "${1:?usage: stop.sh RUN_ID}" federation
