"""Errors that a user can solve. The command prints them without a traceback.

Messages say what is wrong, what is allowed and what to do. They are read on the command line, in
Python and on web pages, so their words fit all of these: "resume the run", not an option alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class ClientwiseError(Exception):
    """Something the user can solve: the message says what is wrong and what to do."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without calling the constructor again, whatever arguments it takes.

        Errors travel between processes: from the cells of a matrix and from Ray's actors.
        """
        return _restore, (type(self), self.args, self.__dict__)


class ConfigError(ClientwiseError, ValueError):
    """Everything that is wrong with a config: one line per problem, with file, key and what to do.

    Args:
        source: the name of the config in messages, usually the path of its file; "" where there is none.
        issues: a key and a message for every problem; "" where no key is to blame.

    Example:
        >>> print(ConfigError("my.toml", [("rounds", "must be greater than 0"), ("", "not TOML")]))
        my.toml: rounds: must be greater than 0
        my.toml: not TOML
    """

    def __init__(self, source: str, issues: Iterable[tuple[str, str]]) -> None:
        self.issues = [(shortened(key), shortened(message)) for key, message in issues]
        lines = []
        for key, message in self.issues:
            lines.append(": ".join(part for part in (source, key, message) if part))
        super().__init__("\n".join(lines))


class Problems:
    """What is wrong in several steps that do not need each other.

    Example:
        >>> problems = Problems()
        >>> for key in ("rounds", "seeds", "seeds"):
        ...     with problems.noted():
        ...         raise ConfigError("my.toml", [(key, "is missing")])
        >>> problems.refuse()
        Traceback (most recent call last):
            ...
        clientwise.errors.ConfigError: my.toml: rounds: is missing
        my.toml: seeds: is missing
    """

    def __init__(self) -> None:
        self._errors: list[ClientwiseError] = []
        self._lines: dict[str, str] = {}  # by what they say after the source

    @contextmanager
    def noted(self, source: str = "") -> Iterator[None]:
        """Within this context, an error that the user can solve ends the step, not the others.

        Args:
            source: what messages begin with; one that differs in it alone is the same.
        """
        try:
            yield
        except ClientwiseError as error:
            self._errors.append(error)
            for line in str(error).splitlines():
                self._lines.setdefault(line.removeprefix(f"{source}: "), line)

    @property
    def lines(self) -> list[str]:
        """All that is wrong, each once."""
        return list(self._lines.values())

    def refuse(self) -> None:
        """Raise one error that says all; nothing where there is none."""
        if len(self._errors) == 1:
            raise self._errors[0] from None
        if not self._errors:
            return
        about_config = [error for error in self._errors if isinstance(error, ConfigError)]
        joined = ConfigError("", [issue for error in about_config for issue in error.issues])
        joined.args = ("\n".join(self.lines),)
        if len(about_config) == len(self._errors):
            raise joined from None
        raise ClientwiseError(*joined.args) from None


class RunError(ClientwiseError, RuntimeError):
    """A run folder that cannot be used, and why."""


class MissingPackageError(ClientwiseError, ImportError):
    """An optional package that is not installed, and the command that installs it."""


class NotBegunError(RunError):
    """A run of which nothing is recorded yet."""


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Within this context, a package that is not installed is an error of one line.

    Args:
        extra: the optional dependencies of clientwise that have the package.
        what: what the package is needed for.

    Example:
        >>> with needing("report", "a figure"):
        ...     raise ModuleNotFoundError(name="altair.vegalite")
        Traceback (most recent call last):
            ...
        clientwise.errors.MissingPackageError: a figure needs altair: pip install "clientwise[report]"
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package == "clientwise":
            raise
        install = f'pip install "clientwise[{extra}]"'
        raise MissingPackageError(f"{what} needs {package}: {install}") from None


def _restore(
    kind: type[ClientwiseError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> ClientwiseError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


def shortened(text: str, most: int = 600) -> str:
    """A text in one line of `most` characters; a longer text keeps its beginning and its end.

    >>> shortened("got " + 1000 * "x" + "; use 'full'", most=30)
    "got xxxxxxxxxxx … ; use 'full'"
    """
    text = " ".join(text.splitlines())
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … {text[3 - half :]}"


def plain(text: str) -> str:
    r"""A text of others in one line, without control characters.

    >>> plain("no such file\x1b[2J\n\x1b]0;all is well\x07")
    'no such file[2J ]0;all is well'
    """
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """The lines of a text without control characters.

    Escape sequences could change what a terminal shows. Invisible characters and halves of
    characters could break a log.
    """
    return "".join(one for one in text if one.isprintable() or one == "\n")
