#!/usr/bin/env bash
# On a node: approves an app, after you have read it. The SuperNode refuses every other app, also
# one that differs by a single byte. The file state/agreed lists the approved apps. To withdraw an
# approval, delete its line. An approval is worth one run: for another run of the same app, approve
# it again. With state/release.pub, only a signed release can be approved. The script prints how many
# models the node will train and evaluate, and warns of what does not work with SMALLEST_CELL.
#   agree.sh [APP]      the app's folder, or a bundle (.fab) of `flwr build`; default: this folder
set -euo pipefail
source "$(dirname "$0")/settings.sh"
mkdir -p "$STATE"
if [[ -e "$STATE/release.pub" ]]; then
    "$APP/deploy/verify.sh"
    if [[ "$(python -m clientwise.flower.node hash "${1:-$APP}")" != "$(cat "$APP/deploy/bundle")" ]]
    then
        echo "REFUSED: the app is not the one that was signed"
        exit 1
    fi
fi
exec python -m clientwise.flower.node agree "$STATE/agreed" "${1:-$APP}" \
    --smallest-cell "${SMALLEST_CELL:-5}"
