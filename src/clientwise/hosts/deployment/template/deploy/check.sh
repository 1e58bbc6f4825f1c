#!/usr/bin/env bash
# On any machine: tries connections that must fail, and reports those that succeed as OPEN. Run it
# on a machine that is not a member, and on a member's machine. On the server, as root, it also
# tries what another user of that machine could do.
#   check.sh [NAME]      NAME: use the certificate of this member, state/keys/NAME.crt
set -euo pipefail
source "$(dirname "$0")/settings.sh"
failed=0
as=() member=()
[[ -z "${1:-}" ]] || member=(--cert "$STATE/keys/$1.crt" --key "$STATE/keys/$1.pem")

say() {  # say WHAT COMMAND...: the command must fail
    local what="$1"
    shift
    if "$@" 2> /dev/null; then echo "OPEN    $what"; failed=1; else echo "closed  $what"; fi
}
status() {  # the HTTP status for an empty message; 000 where nothing answers
    "${as[@]}" curl --silent --insecure --output /dev/null --write-out '%{http_code}' \
        --max-time 10 --header 'content-type: application/protobuf' --data-binary '' "$@" || true
}
# Nothing answers (000), or nginx refuses: no certificate (400), not allowed (403), no such page
# (404).
answers() { [[ ! "$(status "$@")" =~ ^(000|400|403|404)$ ]]; }
reaches() { timeout 3 bash -c "exec 3<> /dev/tcp/$1/$2"; }

server="$HOST:$PORT"
if ! reaches "$HOST" "$PORT" 2> /dev/null; then
    echo "nothing listens at $server: start the services first"
    exit 1
fi
pages="control/start-run control/list-runs control/register-node runtime/acquire-task"
for page in $pages fleet/register-node; do
    say "/v1/$page without a certificate" answers "https://$server/v1/$page"
    [[ -z "${1:-}" ]] ||
        say "/v1/$page with the certificate of $1" answers "${member[@]}" "https://$server/v1/$page"
done
say "the fleet API without a certificate" answers "https://$server/v1/fleet/pull-messages"
say "the control API by a path through the fleet API" answers "${member[@]}" --path-as-is \
    "https://$server/v1/fleet/..%2fcontrol/list-runs"
say "the documentation of the API" answers --get "${member[@]}" "https://$server/openapi.json"
say "the fleet API without TLS" answers "http://$server/v1/fleet/pull-messages"
for port in 8000 9091 9092 9093 9094 9095; do  # Flower's
    [[ "$port" == "$PORT" ]] || say "port $port of $HOST" reaches "$HOST" "$port"
done
if [[ -n "${1:-}" ]]; then  # the SuperLink itself refuses (401) a message that is not signed
    if [[ "$(status "${member[@]}" "https://$server/v1/fleet/pull-messages")" == 401 ]]; then
        echo "works   the fleet API, for members alone"
    else
        echo "BROKEN  the fleet API does not answer $1: check the certificate and the SuperLink"
        failed=1
    fi
fi
if [[ -e "$STATE/superlink.pid" && $EUID == 0 ]]; then
    as=(runuser --user nobody --)
    say "the SuperLink, for another user" answers "https://$LISTEN:$LINK_PORT/v1/control/list-runs"
    socket="${UPSTREAM#unix:}"
    if [[ "$UPSTREAM" == unix:* && ! -S "$socket" ]]; then
        echo "BROKEN  the SuperLink's socket does not exist: $socket"
        failed=1
    elif [[ "$UPSTREAM" == unix:* ]]; then
        say "the SuperLink's socket, for another user" answers --unix-socket "$socket" \
            https://localhost/v1/control/list-runs
    fi
    say "the SuperLink's network, for another user" \
        "${as[@]}" nsenter --net --target "$(cat "$STATE/superlink.pid")" true
    say "$STATE, for another user" "${as[@]}" ls "$STATE"
fi
exit $failed
