"""Ends a node that gets no answers from its server, so that its service starts it again.

Flower's SuperNode retries most failed calls. After some, such as a TLS handshake that stalls, its
loop ends while the process stays. Such a node takes part in nothing until somebody restarts it.
"""

from __future__ import annotations

import logging
import os
import time
from threading import Event, Thread
from typing import Self

log = logging.getLogger("flwr.clientwise")
EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again


class Watchdog:
    """Ends this process when the server has not answered for some time; watches in `with`.

    Args:
        seconds: how long the server may be silent.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._answered_at = time.monotonic()
        self._over = Event()

    def answered(self) -> None:
        """The server answered a call."""
        self._answered_at = time.monotonic()

    def __enter__(self) -> Self:
        self.answered()
        Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self._seconds / 4)):
            if time.monotonic() - self._answered_at > self._seconds:
                end_node(f"the server has not answered for {self._seconds:.0f} s")


def end_node(reason: str) -> None:
    """End this process at once: a normal exit would wait for Flower's threads."""
    log.error("%s: this node ends; its service starts it again", reason)
    logging.shutdown()
    os._exit(EXIT_CODE)
