"""clientwise on NVFlare: `MethodAggregator` for `FedAvgRecipe(aggregator=...)`.

See docs/nvflare.md. Needs `clientwise[nvflare]`.
"""

from .aggregator import MethodAggregator

__all__ = ["MethodAggregator"]
