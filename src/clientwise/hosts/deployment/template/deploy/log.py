"""Removes control characters from the log lines of a service: members choose parts of them.

With LOG=json it writes {"time": ..., "service": ..., "level": ..., "message": ...} for every line:

    python deploy/log.py SERVICE
"""

import json
import os
import re
import sys
from datetime import datetime

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*:\s*")

for line in sys.stdin.buffer:
    text = COLOUR.sub("", line.decode(errors="replace")).rstrip().replace("\t", "    ")
    text = "".join(filter(str.isprintable, text))
    if os.environ.get("LOG") != "json":
        print(text, flush=True)
        continue
    found = LEVEL.match(text)
    level = found[1] if found else "INFO"
    message = text[found.end() :] if found else text
    if message:
        entry = {
            "time": datetime.now().astimezone().isoformat(timespec="seconds"),
            "service": sys.argv[1],
            "level": level,
            "message": message,
        }
        print(json.dumps(entry), flush=True)
