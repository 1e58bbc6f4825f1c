"""The server's side: NVFlare's FedAvg with a clientwise method as its aggregator."""

from __future__ import annotations

from typing import Any

from task import REPORT, WEIGH, Net, server_samples

from clientwise.nvflare import MethodAggregator


class DigitsAggregator(MethodAggregator):
    def server_side(self) -> dict[str, Any]:
        """What NVFlare cannot write into the job: the network and the server's own samples."""
        return {
            "model": Net(),
            "weigh": server_samples(WEIGH),  # to weigh by and to fine-tune on
            "report": server_samples(REPORT),  # to report on
        }
