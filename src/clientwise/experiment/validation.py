"""Everything about an experiment that no single key can tell, in one place: what does not go together, what the data
do not allow, what shows when a client and a model are tried. All of it is found before anything runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..attacks import ATTACKS
from ..core.criteria import Arrivals, ClientFacts, Criterion
from ..core.method import Method
from ..core.metrics import METRICS, measured
from ..core.priority import MAX_CRITERIA
from ..core.problem import Problem
from ..core.rules import Rule, Ruled
from ..core.types import Evaluation
from ..core.weighting import check_normaliser
from ..data.federated import FederatedData, Samples, Shares
from ..engine.device import pick_device, refuse_impossible
from ..engine.evaluation import BATCH
from ..engine.executor import DeviceExecutor
from ..engine.local import LocalEngine
from ..errors import ConfigError
from ..limits import gigabytes, memory
from ..models.size import check_batches
from ..registry import Part, Registry, suggest
from .build import build_data, build_module, build_plan, count_outputs, divide_samples, load_samples, names_of
from .schema import Experiment, MethodSettings, make

Issue = tuple[str, str]  # the key, and what is wrong with it
NO_SAMPLES = "to weigh by: set server_set.fraction above 0 and report_fraction below 1"


# What the config alone can tell ----------------------------------------------------------------------------------


def config_issues(experiment: Experiment) -> list[Issue]:
    """Combinations of keys that cannot work, whatever the data."""
    issues = [*_repeated(experiment), *_measures_nothing(experiment), *_hostile_issues(experiment)]
    if experiment.devices and experiment.engine == "flower":
        issues.append(("devices", 'are simulated: use engine = "local"; on Flower clients take the time they take'))
    for index, settings in enumerate(experiment.methods):
        found = [*_method_issues(settings, experiment), *_server_set_issues(settings, experiment)]
        issues += [(f"methods[{index}].{key}".rstrip("."), message) for key, message in found]
    return issues


def _repeated(experiment: Experiment) -> Iterator[Issue]:
    """Names, seeds and numbers that are given twice."""
    for name in _twice([method.name for method in experiment.methods]):
        yield "methods", f"two methods are called {name!r}; tables could not tell them apart"
    if len(set(experiment.seeds)) < len(experiment.seeds):
        yield "seeds", "a seed is listed twice; it would repeat the same run"
    if len(set(experiment.flower.clients)) < len(experiment.flower.clients):
        yield "flower.clients", "a name is listed twice; it could not be told who is meant"
    flower = experiment.flower
    if unknown := [name for name in flower.left if name not in flower.clients]:
        yield "flower.left", f"no client is called {unknown[0]!r}{suggest(unknown[0], flower.clients)}"
    elif flower.clients and len(flower.away) == len(flower.clients):
        yield "flower.left", "all of flower.clients have left: nobody could be asked"
    if experiment.federation.fraction is not None and experiment.federation.clients_per_round is not None:
        yield "federation", "give either fraction or clients_per_round"


def _twice(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _measures_nothing(experiment: Experiment) -> Iterator[Issue]:
    """Runs of which nobody would learn how good they are."""
    server = experiment.server_set
    if not experiment.server_holds_samples and not experiment.evaluation.clients_every:
        yield "evaluation.clients_every", "0 with no held-out samples: nothing would be measured"
    if experiment.clients_test:
        return
    if experiment.evaluation.clients_every:
        yield "evaluation.clients_every", "must be 0 where test_fraction is 0: clients have nothing to test on"
    if server.source == "held_out" and not server.shared_set and not server.report_fraction:
        yield "server_set.report_fraction", "0 with test_fraction = 0: nothing would be measured"
    if server.source == "clients":
        yield "server_set.source", '"clients" evaluate models on their test sets: test_fraction must not be 0'


def _hostile_issues(experiment: Experiment) -> Iterator[Issue]:
    """Groups of hostile clients that are nobody, or cannot do what they are to do."""
    for index, group in enumerate(experiment.hostile):
        if (group.clients is None) == (group.share is None):
            yield f"hostile[{index}]", "give either clients or share"
        for part in group.attack:
            beyond = ATTACKS.needs(part) & {"whole_cohort", "last_model", "judgements"}
            if experiment.engine == "flower" and beyond:
                hint = 'must know what one node alone cannot: use engine = "local"'
                yield f"hostile[{index}].attack", f"{part.name} {hint}"


def _method_issues(settings: MethodSettings, experiment: Experiment) -> Iterator[Issue]:
    """Parts of one method that do not go together."""
    names = [part.called for part in settings.criteria]
    for name in _twice(names):
        yield "criteria", f"{name} is listed twice; give one of them another name with `as`"
    try:
        method = settings.build(experiment.training)
        method.score.check(names)
    except ValueError as error:
        yield "score", str(error)
        return
    if method.training.optimizer == "adam" and method.training.momentum:
        yield "training.momentum", 'goes with optimizer = "sgd"; adam has its own'
    if method.training.control_variates:
        yield from _variate_issues(method, experiment)
    try:
        check_normaliser(
            method.score, settings.normalise.name if settings.normalise else method.score.default_normaliser
        )
    except ValueError as error:
        yield "normalise", str(error)
    for key, registry, part in settings.parts():
        for name in sorted(registry.declared(part.name).criteria - {*names}):
            yield key, f"{part.name} reads the criterion {name!r}: add it to the criteria"
    if method.adjust:
        yield from _adjust_issues(method, experiment)
    yield from _clock_issues(settings, method, experiment)
    if settings.control:
        if idle := [key for key in settings.unlike_fedavg() if key not in ("training", "control")]:
            yield "control", f"is no federated learning: {', '.join(idle)} would do nothing"
        if experiment.engine == "flower":
            yield "control", 'needs all samples in this process: use engine = "local"'


def _clock_issues(settings: MethodSettings, method: Method, experiment: Experiment) -> Iterator[Issue]:
    """What a method wants of time that cannot be, or where there is none."""
    pace = method.pace
    if pace.late == "keep" and not (pace.extra or pace.deadline or pace.buffer):
        yield "pace.late", "nobody is late where all are waited for: give a deadline or extra"
    if method.training.control_variates and pace.keeps_late:
        yield "training.control_variates", "are renewed when a client trains: late updates cannot be kept"
    if experiment.devices or experiment.engine == "flower":
        return
    hint = 'needs clients that take time: add [devices], or engine = "flower" (docs/devices.md)'
    if settings.pace:
        yield "pace", hint
    for key, registry, part in settings.parts():
        if "clock" in registry.needs(part):
            yield key, f"{part.name} {hint}"


def _variate_issues(method: Method, experiment: Experiment) -> Iterator[Issue]:
    training = method.training
    if training.optimizer != "sgd" or training.momentum or training.proximal:
        yield "training.control_variates", "are mean gradients: they go with plain sgd, no momentum, no proximal term"
    if experiment.engine == "flower":
        yield "training.control_variates", 'are kept by the clients, who keep nothing on Flower: use engine = "local"'


def _adjust_issues(method: Method, experiment: Experiment) -> Iterator[Issue]:
    if method.first_priority is None:
        yield "adjust", 'adjusts an order of priority: use score = "prioritized"'
    if not 2 <= len(method.names) <= MAX_CRITERIA:
        yield "adjust", f"needs 2 to {MAX_CRITERIA} criteria to put in order, got {len(method.names)}"
    if method.fine_tune:
        yield "fine_tune", "does not go with adjust, which compares models before the server trains them"
    if not experiment.clients_test:
        yield "adjust", "evaluates on the clients' test sets: test_fraction must not be 0"


def _server_set_issues(settings: MethodSettings, experiment: Experiment) -> Iterator[Issue]:
    server, holds = experiment.server_set, experiment.server_holds_samples
    weighs = server.source != "held_out" or (holds and (server.shared_set or server.report_fraction < 1))
    if server.source == "clients":
        for key in _uses_server_samples(settings):
            hint = "; RecommendedJudged does without" if key == "fine_tune" else ""
            yield key, f'needs samples of the server: server_set.source = "clients" has none{hint}'
    if _needs_server_set(settings) and not weighs:
        yield "", f"needs samples {NO_SAMPLES}"


def _needs_server_set(settings: MethodSettings) -> bool:
    judged = any("server_set" in registry.needs(part) for _, registry, part in settings.parts())
    return judged or bool(_uses_server_samples(settings))


def _uses_server_samples(settings: MethodSettings) -> list[str]:
    """The keys that have the server use samples of its own."""
    keys = [key for key, registry, part in settings.parts() if "server_samples" in registry.needs(part)]
    others = {
        "fine_tune": settings.fine_tune is not None,
        "brake": settings.brake is not None,
        "control": settings.control == "server_only",
    }
    return [*keys, *(key for key, trains in others.items() if trains)]


def deployment_issues(experiment: Experiment) -> list[Issue]:
    """What a deployment needs beyond other runs: its server sees no data of the clients."""
    settings = experiment.flower
    missing = [key for key in ("clients", "input_shape") if not getattr(settings, key)]
    issues = [(f"flower.{key}", "is needed in a deployment, where the server sees no data") for key in missing]
    if repeated := sorted({name for name in settings.clients if settings.clients.count(name) > 1}):
        issues.append(("flower.clients", f"names a client twice: {', '.join(repeated)}"))
    if experiment.server_set.source == "contributed":
        hint = 'no sample leaves a client of a deployment: use "held_out" with server-data, or "clients"'
        issues.append(("server_set.source", hint))
    for index, method in enumerate(experiment.methods):
        for key, registry, part in method.parts():
            if "simulation" in registry.needs(part):
                issues.append(
                    (f"methods[{index}].{key}", f"{part.name} is for simulations: nobody knows who is honest")
                )
    for index, built in enumerate(experiment.build_methods()):
        if built.control or built.training.control_variates:
            hint = "is for simulations: a deployment's clients keep their samples, and nothing between rounds"
            issues.append((f"methods[{index}]", f"{built.name} {hint}"))
    return issues


# What only the data can tell -------------------------------------------------------------------------------------


def validate(experiment: Experiment, own_data: FederatedData | None) -> Samples:
    """Everything that the device, the data, one client and the model can tell; ConfigError with all that is wrong."""
    refuse_impossible(experiment.mode, experiment.precision, pick_device(experiment.device))
    samples = own_data.samples if own_data else load_samples(experiment)
    seed = experiment.seeds[0]
    divided = own_data or divide_samples(experiment, samples, seed)
    issues = [
        *_problem_issues(experiment, samples.problem),
        *_client_issues(experiment, len(divided.train), names_of(divided, samples)),
    ]
    issues = issues or [*_attack_issues(experiment, samples)]
    if not issues:
        data, hostile = build_data(experiment, samples, seed, divided)
        module = build_module(experiment, data.samples, seed, to_try=True)
        issues = [*_size_issues(experiment, module, data)]
    if not issues:
        # Two samples show whether the model fits, also where the clients test nothing.
        data = replace(data, test=Shares.of([(data.train.indices[:2], data.train.targets[:2])]))
        executor = DeviceExecutor(data.samples, module, torch.device("cpu"), mode="loop", precision="float32")
        engine = LocalEngine(data, module, seed=seed, executor=executor, hostile=hostile)
        issues = [*_engine_issues(experiment, engine)]
    if issues:
        raise ConfigError(experiment.source, issues)
    return samples


def _problem_issues(experiment: Experiment, problem: Problem) -> Iterator[Issue]:
    """Parts that do not fit what is to be learned."""
    targets = {"target": [experiment.evaluation.target or 0], "client_targets": experiment.evaluation.client_targets}
    for key, values in targets.items():
        if problem.higher_is_better and max(values, default=0) > 1:
            yield f"evaluation.{key}", f"{problem.metric} is at most 1, got {max(values)}"
    if unfit := [*_unfit("evaluation.metric", METRICS, Part(problem.metric, {}), problem)]:
        yield from unfit
    elif not measured(problem.metric).is_share:
        yield (
            "evaluation.metric",
            f"{problem.metric} is no share, which is what tables show; the usual one is used without",
        )
    for index, method in enumerate(experiment.methods):
        for key, registry, part in method.parts():
            yield from _unfit(f"methods[{index}].{key}", registry, part, problem)
    for index, group in enumerate(experiment.hostile):
        for part in group.attack:
            yield from _unfit(f"hostile[{index}].attack", ATTACKS, part, problem)


def _attack_issues(experiment: Experiment, samples: Samples) -> Iterator[Issue]:
    """Attacks that these samples do not allow."""
    for index, group in enumerate(experiment.hostile):
        for part in group.attack:
            try:
                make(ATTACKS, part).check(samples)
            except ValueError as error:
                yield f"hostile[{index}].attack", f"{part.name}: {error}"


def _unfit(key: str, registry: Registry[Any], part: Part, problem: Problem) -> Iterator[Issue]:
    """What a part, or one that its options name, needs of a problem and this one has not."""
    for option in registry.options(part.name):
        named, value = option.names_part_of, part.options.get(option.name)
        if named is not None and value is not None:
            yield from _unfit(f"{key}.{option.name}", named, Part(value, {}), problem)
    if lacking := problem.lacks(registry.declared(part.name).needs):
        fitting = [name for name in registry if problem.predicts in registry.declared(name).needs]
        instead = f"; use {' or '.join(map(repr, fitting))}" if fitting else ""
        yield key, f"{part.name} needs {lacking} to predict, and this is {problem.kind}{instead}"


def _client_issues(experiment: Experiment, num_clients: int, names: Sequence[str]) -> Iterator[Issue]:
    """What does not fit the number of clients."""
    wanted = experiment.federation.clients_per_round
    if wanted is not None and wanted > num_clients:
        yield "federation.clients_per_round", f"{wanted} in a round, but there are only {num_clients} clients"
    size = build_plan(experiment, num_clients, experiment.seeds[0]).cohort_size
    for index, method in enumerate(experiment.build_methods()):
        try:
            if method.bounds:
                method.bounds.check(size)
        except ValueError as error:
            yield f"methods[{index}].bounds", f"{error}: {size} take part in a round"
        at_work = method.pace.asks(size, 0)
        if (method.pace.buffer or 0) > at_work:
            message = f"{method.pace.buffer} updates, but only {at_work} clients are at work at a time"
            yield f"methods[{index}].pace.buffer", message
    for name, values in experiment.attributes.items():
        if len(values) != num_clients:
            yield f"attributes.{name}", f"{len(values)} values for {num_clients} clients"
    listed, count = set[int](), 0
    for index, group in enumerate(experiment.hostile):
        key = f"hostile[{index}].{'share' if group.clients is None else 'clients'}"
        try:
            hostile = group.wanted(num_clients, names)
        except ValueError as error:
            yield key, str(error)
            continue
        if group.share and group.share < 1 and hostile in (0, num_clients):
            whom = "nobody" if hostile == 0 else "everybody"
            yield key, f"{group.share:g} of {num_clients} clients is {whom}: name another share, or clients"
        members = hostile if isinstance(hostile, list) else []
        wrong = [client for client in members if client in listed or not 0 <= client < num_clients]
        if wrong:
            yield key, f"{wrong} are not clients, or in two groups: there are 0 to {num_clients - 1}"
        listed.update(members)
        count += hostile if isinstance(hostile, int) else len(members)
        if count > num_clients:
            yield key, f"{count} hostile clients of {num_clients}: too many"


def _size_issues(experiment: Experiment, module: nn.Module, data: FederatedData) -> Iterator[Issue]:
    """What takes more memory than there is."""
    if not len(data.samples.inputs):  # a server whose clients are elsewhere
        return
    largest, weighing = int(data.train.sizes.max()), len(data.weigh.indices) if data.weigh else 0
    batch = 0
    for index, method in enumerate(experiment.build_methods()):
        for key, training, count in (("training", method.training, largest), ("fine_tune", method.fine_tune, weighing)):
            if training is None:
                continue
            if method.control == "pooled":
                count = len(data.train.indices)
            batch = max(batch, min(training.batch_size or count, count))
            if (needed := 16 * training.epochs * count) > memory():  # which sample comes when
                message = f"the order of {count:,} samples in {training.epochs:,} epochs takes {gigabytes(needed)}"
                yield f"methods[{index}].{key}.epochs", f"{message}; ask for fewer"
    sample, wanted = data.samples.batch(torch.zeros(1, dtype=torch.int64)), count_outputs(data.samples)
    try:
        check_batches(module, sample, trained=batch, answered=BATCH)
        with torch.no_grad():
            answer: object = module.eval()(sample)
    except ValueError as error:  # ours
        yield "model", str(error)
        return
    except Exception as error:  # PyTorch's, or whatever a user's own network raises
        yield "model", f"does not take samples of shape {tuple(sample.shape[1:])} ({_first_line(error)})"
        return
    if not isinstance(answer, Tensor):
        yield "model", f"must give a tensor, gave {type(answer).__name__}"
    elif answer.numel() not in (wanted, data.samples.problem.num_classes):  # two classes may have an output each
        yield "model", f"gives {answer.numel()} numbers for a sample, and there must be {wanted}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _engine_issues(experiment: Experiment, engine: LocalEngine) -> Iterator[Issue]:
    """What shows when a client and a model are tried: networks that do not fit, criteria that cannot be measured."""
    try:
        engine.evaluate([0], engine.initial_model[None])
    except (RuntimeError, ValueError, IndexError) as error:
        yield "model", f"does not fit these samples ({_first_line(error)})"
        return
    tried = list(range(min(2, engine.num_clients)))  # two: what gives one value for all shows
    for index, method in enumerate(experiment.build_methods()):
        no_set = engine.data.weigh is None and experiment.server_set.source != "clients"
        if no_set and _needs_server_set(experiment.methods[index]):
            hint = "enlarge server_set.fraction, give `weigh`, or name methods that need none (FedAvg)"
            if experiment.flower.clients and experiment.data is None:
                hint = (
                    "give the server's own (start.sh SERVER_DATA, check --server-data), or name methods that need none"
                )
            yield f"methods[{index}]", f"there are no samples to weigh by: {hint}"
            continue
        facts = engine.facts(tried, torch.zeros(len(tried)), engine.initial_model, method.training)
        facts = replace(facts, seconds=torch.ones(len(tried)))
        for place, criterion in enumerate(method.criteria):
            seen = facts if criterion.measured_by == "client" else _arrivals(tried, method, engine)
            if not isinstance(seen, ClientFacts) or len(facts.owner):  # or nobody's samples are here to try it on
                alone = None if isinstance(seen, ClientFacts) else _arrivals(tried[:1], method, engine)
                yield from _try_criterion(f"methods[{index}].criteria[{place}]", criterion, seen, alone, engine.problem)
        if method.rule is not None:
            yield from _try_rule(f"methods[{index}].rule", method.rule, engine.spec.size)


def _arrivals(clients: Sequence[int], method: Method, engine: LocalEngine) -> Arrivals:
    """Some clients, as the server would see them: the first sends the initial model, the others one that moved."""

    def judge(models: Tensor) -> Evaluation:
        evaluation = engine.evaluate_server(models, "weigh")
        return engine.evaluate([0], models) if evaluation is None else evaluation

    rows, models = list(clients), engine.initial_model.repeat(len(clients), 1)
    models[1:] *= 0.9
    return Arrivals(
        tuple(clients),
        models,
        engine.initial_model,
        engine.spec,
        judge,
        memory={one.part.name: one.memory.first(engine.num_clients)[rows] for one in method.criteria if one.memory},
        attributes={name: values[rows] for name, values in engine.attributes.items()},
        server_update=lambda: torch.zeros_like(engine.initial_model),
        metric=engine.problem.usual_metric,
        seconds=torch.ones(len(clients), dtype=torch.float64),
        ages=torch.zeros(len(clients), dtype=torch.float64),
    )


def _try_criterion(
    key: str, criterion: Criterion, seen: ClientFacts | Arrivals, alone: Arrivals | None, problem: Problem
) -> Iterator[Issue]:
    """What is wrong with a criterion on the first clients; `alone` is the first of them as the server would see it."""
    count = len(seen.num_samples) if isinstance(seen, ClientFacts) else len(seen.client_ids)
    try:
        values: object = criterion.measure(seen)
        single = criterion.measure(alone) if alone and "whole_cohort" not in criterion.needs else None
        high = criterion.high(problem)
    except Exception as error:  # a user's own criterion may raise anything
        yield key, str(error.args[0]) if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        return
    if not isinstance(values, Tensor) or tuple(values.shape) != (count,):
        given = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        yield key, f"{criterion.name} must give a tensor of one value per client, gave {given} for {count}"
    elif not bool((values.isfinite() & (values >= 0)).all()):
        yield key, f"{criterion.name} must be a number of zero or more, gave {values.tolist()} for the first clients"
    elif float(values.max()) > high:
        yield key, f"{criterion.name} = {float(values.max()):g} for one of the first clients, above its bound {high:g}"
    elif single is not None and _differs(single, values):
        yield key, f"{criterion.name} depends on who else arrived with a client: declare needs={{'whole_cohort'}}"


def _differs(alone: Tensor, together: Tensor) -> bool:
    """Whether the first client's value is another one among others; a sample's answer may tip by rounding."""
    return not torch.allclose(alone[:1].double(), together[:1].double(), rtol=0.05, atol=1e-6)


def _try_rule(key: str, rule: Rule, size: int) -> Iterator[Issue]:
    try:
        result: object = rule(torch.zeros(3, size), torch.full((3,), 1 / 3, dtype=torch.float64), {})
    except Exception as error:  # a user's own rule may raise anything
        yield key, f"{type(error).__name__}: {error}"
        return
    if not isinstance(result, Ruled):
        yield key, f"must give a Ruled, gave {type(result).__name__}"
    elif tuple(result.update.shape) != (size,) or tuple(result.influence.shape) != (3,):
        shapes = f"{tuple(result.update.shape)} and {tuple(result.influence.shape)}"
        yield key, f"must give one update of {size} values and the influence of 3 clients, gave {shapes}"
