"""The config: its keys, their types and ranges.

`schema.py` has the keys at the top, `settings.py` the tables that all methods share, `methods.py` those of a method.
`methods.toml` has the named methods.
"""
