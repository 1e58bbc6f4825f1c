"""From criteria to weights: normalisers (`weighting.py`), scores and bounds."""
