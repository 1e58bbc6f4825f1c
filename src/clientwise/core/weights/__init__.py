"""From criteria to weights: normalisers (`weighting.py`), scores, policy and bounds, and the order of priority (P2)."""
