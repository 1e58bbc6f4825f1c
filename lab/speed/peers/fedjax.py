"""FedJAX on JAX for CPUs: it compiles the training of a client; clients run one after the other, XLA shares the cores.

Its other backend, `pmap`, with a device per core, does not run on current JAX.
"""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from peers.shared import Clock, arguments
from works import Work, make_data

jax.tree_map = jax.tree.map  # FedJAX 0.0.17 calls it by its old name, which JAX has dropped
import fedjax  # noqa: E402
from fedjax.algorithms import fed_avg  # noqa: E402
from fedjax.core import for_each_client  # noqa: E402

Parameters = list[tuple[jax.Array, jax.Array]]  # kernel and bias of every layer


def initial(work: Work) -> Parameters:
    """Drawn as PyTorch does."""
    shapes = (
        [(5, 5, 1, 32), (5, 5, 32, 64), (3136, 512), (512, 10)]
        if not work.layers
        else [*pairwise(work.layers)]
    )
    random = np.random.default_rng(0)
    bounds = [1 / np.sqrt(np.prod(shape[:-1])) for shape in shapes]
    return [
        tuple(
            jnp.asarray(random.uniform(-bound, bound, size).astype(np.float32))
            for size in (shape, shape[-1:])
        )
        for shape, bound in zip(shapes, bounds, strict=True)
    ]


def outputs(parameters: Parameters, values: jax.Array) -> jax.Array:
    """P1's CNN or an MLP, by the shapes of the kernels."""
    if values.ndim == 4:
        values = values.reshape(-1, 28, 28, 1)
    for place, (kernel, bias) in enumerate(parameters):
        if kernel.ndim == 4:
            order = ("NHWC", "HWIO", "NHWC")
            values = jax.nn.relu(
                lax.conv_general_dilated(values, kernel, (1, 1), "SAME", dimension_numbers=order)
                + bias
            )
            count, height, width, channels = values.shape
            values = values.reshape(count, height // 2, 2, width // 2, 2, channels).max((2, 4))
        else:
            values = values.reshape(len(values), -1) @ kernel + bias
            values = jax.nn.relu(values) if place < len(parameters) - 1 else values
    return values


def loss(parameters: Parameters, inputs: jax.Array, labels: jax.Array) -> jax.Array:
    return -jnp.mean(
        jnp.take_along_axis(jax.nn.log_softmax(outputs(parameters, inputs)), labels[:, None], 1)
    )


def main() -> None:
    given, clock = arguments(), Clock()
    work = given.work
    inputs, labels = make_data(work)
    labels = labels.astype(np.int32)
    for_each_client.set_for_each_client_backend("jit")
    data = fedjax.InMemoryFederatedData(
        {
            b"%06d" % client: {"x": inputs[client], "y": labels[client]}
            for client in range(work.clients)
        }
    )
    algorithm = fed_avg.federated_averaging(
        lambda parameters, batch, random: jax.grad(loss)(parameters, batch["x"], batch["y"]),
        fedjax.optimizers.sgd(work.rate),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=work.epochs),
    )
    state = algorithm.init(initial(work))
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, num_clients=work.cohort, seed=0)
    for _ in range(given.total):
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        clock.round_ended()
    some = inputs.reshape(-1, *work.shape)[:1000], labels.reshape(-1)[:1000]
    clock.report(
        "FedJAX", work, "fedjax", "jax", loss=float(loss(state.params, *map(jnp.asarray, some)))
    )


if __name__ == "__main__":
    main()
