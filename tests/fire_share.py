"""The share of the hostile cases that tests marked `fire` try: all, or one of EVERY (CLIENTWISE_FIRE_EVERY)."""

from __future__ import annotations

import os

EVERY = int(os.environ.get("CLIENTWISE_FIRE_EVERY", "1"))
