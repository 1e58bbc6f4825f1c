"""The public names, listed once: `clientwise` itself imports them from here when they are first used.

`as` says to type checkers that a name is meant for users.
"""

from .attacks import ATTACKS as ATTACKS
from .attacks import Attack as Attack
from .attacks import Knowledge as Knowledge
from .core import scores as _scores
from .core.adapt_loss import LOSS_ADAPTERS as LOSS_ADAPTERS
from .core.before import BEFORE as BEFORE
from .core.criteria import CRITERIA as CRITERIA
from .core.criteria import Arrivals as Arrivals
from .core.criteria import ClientFacts as ClientFacts
from .core.criteria import criterion as criterion
from .core.evidence import EVIDENCE as EVIDENCE
from .core.metrics import METRICS as METRICS
from .core.metrics import measure as measure
from .core.priority import ADJUSTMENTS as ADJUSTMENTS
from .core.rules import RULES as RULES
from .core.rules import Ruled as Ruled
from .core.scores import SCORES as SCORES
from .core.scores import Score as Score
from .core.scores import prioritized as prioritized
from .core.server_step import SERVER_STEPS as SERVER_STEPS
from .core.types import Gathered as Gathered
from .core.types import Posterior as Posterior
from .core.types import RoundRecord as RoundRecord
from .core.weighting import NORMALISERS as NORMALISERS
from .core.weighting import weigh as weigh
from .data.datasets import DATASETS as DATASETS
from .data.federated import FederatedData as FederatedData
from .data.federated import Samples as Samples
from .data.partition import PARTITIONS as PARTITIONS
from .errors import ClientwiseError as ClientwiseError
from .experiment.schema import Experiment as Experiment
from .hosts.aggregator import Aggregate as Aggregate
from .hosts.aggregator import Aggregator as Aggregator
from .hosts.aggregator import ClientWeight as ClientWeight
from .launch import run as run
from .loading import load as load
from .models.networks import MODELS as MODELS
from .prediction import Predictor as Predictor
from .registry import needs as needs
from .results import Run as Run
from .trackers import TRACKERS as TRACKERS
from .trackers import LaneInfo as LaneInfo
from .trackers import Tracker as Tracker

# cw.mean() reads like the function it is
choquet, mean, owa = (
    _scores.Choquet,
    _scores.Mean,
    _scores.Owa,
)
product, weighted_mean = _scores.Product, _scores.WeightedMean
