"""Clients reached through other frameworks. All hosts share one guard, one weighing and one record.

`aggregator.py` is for any framework, `flower/` for one of them. See docs/frameworks.md.
"""
