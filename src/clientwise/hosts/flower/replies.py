"""What a reply says, or why there is none: a text with the reason, which ends nothing."""

from __future__ import annotations

from typing import Any

from flwr.app import Message, RecordDict

from ...core.reasons import Reason
from ...errors import plain

MAX_REASON = 300  # characters

# Why a client has no part in a round.
NO_ANSWER = Reason("no answer in time", "unreachable")
WENT_AWAY = Reason("its node disconnected", "unreachable")
DIED = Reason("its process died", "unreachable")

KNOWN_ERRORS: dict[int, str] = {3: NO_ANSWER, 4: NO_ANSWER, 5: WENT_AWAY, 8: DIED}

Content = RecordDict | str  # of a reply; a text says why there is none


def why_unreadable(error: Exception) -> str:
    """The reason in a refusal."""
    if isinstance(error, ValueError) and str(error):
        return plain(f"answer refused: {error}")[:MAX_REASON]
    return plain(f"answer cannot be read: {type(error).__name__}: {error}")[:MAX_REASON]


def content_of(message: Message) -> Content:
    """The content of a decoded message; a text where it is an error."""
    if message.has_error():
        return why_failed(message.error)
    if not isinstance(message.content, RecordDict):
        raise TypeError(f"a message of {type(message.content).__name__}")
    return message.content


def why_failed(error: Any) -> str:
    """The reason that Flower's error code stands for; the client's own words for other codes."""
    own_words = plain(str(error.reason)) or "failed"
    return KNOWN_ERRORS.get(error.code, own_words[:MAX_REASON])
