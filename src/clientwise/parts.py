"""What one's own parts need: the registries of all kinds of parts, and the types that parts take and return.

>>> from clientwise import parts
>>> "median" in parts.RULES
True
"""

from .attacks import ATTACKS as ATTACKS
from .attacks import Attack as Attack
from .attacks import Knowledge as Knowledge
from .core.aggregation.before import BEFORE as BEFORE
from .core.aggregation.rules import RULES as RULES
from .core.aggregation.rules import Ruled as Ruled
from .core.aggregation.server_step import SERVER_STEPS as SERVER_STEPS
from .core.criteria import CRITERIA as CRITERIA
from .core.criteria import Arrivals as Arrivals
from .core.criteria import ClientFacts as ClientFacts
from .core.evidence import EVIDENCE as EVIDENCE
from .core.feedback import ADJUSTMENTS as ADJUSTMENTS
from .core.feedback import LOSS_ADAPTERS as LOSS_ADAPTERS
from .core.objective.loss import LOSSES as LOSSES
from .core.objective.loss import Loss as Loss
from .core.objective.metrics import METRICS as METRICS
from .core.objective.metrics import measure as measure
from .core.training import OPTIMIZERS as OPTIMIZERS
from .core.training import SCHEDULES as SCHEDULES
from .core.training import TRANSFORMS as TRANSFORMS
from .core.types import Gathered as Gathered
from .core.types import Posterior as Posterior
from .core.types import RoundRecord as RoundRecord
from .core.weights import scores as _scores
from .core.weights.scores import SCORES as SCORES
from .core.weights.scores import Score as Score
from .core.weights.weighting import NORMALISERS as NORMALISERS
from .data.datasets import DATASETS as DATASETS
from .data.partition import PARTITIONS as PARTITIONS
from .models.networks import MODELS as MODELS
from .registry import needs as needs

choquet, owa, weighted_mean = _scores.Choquet, _scores.Owa, _scores.WeightedMean
