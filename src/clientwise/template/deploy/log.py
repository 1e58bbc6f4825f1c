"""Turns the log lines of a service into JSON. settings.sh starts it with LOG=json.

Reads lines and writes {"time": ..., "service": ..., "level": ..., "message": ...}:

    python deploy/log.py SERVICE
"""

import json
import re
import sys
from datetime import datetime

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*:\s*")

for line in sys.stdin:
    text = COLOUR.sub("", line).rstrip()
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
