"""What secure aggregation costs one client and the server, beside Flower's SecAgg+ on the same work.

python benchmarks/secure.py            # 10, 100 and 300 clients, 1.7 million parameters: minutes
python benchmarks/secure.py 10 20      # other numbers of clients

One client runs its real code with the keys of all others. What the others would send it is made directly,
since the secret sharing of 300 clients would take an hour. The server's time is that of its operations,
each measured once, times their number. clientwise masks for every other client. SecAgg+ is measured with
the same neighbours, and with 25 of them, which is how it is meant to be used with many clients.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord
from flwr.common import ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto import shamir
from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import (
    pseudo_rand_gen,
    share_keys_plaintext_concat,
)

from clientwise.secrecy.masks.client import SecureClient
from clientwise.secrecy.masks.primitives import (
    combine,
    mask,
    seal,
    split,
    value_type,
)
from clientwise.secrecy.masks.terms import Sum, Terms

# The module, not the function of the same name that its package exports
plus: Any = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
PARAMETERS = 1_700_000
BITS = 32
DROPOUTS = 0.05  # share of the clients that vanish before they send their update
CLIENTS = (10, 100, 300)
FEW_NEIGHBOURS = 25


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds that it takes, whatever else the machine does; and what it returns."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def size_of(message: dict[str, Any]) -> int:
    """Bytes of a message on the wire."""
    rest = {key: value for key, value in message.items() if key != "masked"}
    array = message["masked"].nbytes if "masked" in message else 0
    return len(json.dumps(rest)) + int(array)


def ours(clients: int) -> dict[str, float]:
    """Seconds and bytes of one client, and seconds of the server."""
    threshold = 2 * clients // 3 + 1
    sums = (Sum("criteria", 3, 64), Sum("vector", 1 + PARAMETERS, BITS))
    terms = Terms("benchmark", "model", clients, threshold, sums)
    identities = {client: Ed25519PrivateKey.generate() for client in range(clients)}
    public = {client: key.public_key().public_bytes_raw() for client, key in identities.items()}
    everyone = {
        client: SecureClient(terms, client, key, public) for client, key in identities.items()
    }
    one = everyone[0]
    roster = {str(client): other.keys() for client, other in everyone.items() if client}
    time_keys, roster["0"] = seconds(one.keys)
    time_shares, sent = seconds(lambda: one.shares({"roster": roster}))
    packets: dict[str, str] = {}
    commitments: dict[str, list[str]] = {}
    for client, other in everyone.items():
        if client == 0:
            continue
        shares = {
            each.purpose: {kind: os.urandom(16).hex() for kind in ("mask", "self")} for each in sums
        }
        text = b"".join(bytes.fromhex(value) for each in shares.values() for value in each.values())
        key = other._sharing_key(one.state["roster"], one.state["view"], client, 0)
        packets[str(client)] = seal(key, text).hex()
        commitments[str(client)] = one._commitments(one.state["view"], client, 0, shares)
    request = {"packets": packets, "commitments": commitments}
    few = numpy.zeros(3, dtype=value_type(64))
    time_criteria, first = seconds(lambda: one.masked("criteria", request, lambda told: few))
    one.state["survivors"] = list(range(clients))
    one.state["done"] = terms.steps.index("mask vector")
    values = numpy.zeros(1 + PARAMETERS, dtype=value_type(BITS))
    time_vector, second = seconds(lambda: one.masked("vector", {}, lambda told: values))
    messages = [roster["0"], sent, first, second]
    time_mask, pad = seconds(lambda: mask(os.urandom(32), 1 + PARAMETERS, BITS))
    time_add, _ = seconds(lambda: values + pad)
    parts = split(os.urandom(16), threshold, list(range(clients)))
    time_combine, _ = seconds(lambda: combine(parts, threshold, list(range(clients))))
    gone = max(1, round(DROPOUTS * clients))
    padding = time_mask + time_add
    return {
        "keys": time_keys,
        "shares": time_shares,
        "mask": time_criteria + time_vector,
        "up": sum(map(size_of, messages)) / 1e6,
        "server": clients * padding,
        "server, dropouts": (clients - gone) * padding * (1 + gone) + 2 * gone * time_combine,
    }


def flowers(clients: int, neighbours: int) -> dict[str, float]:
    """The same for Flower's SecAgg+, where each client shares and masks with so many, itself included."""
    threshold = 2 * neighbours // 3 + 1
    settings = ConfigRecord(
        {
            Key.SAMPLE_NUMBER: clients,
            Key.SHARE_NUMBER: neighbours,
            Key.THRESHOLD: threshold,
            Key.CLIPPING_RANGE: 8.0,
            Key.TARGET_RANGE: 1 << 22,
            Key.MOD_RANGE: 1 << 32,
            Key.MAX_WEIGHT: 1000.0,
        }
    )
    states = {client: plus.SecAggPlusState() for client in range(neighbours)}
    keys = {}
    for client, state in states.items():
        state.nid = client
        if client:
            keys[client] = plus._setup(state, settings)
    time_keys, keys[0] = seconds(lambda: plus._setup(states[0], settings))
    listed = {
        str(client): [keys[client][Key.PUBLIC_KEY_1], keys[client][Key.PUBLIC_KEY_2]]
        for client in range(neighbours)
    }
    time_shares, sent = seconds(lambda: plus._share_keys(states[0], ConfigRecord(listed)))
    share = b"s" * 40
    ciphertexts = [
        encrypt(states[0].ss2_dict[client], share_keys_plaintext_concat(client, 0, share, share))
        for client in range(1, neighbours)
    ]
    request = {Key.CIPHERTEXT_LIST: ciphertexts, Key.SOURCE_LIST: list(range(1, neighbours))}
    parameters = ndarrays_to_parameters([numpy.zeros(PARAMETERS, dtype=numpy.float32)])
    time_mask, masked = seconds(
        lambda: plus._collect_masked_vectors(states[0], request, 100, parameters)
    )
    vectors = sum(map(len, masked[Key.MASKED_PARAMETERS]))
    small = sum(map(len, sent[Key.CIPHERTEXT_LIST])) + sum(map(len, keys[0].values()))
    time_pad, pad = seconds(lambda: pseudo_rand_gen(os.urandom(32), 1 << 32, [(PARAMETERS,)]))
    time_add, _ = seconds(lambda: pad[0] + pad[0])
    parts = shamir.create_shares(os.urandom(32), threshold, neighbours)
    time_combine, _ = seconds(lambda: shamir.combine_shares(parts[:threshold]))
    gone = max(1, round(DROPOUTS * clients))
    padding = time_pad + time_add
    return {
        "keys": time_keys,
        "shares": time_shares,
        "mask": time_mask,
        "up": (vectors + small) / 1e6,
        "server": clients * (padding + time_combine),
        "server, dropouts": (clients - gone + gone * neighbours) * padding + clients * time_combine,
    }


def main() -> None:
    """Print the table of docs/results/privacy.md."""
    counts = [int(argument) for argument in sys.argv[1:]] or list(CLIENTS)
    columns = ["keys", "shares", "mask", "up", "server", "server, dropouts"]
    heads = ["keys (s)", "shares (s)", "masking (s)", "upload (MB)", "server (s)"]
    heads.append(f"server, {DROPOUTS:.0%} dropouts (s)")
    print("| clients | protocol |", " | ".join(heads), "|")
    print("|--:|---|" + "--:|" * len(heads))
    for clients in counts:
        rows = {"clientwise": ours(clients), "SecAgg+": flowers(clients, clients)}
        if clients > FEW_NEIGHBOURS:
            rows[f"SecAgg+, {FEW_NEIGHBOURS} neighbours"] = flowers(clients, FEW_NEIGHBOURS)
        for name, row in rows.items():
            cells = " | ".join(f"{row[column]:.2f}" for column in columns)
            print(f"| {clients} | {name} | {cells} |", flush=True)
        ratios = [rows["clientwise"][one] / max(rows["SecAgg+"][one], 1e-9) for one in columns]
        print(f"| {clients} | ratio |", " | ".join(f"{one:.2f}" for one in ratios), "|", flush=True)


if __name__ == "__main__":
    main()
