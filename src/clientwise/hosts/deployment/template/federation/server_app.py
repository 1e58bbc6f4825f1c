"""The server: runs the experiment, or resumes it."""

from pathlib import Path

from clientwise.flower import server_app

app = server_app(Path(__file__).with_name("experiment.toml"))
