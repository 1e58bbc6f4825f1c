#!/usr/bin/env bash
# On a node, as the owner of state/: ends the present approval. The node answers nothing until agree.sh
# approves an app again. What the node has released stays in its ledger.
#   withdraw.sh NAME      WHY="...": the reason, for the ledger
set -euo pipefail
source "$(dirname "$0")/settings.sh"
name="${1:?usage: withdraw.sh NAME}"
exec python -m clientwise.hosts.deployment.node withdraw "$STATE/nodes/$name/ledger.jsonl" --words "${WHY:-}"
