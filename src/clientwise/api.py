"""The public names, listed once: `clientwise` itself imports them from here when they are first used.

`as` says to type checkers that a name is meant for users.
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
from .core.criteria import criterion as criterion
from .core.evidence import EVIDENCE as EVIDENCE
from .core.objective.adapt_loss import LOSS_ADAPTERS as LOSS_ADAPTERS
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
from .core.weights.priority import ADJUSTMENTS as ADJUSTMENTS
from .core.weights.scores import SCORES as SCORES
from .core.weights.scores import Score as Score
from .core.weights.scores import prioritized as prioritized
from .core.weights.weighting import NORMALISERS as NORMALISERS
from .core.weights.weighting import weigh as weigh
from .data.datasets import DATASETS as DATASETS
from .data.federated import FederatedData as FederatedData
from .data.federated import Samples as Samples
from .data.partition import PARTITIONS as PARTITIONS
from .errors import ClientwiseError as ClientwiseError
from .experiment.config.schema import Experiment as Experiment
from .experiment.trackers import TRACKERS as TRACKERS
from .experiment.trackers import LaneInfo as LaneInfo
from .fitting import fit as fit
from .fitting import run as run
from .hosts.aggregator import Aggregate as Aggregate
from .hosts.aggregator import Aggregator as Aggregator
from .hosts.aggregator import ClientWeight as ClientWeight
from .loading import load as load
from .models.networks import MODELS as MODELS
from .prediction import Predictor as Predictor
from .registry import needs as needs
from .results import Run as Run

# cw.mean() reads like the function it is
choquet, mean, owa = (
    _scores.Choquet,
    _scores.Mean,
    _scores.Owa,
)
product, weighted_mean = _scores.Product, _scores.WeightedMean
