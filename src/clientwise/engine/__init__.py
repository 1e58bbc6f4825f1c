"""Engines: where clients live. The protocol is `core.types.Engine`."""
