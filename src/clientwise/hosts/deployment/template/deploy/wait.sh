#!/usr/bin/env bash
# On the server: waits until a run has ended. Exits with 1 if the run failed.
#   wait.sh RUN_ID
set -euo pipefail
source "$(dirname "$0")/settings.sh"
run="${1:?usage: wait.sh RUN_ID}"
status() {
    flwr list federation --run-id "$run" --format json |
        python -c 'import json, sys; print(json.load(sys.stdin)["runs"][0]["status"])'
}
ended="$(status)"
while [[ "$ended" != finished* ]]; do
    sleep 5
    ended="$(status)"
done
if [[ "$ended" == finished:completed ]]; then
    echo "run $run: finished"
    exit 0
fi
echo "run $run: $ended. The last lines of its log:"
flwr log "$run" federation --show | tail -15
exit 1
