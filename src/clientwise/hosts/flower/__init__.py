"""Clients reached through Flower: strategies for your own app, and the engine that runs an experiment on it."""

import os

# No usage statistics are sent. Flower and Ray read these variables when they are imported.
for _switch, _value in {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's future default; avoids its warning
}.items():
    os.environ.setdefault(_switch, _value)
