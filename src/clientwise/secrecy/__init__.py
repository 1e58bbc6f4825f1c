"""The accountant of differential privacy; what a round computes with noise is in `core/privacy.py`."""
