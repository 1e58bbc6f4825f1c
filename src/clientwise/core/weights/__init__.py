"""From criteria to weights: normalisers (`weighting.py`), scores, bounds, and the order of priority (P2)."""
