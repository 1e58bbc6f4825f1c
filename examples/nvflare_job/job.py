"""The job: python job.py runs it in NVFlare's simulator, python job.py --poc in real processes."""

from __future__ import annotations

import argparse
from pathlib import Path

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import PocEnv, SimEnv
from server import DigitsAggregator
from task import Net

NUM_SITES = 4

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workspace", default="workspace", help="folder of the simulator")
    parser.add_argument("--poc", action="store_true", help="a server and sites as processes")
    options = parser.parse_args()
    recipe = FedAvgRecipe(
        name="digits",
        model=Net(),
        min_clients=NUM_SITES,
        num_rounds=5,
        train_script="client.py",
        train_args=f"--sites {NUM_SITES} --poisoned site-4",
        aggregator=DigitsAggregator(num_classes=10, learning_rate=0.2),  # clientwise
    )
    if options.poc:
        environment = PocEnv(num_clients=NUM_SITES, extra={"login_timeout": 60})
    else:
        environment = SimEnv(num_clients=NUM_SITES, workspace_root=options.workspace)
    run = recipe.execute(environment)
    result = Path(run.get_result(clean_up=False))
    (record,) = result.rglob("run.sqlite")
    print(f"record: {record.parent}")
