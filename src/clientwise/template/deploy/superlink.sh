#!/usr/bin/env bash
# On the server, always running: the SuperLink, with TLS and only for nodes whose keys are registered.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
cd "$STATE"
exec flower-superlink --host "$LISTEN" --port "$PORT" --database "$STATE/superlink.sqlite" --enable-supernode-auth \
    --ssl-ca-certfile certificates/ca.crt --ssl-certfile certificates/server.crt --ssl-keyfile certificates/server.key
