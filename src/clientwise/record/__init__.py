"""A run folder: config, versions, one SQLite database, checkpoints in safetensors. No pickle.

config.toml                 the resolved config, with every default
versions.json               the versions that ran it
run.sqlite                  what happened, per round and per client (tables: `tables.py`)
checkpoints/lane-N.safetensors           the state of lane N (a method with a seed), to go on with
checkpoints/initial.safetensors          the parameters of a module that was given, with which all seeds began

All SQL is here. `store.py` writes, and `run.py` reads.
"""
