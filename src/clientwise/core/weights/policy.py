"""A policy: what it states about weights. `bounds.py` has the weights that it allows, which need PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

from annotated_types import Ge, Lt, MinLen, doc

from ...registry import OpenShare, PositiveInt, suggest

Floor = Annotated[float, Ge(0), Lt(1)]
Client = int | str  # its number, or its name


@dataclass(frozen=True)
class Group:
    """Bounds on the weight of some clients together; of one client, instead of `cap` and `floor`.

    Args:
        clients: their names or numbers.
        cap: largest weight of all of them together.
        floor: smallest weight of all of them together.
        name: what reports call the group.
    """

    clients: Annotated[tuple[Client, ...], MinLen(1), doc("The clients, by name or number.")]
    cap: Annotated[
        OpenShare | None, doc("Largest weight of these clients together. Default: no cap.")
    ] = None
    floor: Annotated[
        Floor | None, doc("Smallest weight of these clients together. Default: no floor.")
    ] = None
    name: Annotated[str, doc("Its name in reports. Default: the clients.")] = ""

    @property
    def called(self) -> str:
        """The name, or the clients."""
        return self.name or ", ".join(map(str, self.clients))


@dataclass(frozen=True)
class Probation:
    """A smaller cap for newcomers: clients that join a running federation, and `clients`.

    Args:
        cap: largest weight of a client on probation; it has no floor.
        rounds: how many accepted updates end the probation.
        clients: those that are on probation from the first round on.
    """

    cap: Annotated[OpenShare, doc("Largest weight of a client on probation; it has no floor.")]
    rounds: Annotated[PositiveInt, doc("Rounds with an accepted update that end the probation.")]
    clients: Annotated[
        tuple[Client, ...],
        doc(
            "Clients, by name or number, on probation from the first round on. Members that join "
            "later are on probation in any case."
        ),
    ] = ()


@dataclass(frozen=True)
class Policy:
    """Caps, floors, groups of clients, probation and a quorum; see `Bounds`."""

    # The config's [methods.bounds] table is made from these fields.
    cap: Annotated[
        OpenShare, doc("Largest weight of a client, as a share of the total. 1: no cap.")
    ] = 1.0
    floor: Annotated[
        Floor, doc("Smallest weight of an accepted client, as a share of the total. 0: no floor.")
    ] = 0.0
    groups: Annotated[
        tuple[Group, ...],
        doc("Bounds on several clients together, or other bounds for one client."),
    ] = ()
    probation: Annotated[Probation | None, doc("A smaller cap for newcomers. Default: none.")] = (
        None
    )
    quorum: Annotated[
        PositiveInt, doc("Least number of accepted updates; with fewer, the model stays.")
    ] = 1
    note: Annotated[
        str,
        doc(
            "Why the policy is as it is. A run that is resumed with other bounds needs a new note."
        ),
    ] = ""

    @property
    def is_plain(self) -> bool:
        """Whether cap and floor are all there is: the weights do not depend on who a client is."""
        return not self.groups and self.probation is None and self.quorum == 1

    def for_clients(self, names: Sequence[str], num_clients: int) -> Self:
        """The bounds with numbers instead of names; ValueError for clients and groups that cannot be."""

        def number(client: Client) -> int:
            if isinstance(client, int) and 0 <= client < num_clients:
                return client
            if client in names:
                return names.index(str(client))
            hint = f"; there are 0 to {num_clients - 1}" if not names else ""
            raise ValueError(f"no client is called {client!r}{hint or suggest(str(client), names)}")

        groups = []
        for group in self.groups:
            numbers = tuple(map(number, group.clients))
            groups.append(replace(group, clients=numbers, name=group.called))
        _refuse_overlaps(groups)
        probation = self.probation
        if probation is not None:
            probation = replace(probation, clients=tuple(map(number, probation.clients)))
        return replace(self, groups=tuple(groups), probation=probation)


def _refuse_overlaps(groups: Sequence[Group]) -> None:
    for index, one in enumerate(groups):
        if len({*one.clients}) < len(one.clients):
            raise ValueError(f"group {one.called!r} lists a client twice")
        for other in groups[:index]:
            shared = {*one.clients} & {*other.clients}
            if shared == {*one.clients} == {*other.clients}:
                raise ValueError(
                    f"groups {other.called!r} and {one.called!r} have the same clients"
                )
            if shared and shared not in ({*one.clients}, {*other.clients}):
                raise ValueError(
                    f"groups {other.called!r} and {one.called!r} overlap: groups must be disjoint, "
                    "or one within the other"
                )
