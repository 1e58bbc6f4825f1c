#!/usr/bin/env bash
# On the server: starts the run in state/run, or resumes the run that is there. Waits for its end
# and prints how it ended. The run continues if you interrupt this script; with DETACH=1 it does
# not wait.
#   start.sh [SERVER_DATA]      the server's own samples, an .npz file, if it has any
# INITIAL_MODEL=FILE: start with a model that `clientwise export` wrote; give it again to resume.
# ACCEPT_CHANGES=true: resume a run that was started with other versions.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
data="${1:+$(realpath "$1")}"
model="${INITIAL_MODEL:+$(realpath "$INITIAL_MODEL")}"
config="out=\"$STATE/run\" server-data=\"$data\" initial-model=\"$model\""
config+=" accept-changes=${ACCEPT_CHANGES:-false}"
said="$(flwr run "$APP" federation --run-config "$config")"
echo "$said"
[[ -z "${DETACH:-}" ]] || exit 0
run="$(grep -oE 'run [0-9]+' <<< "$said" | tail -1 | cut -d ' ' -f 2)"
exec "$APP/deploy/wait.sh" "$run"
