#!/usr/bin/env bash
# On a node, as the owner of state/: approves an app for one run of this node, after you have read it.
# The SuperNode refuses every other app, also one that differs by a single byte. Prints what the node
# will answer, what no noise hides, the members' keys for secure aggregation, and what the node has
# released about a row in its life. Loads DATA twice with data.py, which must give the same rows.
# The approval is an event in the node's ledger. It ends the earlier ones. withdraw.sh ends it.
# With state/release.pub, only a signed release can be approved.
#   agree.sh NAME DATA [APP]      APP: the app's folder, or a bundle (.fab); default: this folder
# WHY="...": why the node may answer another run; needed unless it is the first. The ledger keeps it.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
usage="usage: agree.sh NAME DATA [APP]"
name="${1:?$usage}" data="$(realpath "${2:?$usage}")" app="${3:-$APP}"
mkdir -p "$STATE"
if [[ ! -O "$STATE" ]]; then
    echo "REFUSED: run this as the owner of $STATE, $(stat -c %U "$STATE"), as whom the node runs"
    exit 1
fi
if [[ -e "$STATE/release.pub" ]]; then
    "$APP/deploy/verify.sh"
    if [[ "$(python -m clientwise.hosts.deployment.node hash "$app")" != "$(cat "$APP/deploy/bundle")" ]]; then
        echo "REFUSED: the app is not the one that was signed"
        exit 1
    fi
fi
exec python -m clientwise.hosts.deployment.node agree "$STATE/nodes/$name/ledger.jsonl" "$app" \
    --name "$name" --data "$data" --loader "${LOADER:-$APP/data.py}" \
    --identity "$STATE/keys/$name.identity" --smallest-cell "${SMALLEST_CELL:-5}" --words "${WHY:-}"
