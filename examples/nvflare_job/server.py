"""The server's side: NVFlare's FedAvg with a clientwise method as its aggregator."""

from __future__ import annotations

from typing import Any

from task import Net, server_samples

from clientwise.nvflare import MethodAggregator


class DigitsAggregator(MethodAggregator):
    def server_side(self) -> dict[str, Any]:
        return {"model": Net(), "weigh": server_samples()}
