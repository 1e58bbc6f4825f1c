#!/usr/bin/env bash
# On the server: copies state/ to a new folder in FOLDER, also during a run. Databases are copied by
# SQLite's backup function, so the copy is consistent. Owners and permissions are kept.
# The copy holds the certificate authority's key: keep it as secret as state/.
# To restore: restore.sh.
#   backup.sh FOLDER
set -euo pipefail
source "$(dirname "$0")/settings.sh"
target="$(realpath "${1:?usage: backup.sh FOLDER}")/$(date +%Y%m%d-%H%M%S)"
mkdir -p "$target"
{
    tar -C "$STATE" -cf - --exclude='*.sqlite*' --exclude='*.part' --exclude='./proxy' \
        --exclude='*.sock' . ||
        [[ $? == 1 ]]  # a file changed while it was read: a log, whose last line may be missing
} | tar -C "$target" -xf -
python - "$STATE" "$target" <<'PYTHON'
import os
import pathlib
import shutil
import sqlite3
import sys
from contextlib import closing

state, target = map(pathlib.Path, sys.argv[1:])
for file in state.rglob("*.sqlite"):
    to = target / file.relative_to(state)
    with closing(sqlite3.connect(file)) as database, closing(sqlite3.connect(to)) as copy:
        database.backup(copy)
    shutil.copymode(file, to)
    if os.geteuid() == 0:
        os.chown(to, file.stat().st_uid, file.stat().st_gid)
PYTHON
echo "$target"
