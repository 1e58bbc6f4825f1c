#!/usr/bin/env bash
# On the server: stops a run; start.sh resumes it after its last finished round.
#   stop.sh RUN_ID      watch.sh shows the number
set -euo pipefail
source "$(dirname "$0")/settings.sh"
echo "${1:?usage: stop.sh RUN_ID}" > "$STATE/run-stop"  # the run reads it: not a failure
flwr stop "$1" federation || { rm "$STATE/run-stop"; exit 1; }
