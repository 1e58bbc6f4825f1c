#!/usr/bin/env bash
# From anywhere: tries what must fail, and says what is open. Best from a machine that is no member, and from a member's;
# on the server itself, as root, it also tries what another user of that machine could do.
#   check.sh [NAME]      with the certificate of a member: state/keys/NAME.crt
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
status() {  # what a server answers to an empty message; 000 where there is none
    "${as[@]}" curl --silent --insecure --output /dev/null --write-out '%{http_code}' --max-time 10 \
        --header 'content-type: application/protobuf' --data-binary '' "$@" || true
}
answers() { [[ ! "$(status "$@")" =~ ^(000|400|403|404)$ ]]; }  # none, or nginx's: no certificate, no such page
reaches() { timeout 3 bash -c "exec 3<> /dev/tcp/$1/$2"; }

reaches "$HOST" "$PORT" 2> /dev/null || { echo "nothing listens at $HOST:$PORT, so nothing can be said about it"; exit 1; }
for page in control/start-run control/list-runs control/register-node runtime/acquire-task fleet/register-node; do
    say "/v1/$page without a certificate" answers "https://$HOST:$PORT/v1/$page"
    [[ -z "${1:-}" ]] || say "/v1/$page with the certificate of $1" answers "${member[@]}" "https://$HOST:$PORT/v1/$page"
done
say "the fleet API without a certificate" answers "https://$HOST:$PORT/v1/fleet/pull-messages"
say "around the fleet API to control" answers "${member[@]}" --path-as-is "https://$HOST:$PORT/v1/fleet/..%2fcontrol/list-runs"
say "the documentation of the API" answers --get "${member[@]}" "https://$HOST:$PORT/openapi.json"
say "without TLS" answers "http://$HOST:$PORT/v1/fleet/pull-messages"
for port in 8000 9091 9092 9093 9094 9095; do  # Flower's
    [[ "$port" == "$PORT" ]] || say "port $port of $HOST" reaches "$HOST" "$port"
done
if [[ -n "${1:-}" ]]; then  # a node that does not sign is turned away by the SuperLink itself
    [[ "$(status "${member[@]}" "https://$HOST:$PORT/v1/fleet/pull-messages")" == 401 ]] && echo "works   the fleet API, for members alone" ||
        { echo "BROKEN  the fleet API does not answer $1: is the certificate good, does the SuperLink run?"; failed=1; }
fi
if [[ -e "$STATE/superlink.pid" && $EUID == 0 ]]; then
    as=(runuser --user nobody --)
    say "the SuperLink, for another user" answers "https://$LISTEN:$LINK_PORT/v1/control/list-runs"
    door="${UPSTREAM#unix:}"
    if [[ "$UPSTREAM" == unix:* && ! -S "$door" ]]; then
        echo "BROKEN  the SuperLink's door is not there: $door"
        failed=1
    elif [[ "$UPSTREAM" == unix:* ]]; then
        say "the SuperLink's door, for another user" answers --unix-socket "$door" https://localhost/v1/control/list-runs
    fi
    say "the SuperLink's network, for another user" "${as[@]}" nsenter --net --target "$(cat "$STATE/superlink.pid")" true
    say "$STATE, for another user" "${as[@]}" ls "$STATE"
fi
exit $failed
