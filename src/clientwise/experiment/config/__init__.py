"""The config: what may be written, and how it is read."""
