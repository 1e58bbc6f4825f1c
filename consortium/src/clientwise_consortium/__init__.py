"""Federated learning in hospitals: approvals, a ledger, sealed messages, masked sums and a signed record."""

import os

# No usage statistics are sent. Flower reads these variables when it is imported.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
