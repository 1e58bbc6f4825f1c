"""Engines around another engine: hostile clients, devices that take time, clients alone."""
