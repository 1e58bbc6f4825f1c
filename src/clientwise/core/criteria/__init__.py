"""Criteria: numbers measured about a client, by the client itself or by the server when an update arrives.

A criterion is a function of n clients that returns n values, zero or more; larger is better:

    @criterion("label_diversity", measured_by="client")
    def label_diversity(clients: ClientFacts) -> Tensor:
        '''Number of distinct labels a client holds (P1 5.1, LD).'''
        return (clients.label_counts > 0).sum(-1)

Its keyword-only parameters are its options in TOML. Of what a client measures, only these values leave
the client. The server refuses an update whose value is outside [0, `high`].

Functions of `ClientFacts` run on the client, functions of `Arrivals` on the server.

A new criterion goes into the module of what measures it: `client`, `server`, `cohort` or `device`. Nothing
else refers to it.
"""

from __future__ import annotations

from . import client, cohort, device
from .base import (
    ANY,
    CRITERIA,
    Arrivals,
    ClientFacts,
    Criterion,
    CriterionDeclaration,
    Memory,
    Outcome,
    criterion,
    is_claimed,
    is_fixed,
    make_criterion,
    measure_clients,
    source_of,
)
from .server import HONEST, Fact, fact_columns

__all__ = [
    "ANY",
    "CRITERIA",
    "HONEST",
    "Arrivals",
    "ClientFacts",
    "Criterion",
    "CriterionDeclaration",
    "Fact",
    "Memory",
    "Outcome",
    "client",
    "cohort",
    "criterion",
    "device",
    "fact_columns",
    "is_claimed",
    "is_fixed",
    "make_criterion",
    "measure_clients",
    "source_of",
]
