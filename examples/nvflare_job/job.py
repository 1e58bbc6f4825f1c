"""The job, run in NVFlare's simulator: python job.py [workspace]"""

from __future__ import annotations

import sys

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from server import DigitsAggregator
from task import Net

SITES = 4

if __name__ == "__main__":
    workspace = sys.argv[1] if len(sys.argv) > 1 else "workspace"
    recipe = FedAvgRecipe(
        name="digits",
        model=Net(),
        min_clients=SITES,
        num_rounds=5,
        train_script="client.py",
        train_args=f"--sites {SITES} --poisoned site-4",
        aggregator=DigitsAggregator(num_classes=10, learning_rate=0.2),
    )
    run = recipe.execute(SimEnv(num_clients=SITES, workspace_root=workspace))
    print(f"record: {run.get_result()}/server/simulate_job/clientwise")
