"""An NVFlare client as one writes it; clientwise reads `dataset_size` from its meta data."""

from __future__ import annotations

import argparse

import nvflare.client as flare
from task import Net, accuracy, samples_of, train

parser = argparse.ArgumentParser()
parser.add_argument("--sites", type=int, required=True)
parser.add_argument("--poisoned", default="", help="the site whose labels are wrong")
options = parser.parse_args()

flare.init()
site = flare.get_site_name()
images, labels = samples_of(int(site.rsplit("-")[-1]), options.sites)
if site == options.poisoned:
    labels = 9 - labels
while flare.is_running():
    received = flare.receive()
    model = Net()
    model.load_state_dict(received.params)
    metrics = {"accuracy": accuracy(model, images, labels)}
    train(model, images, labels)
    flare.send(
        flare.FLModel(
            params=model.state_dict(), metrics=metrics, meta={"dataset_size": len(labels)}
        )
    )
