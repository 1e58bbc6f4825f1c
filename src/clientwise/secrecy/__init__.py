"""Secure aggregation (`masks/`), and the accountant of differential privacy (`accountant.py`).

What a round computes with them is in `core/secrecy.py` and `core/privacy.py`.
"""
