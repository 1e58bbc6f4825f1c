"""The server: runs the experiment round by round, or goes on with it."""

from pathlib import Path

from clientwise.flower import server_app

app = server_app(Path(__file__).with_name("experiment.toml"))
