#!/usr/bin/env bash
# On the server, started by proxy.sh, ends with it: compresses the proxy's access log whenever it has
# 25 MB, which four members write in a day, and keeps the last 60 files.
#   rotate.sh PID      process of nginx
set -euo pipefail
source "$(dirname "$0")/settings.sh"
pid="${1:?usage: rotate.sh PID}"
cd "$STATE/proxy"
while sleep "${ROTATE_SECONDS:-60}" && kill -0 "$pid" 2> /dev/null; do
    [[ -e access.log && -n "$(find access.log -size +24M)" ]] || continue
    closed="access-$(date +%Y%m%d-%H%M%S).log"
    mv access.log "$closed"
    kill -USR1 "$pid"  # nginx opens a new file
    sleep 5            # and may write to the old one until then
    gzip "$closed" || echo "access log: $closed is not compressed"
    find . -name 'access-*' | sort -r | tail -n +61 | xargs -r rm --
done
