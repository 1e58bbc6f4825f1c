"""Criteria to weights: normalisers, scores, bounds."""
