#!/usr/bin/env bash
# On a node: approves an app, after you have read it. The SuperNode refuses every other app, also
# one that differs by a single byte. The file state/agreed lists the approved apps. To withdraw an
# approval, delete its line. An approval is worth one run: for another run of the same app, approve
# it again.
#   agree.sh [APP]      the app's folder, or a bundle (.fab) of `flwr build`; default: this folder
set -euo pipefail
source "$(dirname "$0")/settings.sh"
mkdir -p "$STATE"
exec python -m clientwise.flower.node agree "$STATE/agreed" "${1:-$APP}"
