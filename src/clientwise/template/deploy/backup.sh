#!/usr/bin/env bash
# On the server: a copy of all of state/, while everything runs. The databases are copied as SQLite does it, so that a copy is
# whole whenever it is made; owners and rights stay. It holds the authority's key and the token: keep it as secret as state/.
# To restore: stop the services, put the copy in the place of state/, start them, start.sh.
#   backup.sh FOLDER
set -euo pipefail
source "$(dirname "$0")/settings.sh"
target="$(realpath "${1:?usage: backup.sh FOLDER}")/$(date +%Y%m%d-%H%M%S)"
mkdir -p "$target"
{
    tar -C "$STATE" -cf - --exclude='*.sqlite*' --exclude='*.part' --exclude='./proxy' --exclude='*.sock' . ||
        [[ $? == 1 ]]  # a file was changed meanwhile, by what runs: a log, which may lack its last line
} | tar -C "$target" -xf -
python - "$STATE" "$target" <<'PYTHON'
import contextlib, os, pathlib, shutil, sqlite3, sys
state, target = map(pathlib.Path, sys.argv[1:])
for file in state.rglob("*.sqlite"):
    to = target / file.relative_to(state)
    with contextlib.closing(sqlite3.connect(file)) as one, contextlib.closing(sqlite3.connect(to)) as copy:
        one.backup(copy)
    shutil.copymode(file, to)
    if os.geteuid() == 0:
        os.chown(to, file.stat().st_uid, file.stat().st_gid)
PYTHON
echo "$target"
