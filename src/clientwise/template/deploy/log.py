"""What a service says, as a line of JSON each: LOG=json in deploy/local.sh. settings.sh starts it.

python deploy/log.py SERVICE      reads lines, writes {"time": ..., "service": ..., "level": ..., "message": ...}
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
    level, message = (found[1], text[found.end() :]) if found else ("INFO", text)
    if message:
        time = datetime.now().astimezone().isoformat(timespec="seconds")
        print(json.dumps({"time": time, "service": sys.argv[1], "level": level, "message": message}), flush=True)
