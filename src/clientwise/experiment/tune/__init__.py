"""Tuning parameters of all methods with equal budgets."""
