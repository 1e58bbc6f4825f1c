#!/usr/bin/env bash
# On the server: end a run after its last finished round; start.sh goes on with it.
#   stop.sh RUN_ID      as watch.sh shows it
set -euo pipefail
source "$(dirname "$0")/settings.sh"
echo "${1:?usage: stop.sh RUN_ID}" > "$STATE/run-stop"  # so that the run knows that it did not fail
flwr stop "$1" federation || { rm "$STATE/run-stop"; exit 1; }
