#!/usr/bin/env bash
# On a node, always running: the SuperNode. It calls the server; nothing has to be open towards the node. It runs only what
# agree.sh agreed to, and reads DATA with this folder's own data.py.
# With SMALLEST_CELL=5 it speaks of whole groups of five patients alone (docs/security.md).
#   supernode.sh NAME DATA      needs state/keys/NAME and NAME.crt, and state/certificates/ca.crt
set -euo pipefail
source "$(dirname "$0")/settings.sh"
name="${1:?usage: supernode.sh NAME DATA}"
data="$(realpath "${2:?usage: supernode.sh NAME DATA}")"
for path in "$data" "$STATE/keys/$name"; do
    if [[ -n "$(find "$path" -maxdepth 0 -perm /077)" ]]; then
        echo "$path can be read by other users of this machine: chmod -R go= $path"
        exit 1
    fi
done
way=()
[[ ! -e "$STATE/keys/$name.crt" ]] || way+=(--certificate "$STATE/keys/$name.crt" "$STATE/keys/$name.pem")
[[ -z "${UPLINK:-}" ]] || way+=(--uplink "$UPLINK")  # a Unix socket that leads to the server, where there is no network
log_as "$name"
export FLWR_HOME="$STATE/nodes/$name"
mkdir -p "$FLWR_HOME"
exec python -m clientwise.flower.node start "${way[@]}" "$STATE/agreed" \
    --superlink "$HOST:$PORT" --root-certificates "$STATE/certificates/ca.crt" \
    --auth-supernode-private-key "$STATE/keys/$name" --port "${NODE_PORT:-9094}" \
    --node-config "data=\"$data\" loader=\"${LOADER:-$APP/data.py}\" smallest-cell=${SMALLEST_CELL:-1}"
