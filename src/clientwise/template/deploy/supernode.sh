#!/usr/bin/env bash
# On a node, always running: the SuperNode. It calls the SuperLink; nothing has to be open towards the node.
#   supernode.sh NAME DATA      needs state/keys/NAME and state/certificates/ca.crt
set -euo pipefail
source "$(dirname "$0")/settings.sh"
name="${1:?usage: supernode.sh NAME DATA}"
data="$(realpath "${2:?usage: supernode.sh NAME DATA}")"
export FLWR_HOME="$STATE/nodes/$name"
mkdir -p "$FLWR_HOME"
exec flower-supernode --superlink "$HOST:$PORT" --root-certificates "$STATE/certificates/ca.crt" \
    --auth-supernode-private-key "$STATE/keys/$name" --node-config "data=\"$data\"" --port "${NODE_PORT:-9094}"
