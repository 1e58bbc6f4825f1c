"""clientwise on NVFlare: `MethodAggregator` for `FedAvgRecipe(aggregator=...)`.

See docs/nvflare.md. Needs `clientwise[nvflare]`.
"""

from .errors import needing

with needing("nvflare", "clientwise.nvflare"):
    from .hosts.nvflare import MethodAggregator

__all__ = ["MethodAggregator"]
