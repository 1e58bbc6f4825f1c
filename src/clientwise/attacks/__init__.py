"""Hostile and faulty clients, for simulation: what they do to their samples, their models and what they report."""

from . import forged as forged
from . import lies as lies
from . import samples as samples
from .attack import ATTACKS as ATTACKS
from .attack import Attack as Attack
from .attack import Honest as Honest
from .attack import Hostile as Hostile
from .attack import Knowledge as Knowledge
from .attack import Several as Several
from .forged import Broken as Broken
from .forged import Noise as Noise
from .forged import SignFlip as SignFlip
from .lies import Boast as Boast
from .samples import WrongLabels as WrongLabels
