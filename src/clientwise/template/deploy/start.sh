#!/usr/bin/env bash
# On the server: begin the run in state/run, or go on with the one that is there; waits for its end and says how it ended.
# Interrupting this script, or DETACH=1, leaves the run running.
#   start.sh [SERVER_DATA]      the server's own samples, an .npz file, where it has any
# INITIAL_MODEL=FILE start.sh begins with a model that `clientwise export` wrote; say so again to go on.
# After an upgrade, ACCEPT_CHANGES=true start.sh goes on with a run that other versions began.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
data="${1:+$(realpath "$1")}" model="${INITIAL_MODEL:+$(realpath "$INITIAL_MODEL")}"
said="$(flwr run "$APP" federation --run-config \
    "out=\"$STATE/run\" server-data=\"$data\" initial-model=\"$model\" accept-changes=${ACCEPT_CHANGES:-false}")"
echo "$said"
[[ -z "${DETACH:-}" ]] || exit 0
exec "$APP/deploy/wait.sh" "$(grep -oE 'run [0-9]+' <<< "$said" | tail -1 | cut -d ' ' -f 2)"
