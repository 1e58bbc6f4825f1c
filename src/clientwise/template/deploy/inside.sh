#!/usr/bin/env bash
# On the server, as root, where the SuperLink has a network of its own (systemd/federation-superlink.service): runs a command
# in there, as the user who owns state/. Everybody else finds no SuperLink to talk to.
#   sudo deploy/inside.sh deploy/start.sh /srv/server.npz
set -euo pipefail
source "$(dirname "$0")/settings.sh"
pid="$(cat "$STATE/superlink.pid" 2> /dev/null || true)"
grep -qs flower-superlink "/proc/$pid/cmdline" || { echo "the SuperLink does not run: systemctl status federation-superlink" >&2; exit 1; }
exec nsenter --net --target "$pid" runuser --user "$(stat -c %U "$STATE")" -- "${@:?usage: inside.sh COMMAND}"
