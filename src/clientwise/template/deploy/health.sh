#!/usr/bin/env bash
# On the server, for a monitoring system: prints one line. Exits with 0 if the proxy and the
# SuperLink answer, enough members are online, no certificate expires within 30 days, and the last
# run did not fail. Exits with 2 otherwise. Run it as root where the SuperLink has a network of
# its own.
#   health.sh [MEMBERS]      number of members that must be online; default: 1
set -euo pipefail
source "$(dirname "$0")/settings.sh"
problems=()
timeout 3 bash -c "exec 3<> /dev/tcp/$HOST/$PORT" 2> /dev/null ||
    problems+=("nothing listens at $HOST:$PORT")
for certificate in "$STATE"/certificates/server.crt "$STATE"/members/*.crt; do
    [[ ! -e "$certificate" ]] ||
        openssl x509 -in "$certificate" -noout -checkend 2592000 > /dev/null ||
        problems+=("$(basename "$certificate") expires within 30 days")
done
inside=()
if [[ $EUID == 0 && -e "$STATE/superlink.pid" ]]; then
    inside=("$APP/deploy/inside.sh" env "FLWR_HOME=$FLWR_HOME")
fi
online="$("${inside[@]}" flwr supernode list federation --format json 2> /dev/null |
    grep -c '"status": "online"' || true)"
(( online >= ${1:-1} )) || problems+=("$online members online")
events="$STATE/run-events.jsonl"
if [[ -e "$events" ]] && tail -1 "$events" | grep -q '"event": "failed"'; then
    problems+=("the run failed")
fi
if (( ${#problems[@]} )); then
    echo "BAD $(IFS=';'; echo "${problems[*]}")"
    exit 2
fi
echo "OK $online members online"
