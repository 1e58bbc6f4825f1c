#!/usr/bin/env bash
# On the server, as root: runs a command in the SuperLink's own network, as the user who owns
# state/. Needed where systemd/federation-superlink.service runs the SuperLink: it cannot be
# reached otherwise.
#   sudo deploy/inside.sh deploy/start.sh /srv/server.npz
set -euo pipefail
source "$(dirname "$0")/settings.sh"
pid="$(cat "$STATE/superlink.pid" 2> /dev/null || true)"
if ! grep -qs clientwise.hosts.deployment.link "/proc/$pid/cmdline"; then
    echo "the SuperLink is not running (after a start, it takes up to a minute): systemctl status federation-superlink" >&2
    exit 1
fi
owner="$(stat -c %U "$STATE")"
exec nsenter --net --target "$pid" runuser --user "$owner" -- "${@:?usage: inside.sh COMMAND}"
