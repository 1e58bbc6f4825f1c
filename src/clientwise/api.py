"""The public names, listed once: `clientwise` itself imports them from here when they are first used.

`as` says to type checkers that a name is meant for users. What one's own parts need is in `clientwise.parts`.
"""

from . import parts as parts
from .core.criteria import criterion as criterion
from .core.weights import scores as _scores
from .core.weights.scores import prioritized as prioritized
from .core.weights.weighting import weigh as weigh
from .data.federated import FederatedData as FederatedData
from .data.federated import Samples as Samples
from .errors import ClientwiseError as ClientwiseError
from .fitting import StopRun as StopRun
from .fitting import fit as fit
from .fitting import run as run
from .hosts.aggregator import Aggregate as Aggregate
from .hosts.aggregator import Aggregator as Aggregator
from .prediction import Predictor as Predictor
from .results import Run as Run
from .results import load as load

# cw.mean() reads like the function it is
mean, product = _scores.Mean, _scores.Product
