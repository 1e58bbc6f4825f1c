"""clientwise on NVFlare: `MethodAggregator` for `FedAvgRecipe(aggregator=...)`.

See docs/nvflare.md. Needs `clientwise[nvflare]`.
"""

from .hosts.nvflare import MethodAggregator

__all__ = ["MethodAggregator"]
