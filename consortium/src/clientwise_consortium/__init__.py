"""Federated learning in hospitals with clientwise: approvals, a ledger, sealed messages, masked sums, a signed record."""
