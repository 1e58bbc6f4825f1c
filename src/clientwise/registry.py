"""One registry per kind of part: a part is a function or class that TOML refers to by its name.

A part declares as data what it needs. From that alone follow what `check` refuses, which models are
kept until the end of a round and what is sent to clients. No other code refers to a part by name.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

from annotated_types import Ge, Gt, Le, Lt

# Types for options: a config with a value outside the range is refused before anything runs. Upper
# ends are far above what makes sense, and below what a tensor, clock or counter cannot hold.
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
    "labels",  # the problem is multi-label: several labels a sample, each there or not
    "masks",  # the problem is segmentation: a class for every pixel
    "server_set",  # models are judged: by the server on its own samples, or by clients
    "server_samples",  # the server trains on its own samples
    "models",  # the round's models are kept until its end
    "whole_cohort",  # it needs all clients of the round at once
    "last_model",  # an attack: it uses the global model of the previous round
    "judgements",  # an attack: it changes how the client judges models
    "simulation",  # it is known which clients are hostile
    "clock",  # clients take time: devices are simulated or real
    "single_values",  # it combines single values of several updates: not the factors of adapters
    "pairs",  # it holds several matrices of all pairs of clients [n, n]: memory grows with their square
    "products",  # it holds one such matrix
]

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Declaration:
    """What a part declares about itself. Kinds of parts that declare more extend it."""

    needs: frozenset[Need] = frozenset()
    criteria: frozenset[str] = frozenset()  # those it reads: the method must measure them


def needs(*what: Need, criteria: Iterable[str] = ()) -> Declaration:
    """The declaration of a part that needs something or reads criteria, and declares nothing else.

    Args:
        what: needs, as listed in `Need`.
        criteria: names of the criteria that the part reads.

    Example:
        >>> sorted(needs("models", "classes").needs)
        ['classes', 'models']
    """
    return Declaration(frozenset(what), frozenset(criteria))


def listed(names: Iterable[object]) -> str:
    """Names in a text; one with a comma is in quotes, so that it is not read as two.

    >>> print(listed(["FedAvg", "mine, 2"]))
    FedAvg, 'mine, 2'
    """
    texts = map(str, names)
    return ", ".join(repr(text) if "," in text else text for text in texts)


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown word: the closest known word, or all of them.

    >>> suggest("priorty", ["priority", "name"])
    "; did you mean 'priority'?"
    >>> suggest("AdamW", ["adam", "adamw"])
    "; did you mean 'adamw'?"
    """
    known = sorted(known)
    close = closest(word, known)
    if close is not None:
        return f"; did you mean {close!r}?"
    if known:
        return f"; known: {listed(known)}"
    return ""


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that an unknown one is probably meant to be."""
    if len(word) > 100:  # to compare a long text takes seconds
        return None
    known = sorted(known)
    in_other_case = [one for one in known if one.lower() == word.lower()]
    return next(iter(in_other_case or difflib.get_close_matches(word, known, n=1)), None)


@dataclass(frozen=True)
class Adopted:
    """A part that was made of a function, class or object given in Python."""

    part: Any
    declared: Declaration
    given: object
    source: Any  # the function or class that has its code


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

    def registry(self, kind: type[Names] | type[Lists]) -> Registry[Any] | None:
        """The registry whose parts this option names or lists; see `Names` and `Lists`."""
        marks = getattr(self.type, "__metadata__", ())
        return next((mark.registry for mark in marks if isinstance(mark, kind)), None)


class Registry(Generic[T]):
    """The parts of one kind, by name.

    The options of a function are its keyword-only parameters; the library passes the others. The
    options of a class are all parameters of its constructor, or the keyword-only ones where
    `passes` says that the library passes the others.

    Args:
        kind: what one part is called: "criterion".
        plural: what several are called: "criteria".
        description: one line for `clientwise list`.
        passes: whether the library passes arguments to the constructors of classes.

    Example:
        >>> GREETINGS = Registry("greeting", "greetings", "What to say")
        >>> @GREETINGS.register("hello")
        ... def hello(name, *, mark="!"):
        ...     '''Hello.'''
        ...     return f"Hello {name}{mark}"
        >>> GREETINGS.get("hello")("you"), GREETINGS.describe("hello")
        ('Hello you!', 'Hello.')
    """

    def __init__(self, kind: str, plural: str, description: str, *, passes: bool = False) -> None:
        self.kind = kind
        self.plural = plural
        self.description = description
        self.passes = passes
        self._parts: dict[str, T] = {}
        self._declared: dict[str, Declaration] = {}
        self._adopted: dict[str, Adopted] = {}
        IMPORTED.setdefault(plural, self)

    def register(self, name: str, declared: Declaration = Declaration()) -> Callable[[T], T]:  # noqa: B008  (frozen)
        """Decorator that registers a part under `name`, with what it declares."""

        def decorate(part: T) -> T:
            known = None if name in self._adopted else self._parts.get(name)
            if known is not None and not _is_same(known, part):
                raise ValueError(
                    f"{self.kind} {name!r} is already registered by {known.__module__}"
                )
            if not inspect.getdoc(part):
                raise ValueError(
                    f"{self.kind} {name!r} needs a docstring: `clientwise list` shows it"
                )
            self._parts[name] = part
            self._declared[name] = declared
            self._adopted.pop(name, None)
            return part

        return decorate

    def adopt(self, name: str, made: Adopted) -> None:
        """Register a part that was given in Python instead of a name; a later one may replace it."""
        if name in self._parts and name not in self._adopted:
            raise ValueError(f"there is a {self.kind} {name!r} already")
        self._parts[name] = made.part
        self._declared[name] = made.declared
        self._adopted[name] = made

    def adopted(self, name: str) -> Adopted | None:
        """What was given in Python under this name; None for a part that is registered, and so in a file."""
        return self._adopted.get(name)

    def get(self, name: str) -> T:
        """The part called `name`; an unknown name is a KeyError that suggests the closest one."""
        if name not in self._parts:
            raise KeyError(f"unknown {self.kind} {name!r}{suggest(name, self._parts)}")
        return self._parts[name]

    def declared(self, name: str) -> Declaration:
        """What the part called `name` declares."""
        return self._declared[name]

    def needs(self, part: Part) -> frozenset[Need]:
        """What a part needs, including what the parts need that its options name."""
        found = self.declared(part.name).needs
        for option in self.options(part.name):
            named = option.registry(Names)
            value = part.options.get(option.name)
            if named is not None and value is not None:
                found |= named.needs(Part(value, {}))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def describe(self, name: str) -> str:
        """First line of the part's docstring."""
        return (inspect.getdoc(self.get(name)) or name).splitlines()[0]

    def options(self, name: str) -> tuple[Option, ...]:
        """The part's options with their types and defaults."""
        return options_of(self.get(name), self.passes)

    def takes_any_option(self, name: str) -> bool:
        """Whether the part is a function with `**options`: what they are is not known."""
        part = self.get(name)
        parameters = inspect.signature(part).parameters.values()
        return not inspect.isclass(part) and any(one.kind is one.VAR_KEYWORD for one in parameters)


IMPORTED: dict[str, Registry[Any]] = {}  # the registries so far, by plural


def _is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two definitions are one: a plugin that is imported twice defines its parts again."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


@functools.cache
def options_of(part: Callable[..., Any], passes: bool = False) -> tuple[Option, ...]:
    """The options of a function or class with their types and defaults; see `Registry`."""
    is_class = inspect.isclass(part)
    takes_all = is_class and not passes
    has_init = is_class and not is_dataclass(
        part
    )  # whose fields have the types, each where it is stated
    try:
        hints = typing.get_type_hints(part.__init__ if has_init else part, include_extras=True)
    except NameError:  # a type that only the type checker imports: the option takes anything then
        hints = {}
    options = []
    for parameter in inspect.signature(part).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue  # a protocol's subclass without a constructor takes anything
        if takes_all or parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            type_of_value = hints.get(parameter.name, Any)
            options.append(Option(parameter.name, type_of_value, parameter.default))
    return tuple(options)


@dataclass(frozen=True)
class Names:
    """Marks an option that names another kind of part: `Annotated[str, Names(METRICS)]`."""

    registry: Registry[Any]


@dataclass(frozen=True)
class Lists:
    """Marks an option that lists parts with their options: `Annotated[tuple[Part, ...], Lists(RULES)]`."""

    registry: Registry[Any]


@dataclass(frozen=True)
class Part:
    """A part as a config names it: its registered name, its options, and its label there."""

    name: str
    options: Mapping[str, Any]
    label: str = ""  # `as` in TOML: tells two criteria of one name apart

    def __hash__(self) -> int:
        return hash((self.name, self.label))  # options may be lists

    @property
    def called(self) -> str:
        """The label, or the name where there is no label."""
        return self.label or self.name
