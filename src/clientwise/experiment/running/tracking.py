"""The hook that tells the trackers of a run of every round."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import ConfigError, MissingPackageError
from ...registry import Part
from ..config.schema import Experiment
from ..trackers import MODULES, TRACKERS, LaneInfo, Log, package_of
from .lanes import Progress


class Trackers:
    """A hook that is called after every round and tells all trackers of a run.

    A tracker that raises is switched off with a warning; the run continues.
    """

    def __init__(self, experiment: Experiment) -> None:
        """Take the trackers of a config; ConfigError for a missing package, before the run begins."""
        self._active: dict[int, Part] = dict(enumerate(experiment.trackers))
        self._config = experiment.to_dict()
        self._opened: dict[tuple[int, str, int], tuple[Any, Log]] = {}
        for index, part in self._active.items():
            try:
                if part.name in MODULES:
                    package_of(part.name)
            except MissingPackageError as error:
                raise ConfigError(experiment.source, [(f"trackers[{index}]", str(error))]) from None

    def __call__(self, step: Progress) -> None:
        """A round has ended; the trackers of its lane begin with its first one and end with its last one."""
        for index in list(self._active):
            key = (index, step.method, step.seed)
            with self._switched_off_by_errors(index):
                if key not in self._opened:
                    self._opened[key] = self._begun(index, step)
                _, log = self._opened[key]
                log(step.record, step.values)
                if step.is_last:
                    context, _ = self._opened.pop(key)
                    context.__exit__(None, None, None)

    def _begun(self, index: int, step: Progress) -> tuple[Any, Log]:
        done = step.record.round_num - 1
        lane = LaneInfo(self._config, step.folder, step.method, step.seed, done)
        part = self._active[index]
        context = TRACKERS.get(part.name)(lane, **part.options)
        return context, context.__enter__()

    def close(self) -> None:
        """End the trackers of lanes that were interrupted."""
        for key, (context, _) in self._opened.items():
            index, *_ = key
            if index in self._active:
                with self._switched_off_by_errors(index):
                    context.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)

    @contextmanager
    def _switched_off_by_errors(self, index: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a tracker's fault must not end hours of training
            name = self._active.pop(index).name
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            # Without a logging setup, Python prints this to stderr as it is.
            logging.getLogger(__name__).warning(
                "warning: tracker %s is switched off for the rest of this run: %s", name, reason
            )
