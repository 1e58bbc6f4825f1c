"""Hostile and faulty clients, for simulation: what they do to their samples, their models and what they report."""

from . import forged, lies, samples
from .attack import ATTACKS, Attack, Honest, Hostile, Knowledge, Several
from .forged import Broken, SignFlip

__all__ = [
    "ATTACKS",
    "Attack",
    "Broken",
    "Honest",
    "Hostile",
    "Knowledge",
    "Several",
    "SignFlip",
    "forged",
    "lies",
    "samples",
]
