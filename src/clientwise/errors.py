"""What a user can put right; the command prints it without a traceback."""

from __future__ import annotations

from collections.abc import Iterable

# What the command's options are called in Python. Messages are written for the command, which is where most are read.
IN_PYTHON = {
    "clientwise run FOLDER --resume": "cw.run(config, FOLDER, resume=True)",
    "another --out": "another `out`",
    "--resume": "resume=True",
    "--data-dir": "`data_dir` in the config",
}
on_command_line = False  # set by the command


class ClientwiseError(Exception):
    """Something the user can put right: the message says what, in the words of the command or of Python."""

    def __str__(self) -> str:
        message = super().__str__()
        for flag, words in {} if on_command_line else IN_PYTHON.items():
            message = message.replace(flag, words)
        return message


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
