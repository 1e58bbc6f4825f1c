"""Keys of a config that do not go together, whatever the data are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch

from ...attacks import ATTACKS
from ...core.aggregation.server_step import SERVER_STEPS
from ...core.method import Method
from ...core.objective.adapt_loss import LOSS_ADAPTERS, AdapterDeclaration
from ...core.training import OPTIMIZERS, declared_of, is_elementwise, is_plain, part_of
from ...core.types import LocalTraining
from ...core.weights.priority import MAX_CRITERIA
from ...core.weights.weighting import check_normaliser
from ...registry import suggest
from ..config.messages import Issue
from ..config.methods import MethodSettings
from ..config.parts import make
from ..config.schema import Experiment
from ..config.settings import HostileClients, Training
from .privacy import deployed_privacy_issues, privacy_issues
from .secure import secure_issues

TRIED_ROUNDS = 10_000  # of a schedule
LOCAL = 'use engine = "local"'
TAKES_TIME = 'needs clients that take time: add [devices], or engine = "flower" (docs/devices.md)'
NO_SAMPLES = "needs samples to weigh by: set server_set.fraction > 0 and report_fraction < 1"
TEST_SETS = "test_fraction must not be 0"


def config_issues(experiment: Experiment) -> list[Issue]:
    """Combinations of keys that cannot work with any data."""
    return [issue for check in _checks() for issue in check(experiment)]


def known_issues(experiment: Experiment) -> list[Issue]:
    """The same, of an experiment that lacks the keys that are wrong: a check that reads one of them is left out."""
    issues: list[Issue] = []
    for check in _checks():
        with suppress(AttributeError):
            issues.extend(check(experiment))
    return issues


def _checks() -> tuple[Callable[[Experiment], Iterator[Issue]], ...]:
    return (
        _repeated_methods,
        _repeated_seeds,
        _cohort_issues,
        _member_issues,
        _unmeasured,
        _sampling_issues,
        _counterfactual_issues,
        _hostile_issues,
        _without_loss,
        _device_issues,
        _issues_of_methods,
    )


def _issues_of_methods(experiment: Experiment) -> Iterator[Issue]:
    for index, settings in enumerate(experiment.methods):
        for check in (_method_issues, _server_set_issues, _tuning_issues):
            for key, message in check(settings, experiment):
                yield f"methods[{index}].{key}".rstrip("."), message


def _device_issues(experiment: Experiment) -> Iterator[Issue]:
    """What simulated devices do not go with."""
    if experiment.devices and experiment.federation.sampling == "poisson":
        hint = '"poisson" may ask no client, and such a round has no duration: leave out [devices]'
        yield "federation.sampling", hint
    if experiment.devices and experiment.engine == "flower":
        hint = f"are simulated: {LOCAL}. On Flower, response times are measured"
        yield "devices", hint


def _without_loss(experiment: Experiment) -> Iterator[Issue]:
    """The keys that read a held-out loss, where no samples are held out."""
    judged = experiment.server_holds_samples or experiment.clients_test
    if judged or experiment.server_set.source == "contributed":
        return
    hint = "needs held-out samples: set server_set.fraction > 0"
    if experiment.stop_early is not None:
        yield "stop_early", hint
    if experiment.keep == "best":
        yield "keep", hint


def _tuning_issues(settings: MethodSettings, experiment: Experiment) -> Iterator[Issue]:
    """A result on the seeds that values were chosen by would be too good."""
    shared = sorted({*settings.tuned.seeds} & {*experiment.seeds}) if settings.tuned else []
    if shared:
        listed = ", ".join(map(str, shared))
        yield "tuned.seeds", f"{listed}: {settings.name} was tuned on these; report other seeds"


def _repeated_methods(experiment: Experiment) -> Iterator[Issue]:
    for name in _twice([method.name for method in experiment.methods]):
        yield "methods", f"two methods are called {name!r}; give one of them another name"


def _repeated_seeds(experiment: Experiment) -> Iterator[Issue]:
    for seed in _twice(experiment.seeds):
        yield "seeds", f"{seed} is listed twice; it would repeat the same run"


def _cohort_issues(experiment: Experiment) -> Iterator[Issue]:
    federation = experiment.federation
    if federation.fraction is not None and federation.clients_per_round is not None:
        yield "federation", "give either fraction or clients_per_round"


def _member_issues(experiment: Experiment) -> Iterator[Issue]:
    """Members of a deployment that are listed twice, are unknown or have all left."""
    flower = experiment.flower
    for name in _twice(flower.clients):
        yield "flower.clients", f"{name!r} is listed twice; names must be unique"
    unknown = [name for name in flower.left if name not in flower.clients]
    if unknown:
        hint = suggest(unknown[0], flower.clients)
        yield "flower.left", f"no client is called {unknown[0]!r}{hint}"
    elif flower.clients and len(flower.away) == len(flower.clients):
        yield "flower.left", "all of flower.clients have left: no client can be asked"


def _twice(values: Sequence[Any]) -> list[Any]:
    return sorted(value for value, count in Counter(values).items() if count > 1)


def _unmeasured(experiment: Experiment) -> Iterator[Issue]:
    """Runs without anything to measure a model on."""
    server = experiment.server_set
    every = experiment.evaluation.clients_every
    if not experiment.server_holds_samples and not every:
        yield "evaluation.clients_every", "0 without held-out samples: nothing would be measured"
    if experiment.clients_test:
        return
    if every:
        hint = "must be 0 where test_fraction is 0: clients have no test samples"
        yield "evaluation.clients_every", hint
    if server.source == "held_out" and not server.shared_set and not server.report_fraction:
        hint = "0 with test_fraction = 0: nothing would be measured"
        yield "server_set.report_fraction", hint
    if server.source == "clients":
        hint = f'"clients" evaluate models on their test sets: {TEST_SETS}'
        yield "server_set.source", hint


def _sampling_issues(experiment: Experiment) -> Iterator[Issue]:
    """Samples of clients that nothing would be evaluated on, or that a search cannot use."""
    if experiment.evaluation.clients_sample is None:
        return
    key = "evaluation.clients_sample"
    if not experiment.evaluation.clients_every:
        yield key, "has no effect with clients_every = 0: leave out one of them"
    for settings in experiment.methods:
        if settings.adjust:
            hint = "compares the results of a round with those of the last, on the same clients"
            yield key, f"the search of {settings.name} (adjust) {hint}. Leave out one of them"


def _counterfactual_issues(experiment: Experiment) -> Iterator[Issue]:
    """Methods whose single updates must not show in the results of other weights."""
    evaluation = experiment.evaluation
    switched_on = [key for key in ("counterfactuals", "shapley") if getattr(evaluation, key)]
    if not switched_on:
        return
    key = f"evaluation.{switched_on[0]}"
    for settings in experiment.methods:
        if settings.secure_aggregation:
            hint = "n other weighted sums of the same n updates reveal every update"
            yield key, f"{settings.name} uses secure aggregation: {hint}. Set it to false"
        if settings.privacy:
            hint = "results without a client are a release that gets no noise"
            yield key, f"{settings.name} has differential privacy: {hint}. Set it to false"
    server = experiment.server_set
    reports = server.shared_set or server.report_fraction > 0 or server.source != "held_out"
    if evaluation.shapley and not (experiment.server_holds_samples and reports):
        hint = "needs reporting samples of the server: set server_set.fraction and report_fraction"
        yield "evaluation.shapley", hint


def _hostile_issues(experiment: Experiment) -> Iterator[Issue]:
    """Groups of hostile clients without members, and attacks that Flower cannot simulate."""
    for index, group in enumerate(experiment.hostile):
        if (group.clients is None) == (group.share is None):
            yield f"hostile[{index}]", "give either clients or share"
        yield from _change_issues(f"hostile[{index}]", group, experiment.engine)
        if experiment.engine != "flower":
            continue
        for part in group.attack:
            if ATTACKS.needs(part) & {"whole_cohort", "last_model", "judgements"}:
                hint = f"needs more than one node has: {LOCAL}"
                yield f"hostile[{index}].attack", f"{part.name} {hint}"


def _change_issues(key: str, group: HostileClients, engine: str) -> Iterator[Issue]:
    """What does not go with honest clients whose data change."""
    changing = [part.name for part in group.attack if ATTACKS.get(part.name).honest]
    if not changing:
        return
    name = changing[0]
    if len(group.attack) > 1:
        yield f"{key}.attack", f"{name} changes honest clients: use it without other attacks"
    if group.from_round < 2:
        yield f"{key}.from_round = {group.from_round}", f"must be at least 2 with {name}"
    if group.probability < 1 or group.ignore_global or group.collude:
        options = "probability, ignore_global and collude"
        yield key, f"{options} do not go with {name}, which changes honest clients once"
    if engine == "flower":
        yield f"{key}.attack", f"{name} needs more than one node has: {LOCAL}"


def _method_issues(settings: MethodSettings, experiment: Experiment) -> Iterator[Issue]:
    """Parts of one method that do not go together."""
    names = [part.called for part in settings.criteria]
    for name in _twice(names):
        yield "criteria", f"{name} is listed twice; give one of them another name with `as`"
    try:
        make(SERVER_STEPS, settings.server_step)
    except ValueError as error:
        yield "server_step", str(error)
        return
    try:
        method = settings.build(experiment.training)
        method.score.check(names)
    except ValueError as error:
        yield "score", str(error)
        return
    yield from _training_issues(method, experiment)
    yield from _adapter_issues(settings, experiment.training)
    yield from _server_training_issues(settings)
    yield from _part_issues(settings, method)
    if method.adjust:
        yield from _adjust_issues(settings, method, experiment)
    if method.sampling:
        yield from _by_score_issues(method, experiment)
    yield from _clock_issues(settings, method, experiment)
    yield from privacy_issues(settings, method, experiment)
    yield from secure_issues(settings, method, experiment)
    if settings.control:
        yield from _control_issues(settings, experiment)


def _training_issues(method: Method, experiment: Experiment) -> Iterator[Issue]:
    training = method.training
    if training.momentum and not declared_of(training.optimizer).takes_momentum:
        own = f"{part_of(training.optimizer).name} has its own momentum"
        yield "training.momentum", f'needs optimizer = "sgd"; {own}'
    yield from _optimizer_issues(training)
    yield from _loss_issues(method, experiment)
    yield from _schedule_issues(method, experiment.rounds)
    if (training.sample_clip is None) != (training.sample_noise is None):
        yield "training.sample_clip", "and training.sample_noise go together: give both or none"
    if training.sample_clip and training.control_variates:
        yield "training.control_variates", "do not go with sample_clip: leave them out"
    if not training.control_variates:
        return
    key = "training.control_variates"
    if not is_plain(training.optimizer) or training.momentum or training.proximal:
        yield key, "need plain sgd: no adam, no momentum, no proximal term"
    if experiment.engine == "flower":
        yield key, f"are kept by the clients, and clients on Flower keep no state: {LOCAL}"
    if method.pace.keeps_late:
        yield key, "are renewed when a client trains: late updates cannot be kept"


def _optimizer_issues(training: LocalTraining) -> Iterator[Issue]:
    """Options that an optimizer does not take. With the defaults there are none to try."""
    part = part_of(training.optimizer)
    if not part.options and is_elementwise(part):
        return
    parameter = torch.nn.Parameter(torch.zeros(1))
    try:
        OPTIMIZERS.get(part.name)([parameter], training.rate, training, **part.options)
    except (ValueError, TypeError) as error:
        yield "training.optimizer", f"{part.name}: {error}"


def _loss_issues(method: Method, experiment: Experiment) -> Iterator[Issue]:
    """A loss that the method cannot adapt, or that needs what the server does not know."""
    if method.counts_labels:
        key = "training.loss.class_weights"
        hint = '"balanced" needs the label counts of all clients'
        if experiment.engine == "flower" or experiment.flower.clients:
            yield key, f"{hint}, which stay on their nodes: give a list of weights"
        if method.privacy or method.secure or method.training.sample_clip:
            yield key, f"{hint}, which no noise or mask protects: give a list of weights"


def _adapter_issues(settings: MethodSettings, training: Training) -> Iterator[Issue]:
    """A loss that `adapt_loss` cannot change."""
    loss = training.changed(settings.training)["loss"]
    if settings.adapt_loss is None or loss is None:
        return
    declared = LOSS_ADAPTERS.declared(settings.adapt_loss.name)
    if not isinstance(declared, AdapterDeclaration):
        return
    adapts = f"adapt_loss = {settings.adapt_loss.name!r}"
    if declared.takes and loss.name not in declared.takes:
        taken = " or ".join(map(repr, declared.takes))
        yield "training.loss", f"{adapts} changes {taken}, not {loss.name!r}: remove one of them"
    elif declared.sets_class_weights and loss.options.get("class_weights"):
        yield "training.loss.class_weights", f"{adapts} replaces them: remove one of them"


def _server_training_issues(settings: MethodSettings) -> Iterator[Issue]:
    tune = settings.fine_tune
    for key in ("loss", "schedule"):
        if tune is not None and getattr(tune, key) is not None:
            hint = "the server trains with that of the clients: set it in [training]"
            yield f"fine_tune.{key}", hint


def _schedule_issues(method: Method, rounds: int) -> Iterator[Issue]:
    """Factors that are no numbers from 0 on; a user's own function may return or raise anything."""
    if method.schedule is None:
        return
    for round_num in range(1, min(rounds, TRIED_ROUNDS) + 1):
        try:
            factor = float(method.schedule(round_num))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            yield "training.schedule", f"failed for round {round_num}: {reason}"
            return
        if not 0 <= factor < math.inf:
            yield "training.schedule", f"is {factor:g} in round {round_num}: must be 0 or more"
            return


def _part_issues(settings: MethodSettings, method: Method) -> Iterator[Issue]:
    """A normaliser that does not fit the score, and parts that read criteria the method has not."""
    score = method.score
    normalise = settings.normalise.name if settings.normalise else score.default_normaliser
    try:
        check_normaliser(score, normalise)
    except ValueError as error:
        yield "normalise", str(error)
    measured = {part.name for part in settings.criteria}
    for key, registry, part in settings.parts():
        for name in sorted(registry.declared(part.name).criteria - measured):
            yield key, f"{part.name} reads the criterion {name!r}: add it to the criteria"


def _adjust_issues(
    settings: MethodSettings, method: Method, experiment: Experiment
) -> Iterator[Issue]:
    if method.first_priority is None:
        yield "adjust", 'adjusts an order of priority: use score = "prioritized"'
    count = len(method.names)
    if not 2 <= count <= MAX_CRITERIA:
        yield "adjust", f"needs 2 to {MAX_CRITERIA} criteria to put in order, got {count}"
    if method.fine_tune:
        hint = "does not go with adjust, which compares models before the server trains them"
        yield "fine_tune", hint
    if "server_samples" in SERVER_STEPS.needs(settings.server_step):
        yield (
            "server_step",
            f"{settings.server_step.name} does not go with adjust: both choose the model",
        )
    if not experiment.clients_test:
        yield "adjust", f"evaluates on the clients' test sets: {TEST_SETS}"


def _by_score_issues(method: Method, experiment: Experiment) -> Iterator[Issue]:
    """What a method that draws its clients cannot go with."""
    assert method.sampling is not None
    if experiment.federation.sampling == "poisson":
        yield "sampling", 'draws cohorts of a fixed size: set federation.sampling = "fixed"'
    if method.adjust and method.sampling.averages_equally:
        hint = "has no effect on equal weights: remove it, or set sampling.average"
        yield "adjust", f'{hint} = "score"'


def _clock_issues(
    settings: MethodSettings, method: Method, experiment: Experiment
) -> Iterator[Issue]:
    """Keys about time that cannot work, or that need clients that take time."""
    pace = method.pace
    if pace.late == "keep" and not (pace.extra or pace.deadline or pace.buffer):
        yield "pace.late", '"keep" needs a deadline or extra: otherwise no update is late'
    if experiment.devices or experiment.engine == "flower":
        return
    if settings.pace:
        yield "pace", TAKES_TIME
    for key, registry, part in settings.parts():
        if "clock" in registry.needs(part):
            yield key, f"{part.name} {TAKES_TIME}"


def _control_issues(settings: MethodSettings, experiment: Experiment) -> Iterator[Issue]:
    idle = [key for key in settings.unlike_fedavg() if key not in ("training", "control")]
    if idle:
        yield "control", f"is not federated learning: {', '.join(idle)} would have no effect"
    if experiment.engine == "flower":
        yield "control", f"needs all samples in this process: {LOCAL}"


def _server_set_issues(settings: MethodSettings, experiment: Experiment) -> Iterator[Issue]:
    """Methods that need samples of the server where there are none."""
    server = experiment.server_set
    if server.source == "clients":
        for key in _uses_server_samples(settings):
            hint = "; use RecommendedJudged, which needs none" if key == "fine_tune" else ""
            yield key, f'needs samples of the server: server_set.source = "clients" has none{hint}'
        return
    if server.source == "contributed":
        return
    has_part = server.shared_set or server.report_fraction < 1
    if needs_server_set(settings) and not (experiment.server_holds_samples and has_part):
        yield "", NO_SAMPLES


def needs_server_set(settings: MethodSettings) -> bool:
    """Whether a method judges models on held-out samples, or trains on them."""
    judged = any("server_set" in registry.needs(part) for _, registry, part in settings.parts())
    return judged or bool(_uses_server_samples(settings))


def _uses_server_samples(settings: MethodSettings) -> list[str]:
    """The keys that need samples that the server itself holds."""
    parts = settings.parts()
    keys = [key for key, registry, part in parts if "server_samples" in registry.needs(part)]
    if settings.fine_tune is not None:
        keys.append("fine_tune")
    if settings.brake is not None:
        keys.append("brake")
    if settings.control == "server_only":
        keys.append("control")
    return keys


def deployment_issues(experiment: Experiment) -> list[Issue]:
    """What a deployment needs beyond other runs: its server has no data of the clients."""
    issues: list[Issue] = [*deployed_privacy_issues(experiment)]
    flower = experiment.flower
    needed = {"clients": flower.clients, "input_shape": flower.input_shape}
    for key, value in needed.items():
        if not value:
            hint = "is needed in a deployment, where the server has no data of the clients"
            issues.append((f"flower.{key}", hint))
    if experiment.server_set.source == "contributed":
        hint = "no sample leaves a client of a deployment: "
        hint += 'use "held_out" with server-data, or "clients"'
        issues.append(("server_set.source", hint))
    for index, method in enumerate(experiment.methods):
        issues += _simulation_only(f"methods[{index}]", method, experiment)
    return issues


def _simulation_only(
    method_key: str, settings: MethodSettings, experiment: Experiment
) -> Iterator[Issue]:
    for key, registry, part in settings.parts():
        if "simulation" in registry.needs(part):
            hint = "is for simulations: in a deployment it is unknown which clients are honest"
            yield f"{method_key}.{key}", f"{part.name} {hint}"
    method = settings.build(experiment.training)
    if method.control or method.training.control_variates:
        hint = "is for simulations: in a deployment, samples and state stay with the clients"
        yield method_key, f"{method.name} {hint}"
