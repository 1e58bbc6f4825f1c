"""Clients spread over the machines or GPUs of a Ray cluster."""
