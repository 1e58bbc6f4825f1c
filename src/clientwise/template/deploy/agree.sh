#!/usr/bin/env bash
# On a node, after you have read the app: lets it run here. A SuperNode refuses whatever was not agreed to, down to the
# last byte. state/agreed lists what was; delete a line to withdraw.
#   agree.sh [APP]      the folder, or a bundle (.fab) made by `flwr build`; as it is, the folder these scripts are in
set -euo pipefail
source "$(dirname "$0")/settings.sh"
mkdir -p "$STATE"
exec python -m clientwise.flower.node agree "$STATE/agreed" "${1:-$APP}"
