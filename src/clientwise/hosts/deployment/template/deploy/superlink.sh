#!/usr/bin/env bash
# On the server, keeps running: the SuperLink, with TLS, for nodes whose keys are registered.
# Everyone who reaches it can start runs, so it listens on this machine only. Members connect to
# proxy.sh. Of a node's calls it accepts those about the node's own messages.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
cd "$STATE"
export CLIENTWISE_ALERT="${ALERT:-}"
export CLIENTWISE_RUN="$STATE/run"
export CLIENTWISE_SIGNING_KEY="$STATE/certificates/instructions.key"
if [[ ! -e "$CLIENTWISE_SIGNING_KEY" ]]; then
    echo "$CLIENTWISE_SIGNING_KEY does not exist: run deploy/certificates.sh"
    exit 1
fi
export CLIENTWISE_KEEP_UPDATES="$KEEP_UPDATES"
echo $$ > superlink.pid
log_as superlink
exec python -m clientwise.hosts.deployment.link --host "$LISTEN" --port "$LINK_PORT" \
    --database "$STATE/superlink.sqlite" --enable-supernode-auth \
    --ssl-ca-certfile certificates/ca.crt \
    --ssl-certfile certificates/server.crt --ssl-keyfile certificates/server.key
