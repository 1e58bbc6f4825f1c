"""A run folder: the resolved config, the versions, one SQLite database, checkpoints in safetensors. No pickle anywhere.

config.toml                 the resolved config: every default written out
versions.json               what ran it
run.sqlite                  what happened, per round and per client: the tables are in `schema.py`
checkpoints/lane-N.safetensors   where method × seed number N can go on, or ended
checkpoints/lane-N-round-K.safetensors   the model after round K, where `keep_every` asks for it or none was better

All SQL is here: `writer.py` writes, `reader.py` reads, and nobody else knows the tables.
"""
