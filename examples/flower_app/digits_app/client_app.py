"""A Flower client as one writes it; clientwise adds one line, the measurements among its metrics."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from clientwise.flower import measure

from .task import accuracy, make_model, samples_of, train

app = ClientApp()


@app.train()
def on_train(message: Message, context: Context) -> Message:
    images, labels = samples_of(
        int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    )
    model = make_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    loss = train(model, images, labels)
    metrics = MetricRecord({"num-examples": len(labels), "train-loss": loss})
    # What clientwise weighs by
    metrics.update(measure(["label_diversity"], labels.tolist(), num_classes=10))
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def on_evaluate(message: Message, context: Context) -> Message:
    images, labels = samples_of(
        int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    )
    model = make_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    metrics = MetricRecord(
        {"num-examples": len(labels), "accuracy": accuracy(model, images, labels)}
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
