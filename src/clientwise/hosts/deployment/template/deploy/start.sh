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
[[ -z "$data" ]] || refuse_open "$data"
# Not in Flower's run config, which every member can read.
python - "$STATE/run-start.json" "$data" "$model" "${ACCEPT_CHANGES:-false}" <<'PYTHON'
import json
import sys
from pathlib import Path

file, data, model, accept = sys.argv[1:]
settings = {"server-data": data, "initial-model": model, "accept-changes": accept == "true"}
Path(file).write_text(json.dumps(settings) + "\n", encoding="utf-8")
PYTHON
said="$(flwr run "$APP" federation)"
echo "$said"
[[ -z "${DETACH:-}" ]] || exit 0
run="$(grep -oE 'run [0-9]+' <<< "$said" | tail -1 | cut -d ' ' -f 2)"
exec "$APP/deploy/wait.sh" "$run"
