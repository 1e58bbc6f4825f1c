#!/usr/bin/env bash
# On the server, always running: the SuperLink, with TLS and only for nodes whose keys are registered. Whoever reaches it
# can start runs, so it listens on this machine alone; members come by proxy.sh.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
cd "$STATE"
export CLIENTWISE_ALERT="${ALERT:-}"
echo $$ > superlink.pid
log_as superlink
exec flower-superlink --host "$LISTEN" --port "$LINK_PORT" --database "$STATE/superlink.sqlite" --enable-supernode-auth \
    --ssl-ca-certfile certificates/ca.crt --ssl-certfile certificates/server.crt --ssl-keyfile certificates/server.key
