"""Experiments: the config, validated, run and recorded.

`load.py` reads a config, `config/` validates it, `checks/` refuses what cannot run, `build/` makes data, network and
engine, and `running/` runs all methods and seeds. `matrix/` runs many experiments, `tune.py` searches parameters.
"""
