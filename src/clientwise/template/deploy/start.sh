#!/usr/bin/env bash
# On the server: begin the run in state/run, or go on with the one that is there.
#   start.sh [SERVER_DATA]      the server's own samples, an .npz file, where it has any
# After an upgrade, ACCEPT_CHANGES=true start.sh goes on with a run that other versions began.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
data="${1:+$(realpath "$1")}"
flwr run "$APP" federation --run-config "out=\"$STATE/run\" server-data=\"$data\" accept-changes=${ACCEPT_CHANGES:-false}"
