"""Hostile and faulty clients, for simulation: what they do to their samples, their models and what they report."""

from .attack import ATTACKS as ATTACKS
from .attack import Attack as Attack
from .attack import Honest as Honest
from .attack import Hostile as Hostile
from .attack import Knowledge as Knowledge
from .attack import Several as Several
from .backdoors import PixelBackdoor as PixelBackdoor
from .backdoors import SemanticBackdoor as SemanticBackdoor
from .labels import MirroredLabels as MirroredLabels
from .labels import OneLabel as OneLabel
from .labels import WrongLabels as WrongLabels
from .lies import Boast as Boast
from .lies import Exaggerate as Exaggerate
from .lies import LyingJudge as LyingJudge
from .models import Broken as Broken
from .models import FreeRider as FreeRider
from .models import Noise as Noise
from .models import Scaling as Scaling
from .models import SignFlip as SignFlip
from .new_data import SwappedData as SwappedData
from .omniscient import Alie as Alie
from .omniscient import InnerProduct as InnerProduct
from .omniscient import Mimic as Mimic
from .omniscient import MinMax as MinMax
from .omniscient import MinSum as MinSum
from .omniscient import ModelReplacement as ModelReplacement
