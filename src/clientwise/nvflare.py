"""clientwise on NVFlare: `MethodAggregator` runs a whole method, such as `Recommended`, inside a job of your own.

Give it to `FedAvgRecipe(aggregator=...)`; see docs/frameworks.md. Needs `clientwise[nvflare]`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import numpy

from .errors import needing
from .hosts.aggregator import Aggregate, Aggregator
from .hosts.values import averaged

with needing("nvflare", "clientwise.nvflare"):
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_constant import FLMetaKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    from nvflare.app_common.abstract.model import ModelLearnableKey
    from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
    from nvflare.app_common.app_constant import AppConstants

__all__ = ["MethodAggregator"]
STEPS = "local_steps"  # the criterion that NVFlare's own number of steps stands for


class MethodAggregator(ModelAggregator):  # type: ignore[misc]  # NVFlare has no types
    """An NVFlare aggregator that runs a clientwise method: `FedAvgRecipe(aggregator=MethodAggregator())`.

    NVFlare writes the arguments into the job and makes the object again on the server. They are
    therefore plain values. For what is not (a network, samples, functions), override `server_side`
    in a subclass.

    Criteria of a site are read from the metrics and the meta data of its `FLModel`. Every update is
    checked by `cw.Aggregator`, as in a clientwise run. A refused update does not end the job.

    Args:
        method: a name of `clientwise list methods`, or a table as in TOML with `name` and `like`.
        criteria: instead of the method's own, the most important first: names of metrics or meta
            data of the sites, or built-in criteria.
        clients: names of all sites. Others are refused. Needed for bounds that name sites.
        num_classes: number of classes over all sites.
        learning_rate: of fine-tuning.
        seed: of the order of samples in fine-tuning.
        folder: the run folder of the record; a relative path is inside the job's own folder on the
            server.
        weights: instead of criteria: a weight by site. A function of a site and its metrics comes
            from `server_side`.
    """

    # NVFlare reads the names of the arguments here, and their values from attributes of these names.
    def __init__(
        self,
        method: str | dict[str, Any] = "Recommended",
        criteria: list[str] | None = None,
        clients: list[str] | None = None,
        num_classes: int | None = None,
        learning_rate: float = 0.01,
        seed: int = 1,
        folder: str = "clientwise",
        weights: dict[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.method = method
        self.criteria = criteria
        self.clients = clients
        self.num_classes = num_classes
        self.learning_rate = learning_rate
        self.seed = seed
        self.folder = folder
        self.weights = weights
        self._aggregator: Aggregator | None = None
        self._sent: Mapping[str, Any] = {}  # the global model
        self._metrics: dict[str, dict[str, Any]] = {}  # of the sites that were accepted so far
        self._lock = threading.Lock()  # results may arrive in several threads

    def server_side(self) -> dict[str, Any]:
        """What only the server has: `model`, `weigh`, `report`, `measured_here` and a function as `weights`."""
        return {}

    def reset_stats(self) -> None:
        """Begin a round."""
        with self._lock:
            if self._aggregator is None:
                self._aggregator = self._make()
            self._sent = self._global_model()
            self._metrics = {}
            self._aggregator.begin(self._sent)

    def accept_model(self, model: FLModel) -> None:
        """Take the update of a site, or refuse it."""
        with self._lock:
            assert self._aggregator is not None, "NVFlare resets an aggregator before every round"
            site = str((model.meta or {}).get("client_name", AppConstants.CLIENT_UNKNOWN))
            try:
                arrays = self._arrays(model)
                values = _values(model)
            except Exception as error:
                self._aggregator.refuse(site, error)
                return
            if self._aggregator.accept(site, arrays, values) is not None:
                self._metrics[site] = dict(model.metrics or {})

    def aggregate_model(self) -> FLModel:
        """End the round; the model stays as it was where no update can be used."""
        with self._lock:
            assert self._aggregator is not None, "NVFlare resets an aggregator before every round"
            done = self._aggregator.finish()
            self._tell(done)
            metrics, remarks = averaged(self._metrics, done.weights)
        for remark in remarks:
            self.warning(remark)
        return FLModel(params_type=ParamsType.FULL, params=done.model, metrics=metrics or None)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Close the record when the job ends."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.END_RUN and self._aggregator is not None:
            self._aggregator.close()

    def _make(self) -> Aggregator:
        stated = {} if self.weights is None else {"weights": self.weights}
        return Aggregator(
            self.method,
            criteria=self.criteria,
            clients=self.clients,
            num_classes=self.num_classes,
            learning_rate=self.learning_rate,
            seed=self.seed,
            folder=self._in_job(self.folder),
            rounds=self._context().get_prop(AppConstants.NUM_ROUNDS),
            **(stated | self.server_side()),
        )

    def _context(self) -> FLContext:
        if self.fl_ctx is None:
            raise RuntimeError(
                "the aggregator is not part of a running job: give it to FedAvgRecipe"
            )
        return self.fl_ctx

    def _in_job(self, path: str) -> Path:
        """A path on the server; a relative one is inside the job's own folder."""
        if Path(path).is_absolute():
            return Path(path)
        context = self._context()
        workspace = context.get_engine().get_workspace()
        return Path(workspace.get_run_dir(context.get_job_id())) / path

    def _global_model(self) -> Mapping[str, Any]:
        found = self._context().get_prop(AppConstants.GLOBAL_MODEL)
        weights = found.get(ModelLearnableKey.WEIGHTS) if found else None
        if not weights:
            raise RuntimeError(
                "NVFlare does not say which model it sends: give the recipe a `model` that its "
                "persistor loads"
            )
        return dict(weights)

    def _arrays(self, model: FLModel) -> Any:
        """A site's model; of one that sends its change, the global model with that change."""
        params = model.params
        if model.params_type != ParamsType.DIFF or not isinstance(params, dict):
            return params
        return {name: numpy.add(self._sent[name], change) for name, change in params.items()}

    def _tell(self, done: Aggregate) -> None:
        for site, reason in done.refusals.items():
            self.warning(f"{site} is refused: {reason}")
        for remark in done.remarks:
            self.warning(remark)
        shown = ", ".join(f"{site} {weight:.1%}" for site, weight in done.weights.items())
        self.info(f"weights: {shown or 'none'}")


def _values(model: FLModel) -> dict[str, Any]:
    """The numbers that came with an update: its metrics, its meta data and its steps."""
    meta = model.meta or {}
    values = {name: value for name, value in meta.items() if isinstance(value, Real)}
    if FLMetaKey.NUM_STEPS_CURRENT_ROUND in values:
        values[STEPS] = values[FLMetaKey.NUM_STEPS_CURRENT_ROUND]
    return {**values, **(model.metrics or {})}
