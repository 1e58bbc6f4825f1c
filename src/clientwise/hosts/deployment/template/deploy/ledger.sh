#!/usr/bin/env bash
# On a node: prints what the server asked for, what was refused and what left the node, per day and
# run. A line in the operator's crontab sends it every day:
#   55 23 * * * /opt/federation/deploy/ledger.sh ward-a --day "$(date +\%F)"
#   ledger.sh NAME [--day YYYY-MM-DD]
set -euo pipefail
source "$(dirname "$0")/settings.sh"
name="${1:?usage: ledger.sh NAME [--day YYYY-MM-DD]}"
exec python -c 'from clientwise.hosts.deployment.ledger import main; main()' \
    "$STATE/nodes/$name/ledger.jsonl" "${@:2}"
