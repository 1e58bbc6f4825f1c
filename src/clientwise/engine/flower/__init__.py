"""Clients reached through Flower: `server.py` asks, `client.py` answers, `wire.py` is all that travels between them.

Importing this package switches off what Flower and Ray would report to their makers. It needs `clientwise[flower]`.
"""

import os

# Both read these when they are imported, so they are set before either is.
for _switch, _value in {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what Ray will do anyway, without the warning that it will
}.items():
    os.environ.setdefault(_switch, _value)
