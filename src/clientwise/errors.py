"""What a user can put right; the command prints it without a traceback."""

from __future__ import annotations

from collections.abc import Iterable


class ClientwiseError(Exception):
    """Something the user can put right: the message says what."""


class ConfigError(ClientwiseError, ValueError):
    """Everything that is wrong with a config: one line per problem, with file, key and what to do."""

    def __init__(self, source: str, issues: Iterable[tuple[str, str]]) -> None:
        self.issues = [(shortened(key), shortened(message)) for key, message in issues]
        super().__init__(
            "\n".join(f"{source}: {key}: {message}" if key else f"{source}: {message}" for key, message in self.issues)
        )


class RunError(ClientwiseError, RuntimeError):
    """A run folder that cannot be used, and why."""


class NotBegunError(RunError):
    """A run of which nothing is recorded yet."""


def shortened(text: str, most: int = 600) -> str:
    """A text as a person can read it: of a very long one its beginning and its end, of several lines one.

    >>> shortened("got " + 1000 * "x" + "; use 'full'", most=30)
    "got xxxxxxxxxxx … ; use 'full'"
    """
    text = " ".join(text.splitlines())
    return text if len(text) <= most else f"{text[: most // 2]} … {text[3 - most // 2 :]}"
