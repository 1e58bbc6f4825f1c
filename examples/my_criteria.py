"""The criterion of docs/parts.md, as a module beside a config."""

from __future__ import annotations

from torch import Tensor

import clientwise as cw


@cw.criterion("battery", measured_by="client", high=1.0)
def battery(clients: cw.parts.ClientFacts, *, floor: float = 0.0) -> Tensor:
    """Charge of the battery, from 0 to 1; below `floor` it counts as empty."""
    charge = clients.attributes["battery"]
    return charge * (charge >= floor)
