"""Hostile and faulty clients, for simulation: what they do to their samples, their models and what they report."""

from .attack import ATTACKS as ATTACKS
from .attack import Attack as Attack
from .attack import Honest as Honest
from .attack import Hostile as Hostile
from .attack import Knowledge as Knowledge
from .attack import Several as Several
from .forged import Alie as Alie
from .forged import Broken as Broken
from .forged import FreeRider as FreeRider
from .forged import InnerProduct as InnerProduct
from .forged import Mimic as Mimic
from .forged import MinMax as MinMax
from .forged import MinSum as MinSum
from .forged import ModelReplacement as ModelReplacement
from .forged import Noise as Noise
from .forged import Scaling as Scaling
from .forged import SignFlip as SignFlip
from .lies import Boast as Boast
from .lies import Exaggerate as Exaggerate
from .lies import LyingJudge as LyingJudge
from .samples import MirroredLabels as MirroredLabels
from .samples import OneLabel as OneLabel
from .samples import PixelBackdoor as PixelBackdoor
from .samples import SemanticBackdoor as SemanticBackdoor
from .samples import SwappedData as SwappedData
from .samples import WrongLabels as WrongLabels
