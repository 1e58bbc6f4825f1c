#!/usr/bin/env bash
# On the server: waits until a run has ended, and fails if the run did.
#   wait.sh RUN_ID
set -euo pipefail
source "$(dirname "$0")/settings.sh"
run="${1:?usage: wait.sh RUN_ID}"
while ended="$(flwr list federation --run-id "$run" --format json | python -c '
import json, sys
(run,) = json.load(sys.stdin)["runs"]
print(run["status"] if run["status"].startswith("finished") else "")')" && [[ -z "$ended" ]]; do sleep 5; done
if [[ "$ended" == finished:completed ]]; then echo "run $run: finished"; exit 0; fi
echo "run $run: $ended. The last lines of its log:"
flwr log "$run" federation --show | tail -15
exit 1
