"""Experiments: one TOML file, validated, run and recorded."""
