#!/usr/bin/env bash
# On a node, keeps running: the SuperNode. It connects to the server; the node needs no open port.
# It runs only the app that agree.sh approved last, and reads DATA with data.py of this folder.
# SMALLEST_CELL: counts are multiples of this number, and results of models have noise
# (docs/security.md). SMALLEST_CELL=1: exact numbers, for a trial without real patients.
# $STATE/nodes/NAME/ledger.jsonl lists what was asked and answered; ledger.sh prints a summary.
# SILENCE=180: seconds without an answer of the server, after which the node ends with status 75, so
# that its service starts it again. Needed because Flower's SuperNode does not return from every
# broken connection.
# It answers only instructions that are signed with a key in state/certificates/instructions.pub.
#   supernode.sh NAME DATA      needs state/keys/NAME, NAME.crt and state/certificates/ca.crt
set -euo pipefail
source "$(dirname "$0")/settings.sh"
name="${1:?usage: supernode.sh NAME DATA}"
data="$(realpath "${2:?usage: supernode.sh NAME DATA}")"
refuse_open "$data"
refuse_open "$STATE/keys/$name"
server_keys="$STATE/certificates/instructions.pub"
if [[ ! -e "$server_keys" ]]; then
    echo "$server_keys does not exist: copy it from the server and compare its sha256sum"
    exit 1
fi
options=(--silence "${SILENCE:-180}")
if [[ -e "$STATE/keys/$name.crt" ]]; then
    options+=(--certificate "$STATE/keys/$name.crt" "$STATE/keys/$name.pem")
fi
if [[ -n "${UPLINK:-}" ]]; then  # a Unix socket to the server, for a node without a network
    options+=(--uplink "$UPLINK")
fi
node_config="data=\"$data\" loader=\"${LOADER:-$APP/data.py}\""
node_config+=" smallest-cell=${SMALLEST_CELL:-5}"
ledger="$STATE/nodes/$name/ledger.jsonl"
node_config+=" ledger=\"$ledger\""
node_config+=" server-keys=\"$server_keys\" seen=\"$STATE/nodes/$name/seen\""
if [[ -e "$STATE/keys/$name.identity" ]]; then  # for secure aggregation
    refuse_open "$STATE/keys/$name.identity"
    node_config+=" identity=\"$STATE/keys/$name.identity\""
fi
log_as "$name"
export FLWR_HOME="$STATE/nodes/$name"
mkdir -p "$FLWR_HOME"
exec python -m clientwise.hosts.deployment.node start "${options[@]}" "$ledger" \
    --superlink "$HOST:$PORT" --root-certificates "$STATE/certificates/ca.crt" \
    --auth-supernode-private-key "$STATE/keys/$name" --port "${NODE_PORT:-9094}" \
    --node-config "$node_config"
