"""Clients reached through other frameworks. All hosts share one guard, one weighing and one record.

`aggregator.py` is for any framework; `flower/` and `nvflare.py` are for two of them. `deployment/` secures a federation
of real sites on Flower. See docs/aggregator.md.
"""
