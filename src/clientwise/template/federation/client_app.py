"""A client: trains on its own data, measures its criteria, evaluates models. Only numbers and models leave it."""

from pathlib import Path

from clientwise.flower import client_app

app = client_app(Path(__file__).with_name("experiment.toml"))
