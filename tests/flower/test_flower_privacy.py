"""No sample and no label leaves a client: every message a client app sends is looked through, byte by byte."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import Message
from grid import LoopGrid, deployed, rounds_of

from clientwise.hosts.flower.client_app import client_app
from clientwise.hosts.flower.data import load_npz, write_parts

NUMBERS = {  # the documented names: docs/frameworks.md
    "train": {"training_loss", "seconds", "criterion.label_diversity", "criterion.dataset_size"},
    "evaluate": {"num_samples", "values", "losses"},
}


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    tiny["partition"]["clients"] = 3
    tiny["flower"] = {"clients": ["a", "b", "c"], "input_shape": [1, 8, 8], "num_classes": 10}
    tiny["federation"] = {}
    criteria = ["label_diversity", "dataset_size", "model_divergence"]
    tiny["methods"] = [{"name": "online", "criteria": criteria, "adjust": "best_order"}]
    return tiny


def everything_in(message: Message) -> bytes:
    """All bytes of a message: keys, numbers, texts, raw arrays."""
    if message.has_error():
        return message.error.reason.encode()
    parts = [repr(message.content.config_records), repr(message.content.metric_records)]
    arrays = [
        array.numpy()
        for record in message.content.array_records.values()
        for array in record.values()
    ]
    return "".join(parts).encode() + b"".join(array.tobytes() for array in arrays)


def test_nothing_leaves_a_client_but_what_is_documented(
    config: dict[str, Any], tmp_path: Path
) -> None:
    path = write_parts(config, tmp_path)[1]
    grid = LoopGrid(client_app(config), {"data": str(path)})
    records = rounds_of(config, deployed(config, grid, path.parent / "server.npz"), 2)
    assert [len(record.client_ids) for record in records] == [3, 3]
    own = load_npz(str(path))
    requests = {message.metadata.message_id: message for message in grid.sent}
    for reply in grid.answers:
        kind = requests[reply.metadata.reply_to_message_id].metadata.message_type
        assert set(reply.content) == {"arrays", "numbers"}
        assert set(reply.content.metric_records["numbers"]) == NUMBERS[kind]
        (array,) = (array.numpy() for array in reply.content.array_records["arrays"].values())
        if kind == "train":
            assert array.shape == (650,)  # the model
            assert array.dtype == numpy.float32
        else:
            candidates = len(reply.content.metric_records["numbers"]["values"])
            assert array.shape == (
                candidates,
                10,
                10,
            )  # counts: how many of a class were taken for which
        content = everything_in(reply)
        for inputs, targets in (own.train, own.test):
            for sample in inputs.reshape(len(inputs), -1):
                forms = (
                    sample.astype("float32"),
                    sample.astype("float64"),
                    (sample * 16).astype("uint8"),
                )
                assert not any(form.tobytes() in content for form in forms)
            for kind_of in (numpy.int64, numpy.int32, numpy.uint8, numpy.float32):
                for first in range(
                    0, len(targets) - 8, 8
                ):  # eight labels in a row, in any likely type
                    run = targets[first : first + 8].astype(kind_of)
                    assert len(set(run.tolist())) == 1 or run.tobytes() not in content


def test_an_error_quotes_no_sample(config: dict[str, Any], tmp_path: Path) -> None:
    path = write_parts(config, tmp_path)[0]

    def load(where: str) -> Any:
        raise ValueError(f"cannot parse {load_npz(where).train[0][0].tolist()}")

    grid = LoopGrid(client_app(config, load), {"data": str(path)})
    (record,) = rounds_of(config, deployed(config, grid), 1)
    reasons = {refusal.client_id: refusal.reason for refusal in record.refusals}
    assert reasons[0] == "ValueError; the node's log says more"
    assert all(reply.has_error() for reply in grid.answers)
    assert not any("[" in reply.error.reason for reply in grid.answers)


def test_a_node_without_a_path_trains_on_nothing(config: dict[str, Any]) -> None:
    engine = deployed(config, LoopGrid(client_app(config), {"name": "a"}))
    (missing, *_) = engine.evaluate([0], engine.initial_model[None]).missing
    assert missing.reason.startswith(
        "DataError: this node has no data: start it with --node-config"
    )


def test_the_wire_needs_no_pickle() -> None:
    """An array of objects is refused by the sender, and by whoever would have to read it."""
    from flwr.app import Array, ArrayRecord

    from clientwise.hosts.flower.wire import unpack

    buffer = io.BytesIO()
    numpy.save(buffer, numpy.array([{"a": 1}], dtype=object), allow_pickle=True)
    forged = Array("object", (1,), "numpy.ndarray", buffer.getvalue())
    with pytest.raises(ValueError, match="allow_pickle"):
        unpack(ArrayRecord({"data": forged}))
