"""Backdoors: common patterns that turn inputs of many classes into one are searched for, attributed and unlearned.

A model with a backdoor predicts the attacker's class where an input carries the attacker's trigger. Such a class
needs a smaller common change of the inputs than others do (Neural Cleanse, Wang et al., 2019).

- `scan` searches the smallest such pattern of every class, in the model before the round.
- `Suspicion` compares its norm with that in a model of the server's own samples. A class whose pattern is too small is
  suspect.
- `find_triggers` searches a pattern of a suspect class to which the clients' mean reacts, and the server's own model
  does not: such a pattern resembles the trigger more than the smallest one does.
- `watch` compares the clients' models: those that put a trigger back react to it more than others. If some do, the
  suspicion is confirmed.
- `unlearned` trains models to predict the true classes in spite of the triggers: a little while a class is suspect,
  more once that is confirmed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..aggregation.robust import combine
from ..types import Gathered, LocalTraining, Scanned, ServerNetwork

# The scan
TURNED = 0.7  # share of the inputs of other classes that a pattern has to turn
INPUTS = 64  # held-out inputs that are scanned, at most
AT_ONCE = 2048  # changed inputs in one pass
FIRST_STEPS = 120  # of the scan of the server's own model
STEPS = 8  # of a scan of a round, which goes on from the patterns of the last one
GROW = 1.05  # factor of a norm in one step, while the pattern turns too few inputs
SHRINK = 0.93  # the same, while it turns enough
MOVE = 0.3  # of the norm, in one step
FIRST_NORM = 0.3  # of the median norm of the inputs
RANGE = 5  # how much smaller or larger than usual a pattern can become, as a factor
SURE = -0.1  # log-probability above which an input needs no further change
OWN_EPOCHS = 60  # of the server's own model

# Suspicion
SMALL = 0.75  # a norm below this share of what is usual speaks against a class
ENOUGH = 0.5  # sum over the rounds of how far its logarithm is below, with which a class is suspect
FADES = 0.9  # suspicion that is not renewed, from round to round
ENDS = 0.2  # suspicion below this ends

# Attribution, and unlearning
SPREAD = 0.04  # least standard deviation of the clients' reactions, in units of their median
HEIGHT = 1.5  # evidence of one standard deviation of the reactions
LARGEST = 1e30  # reaction of a model that counts
NAMED = 6.0  # evidence above which a client is recorded with the suspect class
CHANCE = 6.0  # largest evidence of a round against a client, while a suspicion is wrong
CONFIRMED = (
    6.0  # sum over the rounds of what exceeds it, with which a suspicion is confirmed (Page's test)
)
SHARE = 0.3  # of the loss with the triggers, where confirmed ones are unlearned
LITTLE = 0.2  # the same, where no suspicion is confirmed


@dataclass(frozen=True)
class Patterns:
    """For every class, a common change of all inputs that turns most of them into it."""

    values: Tensor  # [C, ...]
    norms: Tensor  # [C]
    turned: Tensor  # [C] share of the inputs of other classes that they turn

    @staticmethod
    def first(network: ServerNetwork) -> Patterns:
        """Random patterns, the same in every run."""
        inputs = network.inputs
        shape = (network.num_classes, *inputs.shape[1:])
        values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(inputs.device)
        norms = (FIRST_NORM * inputs.flatten(1).norm(dim=1).median()).repeat(len(values))
        return Patterns(scaled(values, norms), norms, torch.zeros_like(norms))


def scaled(values: Tensor, norms: Tensor) -> Tensor:
    """Values [C, ...] with these norms [C].

    >>> scaled(torch.tensor([[3.0, 4.0]]), torch.tensor([10.0]))
    tensor([[6., 8.]])
    """
    before = values.flatten(1).norm(dim=1).clamp(min=1e-12)
    return values * over(norms / before, values)


def over(each: Tensor, values: Tensor) -> Tensor:
    """A number of each class [C], in the shape that multiplies values [C, ...]."""
    return each.view(-1, *(1,) * (values.dim() - 1))


def scan(
    network: ServerNetwork,
    model: Tensor,
    start: Patterns,
    steps: int,
    usual: Tensor | None = None,
) -> Patterns:
    """The smallest pattern of each class, from those of an earlier scan.

    Each step moves a pattern up the mean log-probability of its class over the inputs of other classes. Its norm
    shrinks while it turns 70% of them, and grows otherwise.

    Args:
        network: the network and the server's samples.
        model: [d].
        start: where to begin.
        steps: how many.
        usual: norms [C]; others stay within a factor of five.
    """
    values = start.values
    norms = start.norms
    turned = start.turned
    classes = torch.arange(len(values), device=values.device)
    for _ in range(steps):
        directions, turned = _directions(network, model, values, classes)
        norms = torch.where(turned > TURNED, SHRINK * norms, GROW * norms)
        if usual is not None:
            norms = norms.clamp(usual / RANGE, usual * RANGE)
        values = scaled(values + MOVE * scaled(directions, norms), norms)
    return Patterns(values, norms, turned)


def find_triggers(
    network: ServerNetwork,
    model: Tensor,
    own: Tensor,
    start: Tensor,
    norms: Tensor,
    classes: Tensor,
) -> Tensor:
    """A pattern of each class to which a model reacts and another one does not [p, ...].

    Each step moves a pattern up the mean log-probability of its class in the one model, less that in the other.

    Args:
        network: the network and the server's samples.
        model: [d] that may have a backdoor.
        own: [d] that has none.
        start: patterns to begin with [p, ...].
        norms: of the patterns [p].
        classes: of the patterns [p].
    """
    values = scaled(start, norms)
    for _ in range(STEPS):
        directions, _ = _directions(network, model, values, classes)
        natural, _ = _directions(network, own, values, classes, sure=0.0)
        # One client's enormous update can make the mean's outputs infinite
        contrast = (directions - natural).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        values = scaled(values + MOVE * scaled(contrast, norms), norms)
    return values


def _directions(
    network: ServerNetwork, model: Tensor, values: Tensor, classes: Tensor, sure: float = SURE
) -> tuple[Tensor, Tensor]:
    """Where the pattern of each class turns more inputs [p, ...], and the share that it turns now [p]."""
    inputs = network.inputs[:INPUTS]
    targets = network.targets[:INPUTS]
    directions = torch.zeros_like(values)
    turned = values.new_zeros(len(values))
    every = torch.arange(len(values), device=values.device)
    for rows in torch.split(every, max(1, AT_ONCE // INPUTS)):
        some = classes[rows]
        others = (targets != some[:, None]).float()  # [c, N]
        others /= others.sum(1, keepdim=True).clamp(min=1)
        patterns = values[rows].requires_grad_(True)
        with torch.enable_grad():
            changed = (inputs + patterns[:, None]).flatten(0, 1)
            outputs = network.outputs(model, changed).view(len(some), len(inputs), -1)
            wanted = outputs.log_softmax(-1)[every[: len(some)], :, some]  # [c, N]
            loss = (wanted.clamp(max=sure) * others).sum()
            (directions[rows],) = torch.autograd.grad(loss, patterns)
        turned[rows] = ((outputs.argmax(-1) == some[:, None]) * others).sum(1)
    return directions, turned


@dataclass(frozen=True)
class Suspicion:
    """Which classes react to a common pattern, as the evidence keeps it between rounds."""

    values: Tensor  # [C, ...] the patterns of the last scan
    norms: Tensor  # [C]
    turned: Tensor  # [C]
    own: Tensor  # [d] a model of the server's own samples
    natural: Tensor  # [C, ...] its patterns
    usual: Tensor  # [C] their norms
    triggers: Tensor  # [C, ...] what classes that are suspect react to
    found: Tensor  # [C] the norms that made classes suspect
    against: Tensor  # [C] sum of what speaks against a class (Page's test)
    strength: Tensor  # [C] 1 where a class is suspect, fading afterwards
    proof: Tensor  # [C] sum of what the clients' reactions say
    confirmed: Tensor  # [C] 1 where it was enough, while the class is suspect

    @staticmethod
    def begin(network: ServerNetwork, own: Tensor) -> Suspicion:
        """From a model [d] of the server's own samples."""
        first = scan(network, own, Patterns.first(network), FIRST_STEPS)
        none = torch.zeros_like(first.norms)
        return Suspicion(
            **vars(first),
            own=own,
            natural=first.values.clone(),
            usual=first.norms.clone(),
            triggers=first.values.clone(),
            found=first.norms.clone(),
            against=none,
            strength=none.clone(),
            proof=none.clone(),
            confirmed=none.clone(),
        )

    def after(self, network: ServerNetwork, model: Tensor) -> Suspicion:
        """After a scan of the model [d]."""
        before = Patterns(self.values, self.norms, self.turned)
        now = scan(network, model, before, STEPS, self.usual)
        ratios = now.norms / self.usual
        speaks = math.log(SMALL) - (ratios / _median_of_others(ratios)).log()
        speaks[now.turned < TURNED / 2] = 0
        against = (self.against + speaks).clamp(0, ENOUGH)
        is_suspect = against >= ENOUGH
        is_new = is_suspect & (self.strength <= ENDS)
        return replace(
            self,
            **vars(now),
            triggers=torch.where(over(is_new, now.values), now.values, self.triggers),
            found=torch.where(is_new, now.norms, self.found),
            against=against,
            strength=torch.where(is_suspect, 1.0, FADES * self.strength),
        )

    def with_triggers(self, network: ServerNetwork, mean: Tensor) -> Suspicion:
        """With the triggers of the suspect classes, to which the clients' mean [d] reacts."""
        suspects = torch.tensor(self.classes, device=mean.device)
        start = self.triggers[suspects]
        triggers = self.triggers.clone()
        triggers[suspects] = find_triggers(
            network, mean, self.own, start, self.usual[suspects], suspects
        )
        return replace(self, triggers=triggers)

    def after_reactions(self, z: Mapping[int, Tensor]) -> Suspicion:
        """After the evidence against clients [n] by each suspect class."""
        most = torch.full_like(self.proof, -torch.inf)
        for label, against in z.items():
            most[label] = float(against.max())
        proof = (self.proof + most - CHANCE).clamp(0, CONFIRMED)
        enough = (proof >= CONFIRMED).to(proof)
        is_suspect = most > -torch.inf
        return replace(
            self, proof=proof, confirmed=torch.maximum(self.confirmed, enough) * is_suspect
        )

    @property
    def classes(self) -> list[int]:
        """Those that are suspect."""
        suspects: list[int] = (self.strength > ENDS).nonzero().flatten().tolist()
        return suspects

    @torch.no_grad()
    def stand_out(self, network: ServerNetwork, gathered: Gathered, label: int) -> Tensor:
        """How far each client's model reacts to the trigger of a class more than others do [n].

        It must stand out alone and beside its reaction to the natural pattern of the same norm: clients with many
        samples of the class react to both.
        """
        rows = (network.targets != label).nonzero().flatten()[:INPUTS]
        inputs = network.inputs[rows]
        targets = network.targets[rows, None]

        def log_odds(model: Tensor, inputs: Tensor) -> Tensor:
            """Of the class against the true one."""
            outputs = network.outputs(model, inputs)
            return (outputs[:, label] - outputs.gather(1, targets)[:, 0]).mean()

        found = []
        for update in gathered.updates:
            model = gathered.global_model + update
            plain = log_odds(model, inputs)
            patterns = (self.triggers[label], self.natural[label])
            found.append(torch.stack([log_odds(model, inputs + one) - plain for one in patterns]))
        # A model whose outputs are not finite must not hide the others
        reactions = torch.stack(found).double().cpu()
        to_trigger, to_natural = reactions.nan_to_num(nan=0.0, posinf=LARGEST, neginf=-LARGEST).T
        unit = float(to_trigger.median().abs())
        return torch.minimum(outlying(to_trigger, unit), outlying(to_trigger - to_natural, unit))

    def recorded(self, label: int, z: Tensor, gathered: Gathered) -> dict[str, Any]:
        """What the record has of a suspect class, with the clients that stand out by z [n]."""
        pattern = None
        if self.strength[label] == 1:  # later, it resembles the trigger less
            pattern = self.triggers[label].double().round(decimals=5).tolist()
        return {
            "class": label,
            "confirmed": bool(self.confirmed[label]),
            "norm": float(self.found[label]),
            "usual": float(self.usual[label]),
            "clients": [
                one for one, own in zip(gathered.client_ids, z, strict=True) if own > NAMED
            ],
            "pattern": pattern,
        }


def _median_of_others(ratios: Tensor) -> Tensor:
    """For every class, the median over the other classes [C]."""
    others = [torch.cat([ratios[:one], ratios[one + 1 :]]) for one in range(len(ratios))]
    return torch.stack([rest.quantile(0.5) for rest in others])


def outlying(values: Tensor, unit: float) -> Tensor:
    """How far values [n] exceed their median, in standard deviations of those below it.

    >>> outlying(torch.tensor([1.0, 2.0, 3.0, 4.0, 50.0]), unit=3.0).round(decimals=1)
    tensor([-1.3000, -0.7000,  0.0000,  0.7000, 31.7000])
    """
    away = values - values.median()
    deviation = -1.4826 * away[away <= 0].median()
    return away / deviation.clamp(min=SPREAD * unit + 1e-12)


def watch(gathered: Gathered, weights: Tensor, memory: Mapping[str, Tensor]) -> Scanned:
    """Scan the model before the round, and compare how the clients' models react to suspect patterns.

    Args:
        gathered: the round.
        weights: of the clients before this round's evidence [n].
        memory: what the evidence keeps between rounds.
    """
    network = gathered.network() if gathered.network else None
    if network is None:
        return Scanned(notes=("no scan for backdoors: it needs classes and inputs of numbers",))
    kept = {
        one.name: memory[f"scan_{one.name}"].to(gathered.updates.device)
        for one in fields(Suspicion)
        if f"scan_{one.name}" in memory
    }
    if kept:
        suspicion = Suspicion(**kept).after(network, gathered.global_model)
    else:
        training = replace(gathered.training, epochs=OWN_EPOCHS)
        own = gathered.train_server(gathered.global_model, training)
        suspicion = Suspicion.begin(network, own)
    suspects = suspicion.classes
    if suspects:
        mean = gathered.global_model + combine(weights, gathered.updates)
        suspicion = suspicion.with_triggers(network, mean)
    z = {one: HEIGHT * suspicion.stand_out(network, gathered, one) for one in suspects}
    suspicion = suspicion.after_reactions(z)
    confirmed = [one for one in suspects if suspicion.confirmed[one]]
    return Scanned(
        z=torch.stack([*z.values()]).amax(0) if suspects else None,
        patterns=suspicion.triggers[confirmed or suspects] if suspects else None,
        share=SHARE if confirmed else LITTLE,
        suspects=[suspicion.recorded(one, z[one], gathered) for one in suspects] or None,
        notes=tuple(f"class {one}: a backdoor is suspected" for one in confirmed),
        memory={f"scan_{name}": values for name, values in vars(suspicion).items()},
    )


def unlearned(
    network: ServerNetwork, models: Tensor, scanned: Scanned, training: LocalTraining, seed: int
) -> Tensor:
    """Models [c, d] trained on the server's samples, a share of the loss with one of the patterns."""
    return torch.stack([_unlearned(network, one, scanned, training, seed) for one in models])


def _unlearned(
    network: ServerNetwork, model: Tensor, scanned: Scanned, training: LocalTraining, seed: int
) -> Tensor:
    patterns = scanned.patterns
    assert patterns is not None
    random = torch.Generator().manual_seed(seed)
    count = len(network.inputs)
    for _ in range(training.epochs):
        order = torch.randperm(count, generator=random)
        for batch in torch.split(order, training.batch_size or count):
            drawn = torch.randint(len(patterns), (len(batch),), generator=random)
            rows = batch.to(model.device)
            inputs = network.inputs[rows]
            targets = network.targets[rows]
            changed = inputs + patterns[drawn.to(model.device)]
            at = model.clone().requires_grad_(True)
            with torch.enable_grad():
                plain = cross_entropy(network.outputs(at, inputs), targets)
                with_pattern = cross_entropy(network.outputs(at, changed), targets)
                loss = (1 - scanned.share) * plain + scanned.share * with_pattern
                (gradient,) = torch.autograd.grad(loss, at)
            model = model - training.rate * gradient
    return model


@torch.no_grad()
def loss_with(network: ServerNetwork, models: Tensor, patterns: Tensor) -> Tensor:
    """The mean loss of models [c, d] on the server's samples with each of the patterns [c]."""
    losses = []
    for model in models:
        each = [
            cross_entropy(network.outputs(model, network.inputs + pattern), network.targets)
            for pattern in patterns
        ]
        losses.append(torch.stack(each).mean())
    return torch.stack(losses)
