#!/usr/bin/env bash
# On the server, for a monitoring system: one line, and success where all is well: the proxy and the SuperLink answer, enough
# members are there, the certificates last for another month, and the last run did not fail. As root: inside.sh is used.
#   health.sh [MEMBERS]      how many must be online; 1 unless said
set -euo pipefail
source "$(dirname "$0")/settings.sh"
problems=()
timeout 3 bash -c "exec 3<> /dev/tcp/$HOST/$PORT" 2> /dev/null || problems+=("nothing listens at $HOST:$PORT")
for certificate in "$STATE"/certificates/server.crt "$STATE"/members/*.crt; do
    [[ ! -e "$certificate" ]] || openssl x509 -in "$certificate" -noout -checkend 2592000 > /dev/null ||
        problems+=("$(basename "$certificate") ends within a month")
done
inside=()
[[ $EUID != 0 || ! -e "$STATE/superlink.pid" ]] || inside=("$APP/deploy/inside.sh" env "FLWR_HOME=$FLWR_HOME")
online="$("${inside[@]}" flwr supernode list federation --format json 2> /dev/null | grep -c '"status": "online"' || true)"
(( online >= ${1:-1} )) || problems+=("$online members online")
if [[ -e "$STATE/run-events.jsonl" ]] && tail -1 "$STATE/run-events.jsonl" | grep -q '"event": "failed"'; then
    problems+=("the run failed")
fi
if (( ${#problems[@]} )); then printf 'BAD %s\n' "$(IFS=';'; echo "${problems[*]}")"; exit 2; fi
echo "OK $online members online"
