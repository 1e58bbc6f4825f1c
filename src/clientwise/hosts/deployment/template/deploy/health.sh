#!/usr/bin/env bash
# On the server, for a monitoring system: prints one line. Exits with 0 if the proxy and the
# SuperLink answer, enough members are online, no certificate expires within 30 days, the disk has
# room, and the run goes on or has ended without a failure. Exits with 2 otherwise; the line says
# what to do. Run it as root where the SuperLink has a network of its own.
#   health.sh [MEMBERS]            number of members that must be online; default: min_replies
#   health.sh --alert [MEMBERS]    also sends the problems to ALERT, once at every change
# FREE_MB=1024: required space. STALE=SECONDS: how long a round may take; by default the limits of
# the experiment and five minutes more.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
if [[ "${1:-}" == --alert ]]; then
    export HEALTH_ALERT=1 CLIENTWISE_ALERT="${ALERT:?health.sh --alert needs ALERT in deploy/local.sh}"
    shift
fi
export FREE_MB="${FREE_MB:-}" STALE="${STALE:-}"
inside=()
if [[ $EUID == 0 && -e "$STATE/superlink.pid" ]]; then
    inside=("$APP/deploy/inside.sh" env "FLWR_HOME=$FLWR_HOME")
fi
nodes="$("${inside[@]}" timeout 60 flwr supernode list federation --format json 2> /dev/null || true)"
python "$APP/deploy/health.py" "$STATE" "$APP" "$HOST:$PORT" "${1:-}" <<< "$nodes"
