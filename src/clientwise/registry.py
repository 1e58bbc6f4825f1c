"""One registry per kind of part: a part is a function or class with a name, found in TOML by that name.

A part declares as data what it needs. What `check` refuses, which models are kept until the end of a round and what
travels follows from that alone: nobody else knows a part by its name.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

from annotated_types import Ge, Gt, Le, Lt

# Types for options: a config with a value outside the range is refused before anything runs. All have an upper end, far
# above what makes sense and below what some tensor, clock or counter cannot hold.
PositiveInt = Annotated[int, Gt(0), Le(10**9)]
PositiveFloat = Annotated[float, Gt(0), Le(1e30)]
NonNegativeFloat = Annotated[float, Ge(0), Le(1e30)]
Share = Annotated[float, Ge(0), Le(1)]
OpenShare = Annotated[float, Gt(0), Le(1)]
Decay = Annotated[float, Ge(0), Lt(1)]
Pixels = Annotated[int, Gt(0), Le(1024)]  # width and height to which images are resized

Need = Literal[
    "classes",  # the problem is a classification
    "numbers",  # the problem is a regression
    "times",  # the problem is one of survival
    "server_set",  # somebody judges models: the server on samples of its own, or clients for it
    "server_samples",  # the server trains on samples of its own
    "models",  # the round's models are kept until its end
    "whole_cohort",  # it sees all clients of the round at once, however they arrive
    "last_model",  # an attack: it goes by the global model of the round before
    "judgements",  # an attack: what the client says of models goes through it
    "simulation",  # it is known who is hostile
    "clock",  # clients take time: devices are simulated, or real
]

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Declaration:
    """What a part says about itself. Kinds of parts that have more to say extend it."""

    needs: frozenset[Need] = frozenset()
    criteria: frozenset[str] = frozenset()  # columns it reads: the method must have them measured


def needs(*what: Need, criteria: Iterable[str] = ()) -> Declaration:
    """The declaration of a part that needs something, or reads some criteria, and has nothing else to say."""
    return Declaration(frozenset(what), frozenset(criteria))


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of an error message: `; did you mean 'priority'?`, or the known words, or nothing.

    >>> suggest("priorty", ["priority", "name"])
    "; did you mean 'priority'?"
    """
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(known)}" if known else ""


@dataclass(frozen=True)
class Option:
    """One option of a part, read from its signature."""

    name: str
    type: Any
    default: Any  # inspect.Parameter.empty where the option must be given

    @property
    def required(self) -> bool:
        """Whether the option has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def names_part_of(self) -> Registry[Any] | None:
        """The registry whose parts this option names, as `metric = "macro_f1"` does; see `Names`."""
        return next((mark.registry for mark in getattr(self.type, "__metadata__", ()) if isinstance(mark, Names)), None)


class Registry(Generic[T]):
    """The parts of one kind, by name.

    The options of a function are its keyword-only parameters (the others are what the library passes in); those of a
    class are all parameters of its constructor, unless the library `passes` something to classes as well.
    """

    def __init__(self, kind: str, plural: str, description: str, *, passes: bool = False) -> None:
        self.kind = kind
        self.plural = plural
        self.description = description
        self.passes = passes
        self._parts: dict[str, T] = {}
        self._declared: dict[str, Declaration] = {}

    def register(self, name: str, declared: Declaration = Declaration()) -> Callable[[T], T]:  # noqa: B008  (frozen)
        """Decorator: make a part known under `name`, with what it declares."""

        def decorate(part: T) -> T:
            known = self._parts.get(name)
            # A plugin imported twice (say, by two configs of one process) defines the same part again: that is fine.
            if known is not None and (known.__module__, known.__qualname__) != (part.__module__, part.__qualname__):
                raise ValueError(f"{self.kind} {name!r} is already registered by {known.__module__}")
            if not inspect.getdoc(part):
                raise ValueError(
                    f"{self.kind} {name!r} needs a docstring: its first line is what `clientwise list` shows"
                )
            self._parts[name], self._declared[name] = part, declared
            return part

        return decorate

    def get(self, name: str) -> T:
        """The part called `name`; a KeyError that suggests the nearest name otherwise."""
        if name not in self._parts:
            raise KeyError(f"unknown {self.kind} {name!r}{suggest(name, self._parts)}")
        return self._parts[name]

    def declared(self, name: str) -> Declaration:
        """What the part called `name` says about itself."""
        return self._declared[name]

    def needs(self, part: Part) -> frozenset[Need]:
        """What a part needs, and what the parts need that its options name."""
        found = self.declared(part.name).needs
        for option in self.options(part.name):
            named, value = option.names_part_of, part.options.get(option.name)
            if named is not None and value is not None:
                found |= named.needs(Part(value, {}))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def describe(self, name: str) -> str:
        """First line of the part's docstring."""
        return (inspect.getdoc(self.get(name)) or "").splitlines()[0]

    def options(self, name: str) -> tuple[Option, ...]:
        """The part's options with their types and defaults."""
        return _options_of(self.get(name), self.passes)


@functools.cache
def _options_of(part: Callable[..., Any], passes: bool) -> tuple[Option, ...]:
    is_class = inspect.isclass(part)
    try:
        hints = typing.get_type_hints(part.__init__ if is_class else part, include_extras=True)
    except NameError:  # a type that is only there for the type checker: then the option takes anything
        hints = {}
    return tuple(
        Option(parameter.name, hints.get(parameter.name, Any), parameter.default)
        for parameter in inspect.signature(part).parameters.values()
        if (is_class and not passes) or parameter.kind is inspect.Parameter.KEYWORD_ONLY
    )


@dataclass(frozen=True)
class Names:
    """Marks an option that names a part of another kind: `metric: Annotated[str, Names(METRICS)]`."""

    registry: Registry[Any]


@dataclass(frozen=True)
class Part:
    """A part as named in a config: its registered name, the options given to it, and what it is called there."""

    name: str
    options: Mapping[str, Any]
    label: str = ""  # `as` in TOML: for criteria of which a method has two

    @property
    def called(self) -> str:
        """The label, or the name without one."""
        return self.label or self.name
