"""What a site's approver signs before its node answers: one approval, for one experiment by one release of the code.

`agree` reads the experiment with `tomllib` and imports nothing that it names. It writes the limits into the approval.
The node enforces the limits of the approval, whatever the experiment turns out to mean: a wrong reading here can only
let the node answer less.
"""

from __future__ import annotations

import json
import math
import secrets
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .canonical import ConsortiumError, digest
from .keys import UntrustedError

TIMES_A_ROUND = 2  # a run that is resumed may ask for a round again, with another model
USUAL_CELL = 5
RESULTS_MU = 1.0  # of all evaluations under one approval
MOST_RESULTS = 100_000
LONGEST_NAME = 60
MOST_ROUNDS = 1_000_000
# What an experiment may state. Others name code, simulate clients, or take settings from elsewhere.
KEYS = {
    *("name", "engine", "rounds", "seeds", "model", "training", "methods", "evaluation", "flower"),
    *(
        "server_set",
        "keep",
        "checkpoint_seconds",
        "device",
        "precision",
    ),
}
NEEDED = ("rounds", "seeds", "methods", "flower")
MASKED = "secure_aggregation"
# What a method with masked sums may state: the server sees no single update and no single weight.
MASKED_KEYS = {"name", "criteria", "score", "normalise", "training", "server_step", MASKED}


class ApprovalError(ConsortiumError):
    """An experiment that cannot be approved as it is, and what to do."""


@dataclass(frozen=True)
class Approval:
    """The content of `approval.toml`.

    Args:
        id: of this approval; a new one ends the earlier ones.
        site: the name of the site.
        experiment: SHA-256 of `experiment.toml`.
        lock: SHA-256 of `requirements.lock`, which names the code.
        cell: the smallest group of patients that a number is about.
        trainings: most different requests to train, in all.
        trainings_a_round: for one seed and round.
        evaluations: most models that are evaluated, in all.
        mu: most that all trainings together spend of a patient's privacy; None: they have no noise.
        without_noise: the reason for trainings without noise.
        masked: whether the site's updates leave it only inside a sum over all members.
        reason: why the experiment is approved.
    """

    id: str
    site: str
    experiment: str
    lock: str
    cell: int
    trainings: int
    trainings_a_round: int
    evaluations: int
    reason: str
    mu: float | None = None
    without_noise: str | None = None
    masked: bool = False

    @property
    def mu_of_tests(self) -> float | None:
        """What all evaluations together spend; None: they are exact."""
        if not self.evaluations:
            return 0.0
        return RESULTS_MU if self.cell > 1 else None

    def __post_init__(self) -> None:
        counts = (self.trainings, self.trainings_a_round, self.evaluations, self.cell)
        if not all(type(one) is int and one >= 0 for one in counts) or not self.cell:
            raise UntrustedError("an approval's numbers are whole")
        # With a μ that is no number, every comparison with a limit would be false.
        if self.mu is not None and not (isinstance(self.mu, float) and 0 <= self.mu < math.inf):
            raise UntrustedError("an approval's mu is a number of zero or more")
        if (self.mu is None) != bool(self.without_noise):
            raise UntrustedError("an approval has either mu, or a reason in without_noise")

    @staticmethod
    def read(content: bytes) -> Approval:
        """From the bytes of a signed file; UntrustedError where they are no approval."""
        try:
            return Approval(**tomllib.loads(content.decode()))
        except (TypeError, ValueError) as error:
            raise UntrustedError(f"not an approval: {error}") from None

    def text(self) -> str:
        """As a TOML file; the strings have JSON's escapes, which TOML reads in the same way."""
        lines = ["# Signed with: ssh-keygen -Y sign -n clientwise-approval -f KEY approval.toml"]
        for name, value in vars(self).items():
            if value is not None:
                lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Experiment:
    """What an approver must know of an experiment, read from its file alone."""

    digest: str
    name: str
    members: tuple[str, ...]
    rounds: int
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    mu_squared: float | None  # of one training, for the method that spends most; None: no noise
    criteria: tuple[str, ...]
    clip: float | None  # of updates in masked sums; None: no masks
    table: dict[str, Any]

    @property
    def masked(self) -> bool:
        """Whether updates leave a site only inside a sum over all members."""
        return self.clip is not None

    def for_library(self) -> dict[str, Any]:
        """The table that the library reads: it only simulates masked sums, and this package makes them."""
        methods = [
            {key: value for key, value in method.items() if key != MASKED}
            for method in self.table["methods"]
        ]
        return {**self.table, "methods": methods}

    @property
    def trainings_a_round(self) -> int:
        """Different requests to train for one seed and round."""
        times = 1 if self.masked else TIMES_A_ROUND  # a sum is made once
        return times * len(self.methods)

    @property
    def trainings(self) -> int:
        """Different requests to train in all rounds."""
        return self.trainings_a_round * self.rounds * len(self.seeds)

    @property
    def mu(self) -> float | None:
        """What all trainings together spend of a patient's privacy."""
        if self.mu_squared is None:
            return None
        return math.sqrt(self.trainings * self.mu_squared)

    @staticmethod
    def read(content: bytes) -> Experiment:
        """From the bytes of `experiment.toml`; ApprovalError for one that this file cannot judge."""
        try:
            return Experiment._read(content, tomllib.loads(content.decode()))
        except (
            *(ValueError, TypeError, AttributeError, KeyError, ArithmeticError),
            RecursionError,
        ) as error:
            raise ApprovalError(f"this experiment cannot be read: {error}") from None

    @staticmethod
    def _read(content: bytes, table: dict[str, Any]) -> Experiment:
        if others := table.keys() - KEYS:
            raise ApprovalError(
                f"{min(others)}: an experiment of a consortium names no code and no settings from elsewhere; parts of "
                "your own are packages in requirements.lock"
            )
        for key in NEEDED:
            if not table.get(key):
                raise ApprovalError(f"{key} is missing: an experiment of a consortium states it")
        methods = table["methods"]
        if not all("criteria" in method and "like" not in method for method in methods):
            raise ApprovalError("methods: write each out, with its criteria and without `like`")
        costs = [_cost(table, method) for method in methods]
        if not all(one is None or 0 < one < math.inf for one in costs):
            raise ApprovalError("noise and epochs must be positive numbers")
        criteria = {_name(str(one), 200) for method in methods for one in method["criteria"]}
        if not 1 <= table["rounds"] <= MOST_ROUNDS:
            raise ApprovalError(f"rounds must be 1 to {MOST_ROUNDS}")
        return Experiment(
            digest(content),
            _name(table.get("name", "")),
            tuple(_name(one) for one in table["flower"].get("clients", ())),
            int(table["rounds"]),
            tuple(_name(method.get("name", "")) for method in methods),
            tuple(table["seeds"]),
            None if None in costs else max(one for one in costs if one is not None),
            tuple(sorted(criteria)),
            _clip(methods),
            table,
        )


def _name(text: object, most: int = LONGEST_NAME) -> str:
    """A name as the approver sees it; ApprovalError for one that could be read as words of this program."""
    if not isinstance(text, str) or len(text) > most or not text.isprintable():
        raise ApprovalError(f"names are printable texts of at most {most} characters")
    return text


def _clip(methods: Sequence[Mapping[str, Any]]) -> float | None:
    """The largest norm of an update in masked sums; None where there are none."""
    if not any(MASKED in method for method in methods):
        return None
    if len(methods) > 1:  # a round is summed once: two sums of a round would tell differences
        raise ApprovalError(f"{MASKED}: an experiment with masked sums has one method")
    (method,) = methods
    if others := method.keys() - MASKED_KEYS:
        raise ApprovalError(f"{min(others)}: not with {MASKED}, whose server sees sums alone")
    clip = float(method[MASKED].get("clip", 10.0))
    if not 0 < clip < math.inf:
        raise ApprovalError(f"{MASKED}.clip must be a positive number")
    return clip


def _cost(table: Mapping[str, Any], method: Mapping[str, Any]) -> float | None:
    """The μ² that one training by a method spends of a training row; None: no noise hides it."""
    training = {**table.get("training", {}), **method.get("training", {})}
    privacy = method.get("privacy", {})
    costs = []
    if "sample_noise" in training:
        costs.append(training.get("epochs", 1) / training["sample_noise"] ** 2)
    if privacy.get("local") and "noise_multiplier" in privacy:
        costs.append(1 / privacy["noise_multiplier"] ** 2)
    return min(costs, default=None)


def propose(
    experiment: Experiment,
    *,
    site: str,
    lock: bytes,
    reason: str,
    without_noise: str | None,
    evaluations: int,
    cell: int = USUAL_CELL,
) -> Approval:
    """The approval to sign; ApprovalError for an experiment without noise and without a reason for it."""
    if site not in experiment.members:
        raise ApprovalError(f"{site} is not a member: flower.clients = {list(experiment.members)}")
    if experiment.mu is None and not without_noise:
        raise ApprovalError(
            "this experiment has no noise: the coordinator can compute patients' rows from the updates. Set "
            "training.sample_clip and training.sample_noise, or write why you accept this: --without-noise REASON"
        )
    if not reason:
        raise ApprovalError("write why you approve: --reason REASON")
    if not 0 <= evaluations <= MOST_RESULTS:
        raise ApprovalError(f"--evaluations must be 0 to {MOST_RESULTS}")
    return Approval(
        id=secrets.token_hex(8),
        site=site,
        experiment=experiment.digest,
        lock=digest(lock),
        cell=cell,
        trainings=experiment.trainings,
        trainings_a_round=experiment.trainings_a_round,
        evaluations=0 if experiment.masked else evaluations,
        mu=experiment.mu,
        without_noise=without_noise if experiment.mu is None else None,
        masked=experiment.masked,
        reason=reason,
    )


def in_words(
    approval: Approval, experiment: Experiment, earlier: Mapping[str, Any] | None
) -> Iterator[str]:
    """The most that leaves the site, line by line.

    Args:
        approval: to be signed.
        experiment: what it approves.
        earlier: `Ledger.released`, of the runs so far; None: unknown.
    """
    methods = ", ".join(map(repr, experiment.methods))
    # In quotes: the coordinator chose these words.
    yield f"Experiment {experiment.name!r}: {methods}; {experiment.rounds} rounds."
    yield f"Members: {', '.join(map(repr, experiment.members))}."
    yield f"Your site trains at most {approval.trainings} models on its patients' rows."
    if approval.masked:
        count = len(experiment.members)
        yield (
            f"They leave the site only inside a sum over all {count} members. If the coordinator and "
            f"{count - 1} members collude, they read yours."
        )
    if approval.mu is None:
        yield "They have NO NOISE: who receives them can compute patients' rows from them."
        yield f"Your reason: {approval.without_noise}"
    else:
        yield from _noise("The trainings of this experiment", approval.mu)
    facts = ", ".join(map(repr, experiment.criteria))
    precision = (
        "exact, with loss and time"
        if approval.cell == 1
        else "whole numbers exact, others with two digits"
    )
    yield f"With each training leaves, outside of this promise ({precision}): {facts}."
    if approval.evaluations:
        yield f"Your site tests at most {approval.evaluations} models on its patients' rows."
        if approval.cell > 1:
            yield from _noise("The results of these tests", RESULTS_MU)
            yield f"Counts are multiples of {approval.cell}."
        else:
            yield "The results are EXACT: tests of chosen models can tell patients' rows."
    else:
        yield "Your site tests no model."
    yield from _over_all_runs(approval, earlier)


def _over_all_runs(approval: Approval, earlier: Mapping[str, Any] | None) -> Iterator[str]:
    if earlier is None:
        yield "Earlier runs: UNKNOWN. Pass the node's summary: --summary FILE."
        return
    nothing = {"requests": 0, "without_noise": 0, "mu": 0.0}
    trained, tested = earlier.get("train", nothing), earlier.get("evaluate", nothing)
    yield f"Earlier runs: {trained['requests']} models trained, {tested['requests']} tested."
    bare = trained["without_noise"] + tested["without_noise"]
    if bare:
        yield f"Of them, {bare} had NO NOISE."
    total = most_mu(approval, earlier)
    if total is not None and not bare:
        yield from _noise("All that left so far and all of this together", total)


def most_mu(approval: Approval, earlier: Mapping[str, Any]) -> float | None:
    """The μ of all earlier answers and of everything that an approval covers; None: some of it has no noise.

    Args:
        approval: the new one.
        earlier: `Ledger.released` of the other approvals.
    """
    if approval.mu is None or approval.mu_of_tests is None:
        return None
    spent = [kind["mu"] for kind in earlier.values()]
    return math.hypot(approval.mu, approval.mu_of_tests, *spent)


def _noise(subject: str, mu: float) -> Iterator[str]:
    guess = telling_apart(mu)
    yield (
        f"{subject} have noise (μ = {mu:.3g}): who sees everything and knows all other patients, and must say "
        f"which of two possible rows a patient has, is right in at most {guess:.0%} of the cases (a guess: 50%)."
    )


def telling_apart(mu: float) -> float:
    """The largest probability of telling two possible rows apart, under μ²/2 of concentrated privacy.

    The KL divergence is at most κ = μ²/2. So the total variation is at most √(κ/2) (Pinsker) and at most √(1 − e^−κ)
    (Bretagnolle and Huber), and the probability at most half of 1 + total variation.

    Example:
        >>> telling_apart(1.0)
        0.75
    """
    divergence = mu**2 / 2
    variation = min(math.sqrt(divergence / 2), math.sqrt(1 - math.exp(-divergence)))
    return (1 + variation) / 2


def read_summary(path: Path | None) -> dict[str, Any] | None:
    """What the node wrote of its ledger's releases; None without a file."""
    if path is None:
        return None
    return dict(json.loads(path.read_text(encoding="utf-8"))["released"])
