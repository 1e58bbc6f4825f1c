"""One way to write a value as bytes: what is signed, hashed and counted has no second spelling."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


class ConsortiumError(Exception):
    """What a person can solve. The command prints it without a traceback."""


Row = Mapping[str, Any]  # values that JSON can hold


def encode(value: Any) -> bytes:
    """A value as JSON with sorted keys and without spaces; ValueError for NaN and infinity."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()


def digest(content: bytes) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()
