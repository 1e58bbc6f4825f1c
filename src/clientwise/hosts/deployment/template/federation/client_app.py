"""The client: trains, measures criteria and evaluates models. Only numbers and models leave it."""

from pathlib import Path

from clientwise.flower import client_app

app = client_app(Path(__file__).with_name("experiment.toml"))
