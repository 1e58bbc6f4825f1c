"""Keys of a config that do not go together, whatever the data are: a table of rows for each subject.

A row is a key, what is wrong with it, and whether it holds; all rows that hold are said at once. `docs/privacy.md` has
the reasons of what is refused with differential privacy: noise covers what one client can do to
the released models if no client changes what another one contributes, nothing else about the clients is released, and
cohorts are drawn as the accountant assumes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...attacks import ATTACKS
from ...core.aggregation.server_step import SERVER_STEPS
from ...core.feedback import LOSS_ADAPTERS, MAX_CRITERIA, AdapterDeclaration
from ...core.method import Method
from ...core.training import is_plain
from ...core.weights.weighting import (
    check_normaliser,
    is_constant,
)
from ...registry import Need
from ..config.methods import MethodSettings
from ..config.parts import make
from ..config.schema import Experiment
from ..config.settings import HostileClients
from ..config.tables import Issue

LOCAL = 'use engine = "local"'
TAKES_TIME = 'needs clients that take time: add [devices], or engine = "flower" (docs/devices.md)'
TEST_SETS = "test_fraction must not be 0"
HELD_OUT = "needs held-out samples: set server_set.fraction > 0"
SINGLE = "makes what one client contributes depend on the others, so that ε is unknown"
ON_CLIENTS = "evaluates on the clients' samples, which the noise does not cover"
SIMULATION = "is for simulations: in a deployment"

# A key, what is wrong with it, and whether it is: also a text or several, which stand for `{}` in the other two
Row = tuple[str, str, object]

# Keys that differ from FedAvg's and are not allowed with differential privacy, and with its noise on the server
REFUSED_IF_PRIVATE = {
    "adjust": f"{ON_CLIENTS}: privacy needs a fixed order of priority",
    "pace": f"{SINGLE}: leave it out",
}
REFUSED_IF_NOISED = {
    "evidence": f"{SINGLE}: leave it out, or use privacy.local",
    "rule": f"{SINGLE}: use the mean, or privacy.local",
    "before": f"{SINGLE}: privacy clips by itself. Or use privacy.local",
}


def config_issues(experiment: Experiment) -> list[Issue]:
    """Combinations of keys that cannot work with any data."""
    issues = list(_holding("", _of_experiment(experiment)))
    for index, group in enumerate(experiment.hostile):
        issues += _holding(f"hostile[{index}]", _hostile(group, experiment.engine))
    for index, settings in enumerate(experiment.methods):
        issues += _method_issues(f"methods[{index}]", settings, experiment)
    return list(dict.fromkeys(issues))


def deployment_issues(experiment: Experiment) -> list[Issue]:
    """What a deployment needs beyond other runs: its server has no data of the clients."""
    flower = experiment.flower
    needed = "is needed in a deployment, where the server has no data of the clients"
    private = any(method.privacy for method in experiment.methods)
    several = len(experiment.methods) * len(experiment.seeds) > 1
    rows: list[Row] = [
        ("flower.clients", needed, not flower.clients),
        ("flower.input_shape", needed, not flower.input_shape),
        (
            "server_set.source",
            'no sample leaves a client of a deployment: use "held_out" with server-data, or "clients"',
            experiment.server_set.source == "contributed",
        ),
        (
            "methods",
            "with privacy, a deployment has one method and one seed: each spends ε on its own",
            private and several,
        ),
    ]
    for index, settings in enumerate(experiment.methods):
        method = settings.build(experiment.training)
        place = f"methods[{index}]"
        secret = "must be true in a deployment: whoever knows the seed can subtract the noise"
        is_open = method.privacy and not method.privacy.secret
        rows.append((f"{place}.privacy.secret", secret, is_open))
        stay = f"{method.name} {SIMULATION}, samples and state stay with the clients"
        rows.append((place, stay, method.control or method.training.control_variates))
        for key, registry, part in settings.parts():
            hint = f"{part.name} {SIMULATION} it is unknown which clients are honest"
            rows.append((f"{place}.{key}", hint, "simulation" in registry.needs(part)))
    return list(_holding("", rows))


def needs_server_set(settings: MethodSettings) -> bool:
    """Whether a method judges models on held-out samples, or trains on them."""
    judged = any("server_set" in registry.needs(part) for _, registry, part in settings.parts())
    return judged or bool(_server_keys(settings))


def _holding(place: str, rows: Iterable[Row]) -> Iterator[Issue]:
    """The rows that hold, as issues of the keys below `place`."""
    for key, says, found in rows:
        texts = found if isinstance(found, list) else [found] if found else []
        for text in texts:
            full = f"{place}.{key}".strip(".").replace("{}", str(text))
            yield full, says.replace("{}", str(text))


def _of_experiment(e: Experiment) -> list[Row]:
    return [
        (
            "methods",
            "two methods are called '{}'; give one of them another name",
            _twice(method.name for method in e.methods),
        ),
        ("seeds", "{} is listed twice; it would repeat the same run", _twice(e.seeds)),
        (
            "federation",
            "give either fraction or clients_per_round",
            e.federation.fraction is not None and e.federation.clients_per_round,
        ),
        (
            "federation.sampling",
            '"poisson" may ask no client, and such a round has no duration: leave out [devices]',
            e.devices and e.federation.sampling == "poisson",
        ),
        (
            "devices",
            f"are simulated: {LOCAL}. On Flower, response times are measured",
            e.devices and e.engine == "flower",
        ),
        (
            "flower.clients",
            "'{}' is listed twice; names must be unique",
            _twice(e.flower.clients),
        ),
        (
            "evaluation.clients_every",
            "0 without held-out samples: nothing would be measured",
            not e.server_holds_samples and not e.evaluation.clients_every,
        ),
        (
            "evaluation.clients_every",
            "must be 0 where test_fraction is 0: clients have no test samples",
            e.evaluation.clients_every and not e.clients_test,
        ),
        (
            "server_set.report_fraction",
            "0 with test_fraction = 0: nothing would be measured",
            not e.clients_test and not _reports(e),
        ),
        (
            "server_set.source",
            f'"clients" evaluate models on their test sets: {TEST_SETS}',
            e.server_set.source == "clients" and not e.clients_test,
        ),
        ("keep", HELD_OUT, e.keep == "best" and not _has_held_out_loss(e)),
    ]


def _hostile(group: HostileClients, engine: str) -> list[Row]:
    """Groups of hostile clients without members, and attacks that Flower cannot simulate."""
    changing = [part.name for part in group.attack if ATTACKS.get(part.name).honest]
    beyond: set[Need] = {"whole_cohort", "last_model", "judgements"}
    elsewhere = [part.name for part in group.attack if ATTACKS.needs(part) & beyond] + changing
    is_alone = len(group.attack) == 1 and group.from_round > 1 and group.probability == 1
    return [
        (
            "attack",
            f"{{}} uses what no node has (other clients' data or updates, earlier models): {LOCAL}",
            elsewhere if engine == "flower" else (),
        ),
        (
            "ignore_global",
            f"needs clients that keep a model, which nodes do not: {LOCAL}",
            engine == "flower" and group.ignore_global,
        ),
        (
            "attack",
            "{} changes honest clients once: use it alone, from round 2 on, without probability and ignore_global",
            changing if not is_alone or group.ignore_global else (),
        ),
    ]


def _method_issues(place: str, settings: MethodSettings, experiment: Experiment) -> Iterator[Issue]:
    names = [part.called for part in settings.criteria]
    for name in _twice(names):
        yield (
            f"{place}.criteria",
            f"{name} is listed twice; give one of them another name with `as`",
        )
    try:
        key = "server_step"
        make(SERVER_STEPS, settings.server_step)
        key = "score"
        method = settings.build(experiment.training)
        method.score.check(names)
    except ValueError as error:
        yield f"{place}.{key}", str(error)
        return
    about = (settings, method, experiment)
    rows = list(_of_any(*about))
    if method.adjust:
        rows += _of_adjust(*about)
    if method.privacy:
        rows += _of_privacy(*about)
    if method.local_noise:
        rows += _of_local_noise(method, experiment)
    if method.noises_mean:
        rows += _of_noised_mean(*about)
    yield from _holding(place, rows)


def _of_any(s: MethodSettings, m: Method, e: Experiment) -> Iterator[Row]:
    """Of settings `s`, from which the method `m` is built, in an experiment `e`."""
    training = m.training
    takes_time = e.devices or e.engine == "flower"
    yield from [
        (
            "training.sample_clip",
            "and training.sample_noise go together: give both or none",
            (training.sample_clip is None) != (training.sample_noise is None),
        ),
        (
            "training.control_variates",
            "need plain sgd: no adam, no momentum, no proximal term, no sample_clip",
            training.control_variates
            and (not is_plain(training.optimizer) or training.proximal or training.sample_clip),
        ),
        (
            "training.control_variates",
            "are kept by the clients and sent beside the models, in time and in the clear: leave out pace, privacy "
            f"and {LOCAL}",
            training.control_variates and (e.engine == "flower" or m.pace.keeps_late or m.privacy),
        ),
        (
            "training.loss.class_weights",
            '"balanced" needs the label counts of all clients, which stay on their nodes, and which no noise or mask '
            "protects: give a list of weights",
            m.counts_labels and (_on_flower(e) or m.privacy or training.sample_clip),
        ),
        ("training.loss", "{}: remove one of them", _why_not_adapted(s, m)),
        (
            "fine_tune.{}",
            "the server trains with that of the clients: set it in [training]",
            [key for key in ("loss", "schedule") if getattr(s.fine_tune, key, None) is not None],
        ),
        ("normalise", "{}", _why_not_normalised(s, m)),
        (
            "{}",
            'needs samples of the server: server_set.source = "clients" has none',
            e.server_set.source == "clients" and _server_keys(s),
        ),
        (
            "",
            "needs samples to weigh by: set server_set.fraction > 0 and report_fraction < 1",
            e.server_set.source == "held_out" and needs_server_set(s) and not _weighs(e),
        ),
        ("pace", TAKES_TIME, s.pace and not takes_time),
        (
            "pace.late",
            '"keep" needs a deadline or extra: otherwise no update is late',
            m.pace.late == "keep" and not (m.pace.extra or m.pace.deadline or m.pace.buffer),
        ),
        (
            "control",
            "is not federated learning: {} would have no effect",
            m.control and [key for key in s.unlike_fedavg() if key not in ("training", "control")],
        ),
        (
            "control",
            f"needs all samples in this process: {LOCAL}",
            m.control and e.engine == "flower",
        ),
        (
            "tuned.seeds",
            "{}: the method was tuned on this seed; report other seeds",
            [seed for seed in e.seeds if seed in (s.tuned or {}).get("seeds", [])],
        ),
    ]
    measured = {part.name for part in s.criteria}
    for key, registry, part in s.parts():
        needed = registry.needs(part)
        yield key, f"{part.name} {TAKES_TIME}", "clock" in needed and not takes_time
        unread = sorted(registry.declared(part.name).criteria - measured)
        yield key, f"{part.name} reads the criterion '{{}}': add it to the criteria", unread


def _of_adjust(s: MethodSettings, m: Method, e: Experiment) -> list[Row]:
    count = len(m.names)
    return [
        (
            "adjust",
            'adjusts an order of priority: use score = "prioritized"',
            m.first_priority is None,
        ),
        (
            "adjust",
            f"needs 2 to {MAX_CRITERIA} criteria to put in order, got {count}",
            not 2 <= count <= MAX_CRITERIA,
        ),
        (
            "fine_tune",
            "does not go with adjust, which compares models before the server trains them",
            m.fine_tune,
        ),
        (
            "server_step",
            f"{s.server_step.name} does not go with adjust: both choose the model",
            "server_samples" in SERVER_STEPS.needs(s.server_step),
        ),
        ("adjust", f"evaluates on the clients' test sets: {TEST_SETS}", not e.clients_test),
    ]


def _of_privacy(s: MethodSettings, m: Method, e: Experiment) -> list[Row]:
    assert m.privacy is not None
    source = e.server_set.source
    return [
        *_refused(s, REFUSED_IF_PRIVATE),
        (
            "privacy",
            f"{ON_CLIENTS}: set evaluation.clients_every = 0",
            e.evaluation.clients_every,
        ),
        (
            "privacy",
            f'server_set.source = "{source}" uses samples of the clients: use "held_out"',
            source != "held_out",
        ),
        (
            "privacy",
            "the model must be measured on samples of the server: set report_fraction > 0",
            not _reports(e),
        ),
        (
            "privacy",
            "needs cohorts that are drawn at random, not by availability: leave out [devices]",
            e.devices,
        ),
        (
            "privacy.noise_multiplier",
            "is missing: give it, or give epsilon, and `check` says which multiplier spends that",
            m.privacy.noise_multiplier is None and m.privacy.epsilon is None,
        ),
        (
            "privacy.secret",
            'needs workers of this process: set workers = "auto"',
            m.privacy.secret and e.workers == "ray",
        ),
    ]


def _of_local_noise(m: Method, e: Experiment) -> list[Row]:
    """Noise of the clients: whatever else they send."""
    assert m.privacy is not None
    public = m.privacy.public
    by_clients = {one.name: one for one in m.criteria if one.measured_by == "client"}
    return [
        (
            "privacy.secret",
            "is for the nodes of a deployment: clients of Flower's simulation draw their noise from the seed. "
            f"Leave it out, or {LOCAL}",
            m.privacy.secret and e.engine == "flower" and not e.flower.clients,
        ),
        (
            "privacy.denominator",
            "is for noise of the server: leave it out with local = true",
            m.privacy.denominator is not None,
        ),
        (
            "privacy.public",
            f"'{{}}' is no client-measured criterion; there are: {', '.join(by_clients) or 'none'}",
            [name for name in public if name not in by_clients],
        ),
        (
            "criteria",
            "{} is sent by the clients without noise: declare it in privacy.public, or use criteria that the server "
            "measures (uniform)",
            [name for name, one in by_clients.items() if name not in public and not one.alike],
        ),
    ]


def _of_noised_mean(s: MethodSettings, m: Method, e: Experiment) -> Iterator[Row]:
    """Noise of the server: which parts have a sensitivity that is known."""
    assert m.privacy is not None
    normaliser = _normaliser(s, m)
    by = s.normalise.options.get("by") if s.normalise else None
    terms = m.score.terms(m.names)
    cancels = terms is not None and len(terms) == 1 and m.privacy.denominator is None
    yield from _refused(s, REFUSED_IF_NOISED)
    for index, criterion in enumerate(m.criteria):
        sees_single = criterion.needs & {"models", "whole_cohort", "clock"}
        hint = f"{criterion.part.name} {SINGLE}: use another, or privacy.local"
        yield f"criteria[{index}]", hint, sees_single
    yield from [
        (
            "bounds",
            "privacy needs a cap: the noise is proportional to the largest weight. Give bounds = { cap = ... }, at "
            "least 1/cohort",
            m.bounds is None or m.bounds.cap == 1,
        ),
        ("bounds.floor", "does not go with privacy: leave it out", m.bounds and m.bounds.floor),
        ("score", f"{s.score.name} {SINGLE}: use another score", m.score.compares_clients),
        (
            "normalise.by",
            f"has {len(by or ())} values for {len(m.names)} criteria",
            by is not None and len(by) != len(m.names),
        ),
        (
            "normalise",
            f'"{normaliser}" depends on all clients of the cohort, so that ε is unknown: use public constants, '
            'normalise = { name = "fixed", by = [...] }, one for each criterion',
            not is_constant(normaliser) and not cancels,
        ),
        (
            "privacy.public",
            "is for privacy.local: here the noise covers all criteria",
            m.privacy.public,
        ),
        (
            "privacy",
            "with clients_per_round, the probabilities of Poisson sampling follow from the number of clients: give "
            "federation.fraction",
            e.federation.sampling == "poisson" and e.federation.clients_per_round,
        ),
        (
            "privacy",
            "one client could make a whole round void: set flower.min_replies = 1",
            _on_flower(e) and e.flower.min_replies > 1,
        ),
    ]


# What rows ask ----------------------------------------------------------------------------------------------


def _refused(settings: MethodSettings, reasons: Mapping[str, str]) -> list[Row]:
    """The keys that have a reason against them and differ from FedAvg's."""
    differ = settings.unlike_fedavg()
    return [(key, reason, key in differ) for key, reason in reasons.items()]


def _twice(values: Iterable[Any]) -> list[Any]:
    return sorted(value for value, count in Counter(values).items() if count > 1)


def _on_flower(experiment: Experiment) -> bool:
    return experiment.engine == "flower" or bool(experiment.flower.clients)


def _reports(experiment: Experiment) -> bool:
    """Whether some of the server's samples are reported on."""
    server = experiment.server_set
    return server.source != "held_out" or server.shared_set or server.report_fraction > 0


def _weighs(experiment: Experiment) -> bool:
    """Whether some of the server's own samples are weighed by."""
    server = experiment.server_set
    return experiment.server_holds_samples and (server.shared_set or server.report_fraction < 1)


def _has_held_out_loss(experiment: Experiment) -> bool:
    contributed = experiment.server_set.source == "contributed"
    return experiment.server_holds_samples or experiment.clients_test or contributed


def _server_keys(settings: MethodSettings) -> list[str]:
    """The keys that need samples that the server itself holds."""
    parts = settings.parts()
    keys = [key for key, registry, part in parts if "server_samples" in registry.needs(part)]
    keys += ["fine_tune"] * (settings.fine_tune is not None)
    return keys + ["control"] * (settings.control == "server_only")


def _normaliser(settings: MethodSettings, method: Method) -> str:
    return settings.normalise.name if settings.normalise else method.score.default_normaliser


def _why_not_normalised(settings: MethodSettings, method: Method) -> str:
    try:
        check_normaliser(method.score, _normaliser(settings, method))
    except ValueError as error:
        return str(error)
    return ""


def _why_not_adapted(settings: MethodSettings, method: Method) -> str:
    """Why `adapt_loss` cannot change the loss."""
    if settings.adapt_loss is None or method.loss is None:
        return ""
    declared = LOSS_ADAPTERS.declared(settings.adapt_loss.name)
    if not isinstance(declared, AdapterDeclaration):
        return ""
    adapts = f"adapt_loss = {settings.adapt_loss.name!r}"
    if declared.takes and method.loss.name not in declared.takes:
        return (
            f"{adapts} changes {' or '.join(map(repr, declared.takes))}, not {method.loss.name!r}"
        )
    if declared.sets_class_weights and method.loss.options.get("class_weights"):
        return f"{adapts} replaces them"
    return ""
