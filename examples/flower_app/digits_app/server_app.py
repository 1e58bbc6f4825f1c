"""A Flower server as one writes it, with FedAvg's weights replaced by clientwise's."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from clientwise.flower import Weighted

from .task import accuracy, make_model, server_samples

app = ServerApp()


def server_accuracy(arrays: ArrayRecord) -> float:
    model = make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    return accuracy(model, *server_samples())


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Weighted(
        FedAvg(),  # your strategy
        criteria=["server_accuracy", "label_diversity", "num-examples"],  # the most important first
        measured_here={
            "server_accuracy": server_accuracy
        },  # the others are metrics of the clients' replies
        num_classes=10,  # the number of classes over all clients
    )
    strategy.start(
        grid,
        ArrayRecord(make_model().state_dict()),
        num_rounds=int(context.run_config.get("num-server-rounds", 3)),
        evaluate_fn=lambda server_round, arrays: MetricRecord(
            {"accuracy": server_accuracy(arrays)}
        ),
    )
    for server_round, found in strategy.rounds.items():
        print(
            f"round {server_round}: weights {sorted(round(weight, 3) for weight in found.weights.values())}"
        )
