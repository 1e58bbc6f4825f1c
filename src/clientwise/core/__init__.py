"""The algorithm. Tensors in, tensors out; no files, no network, no engine, no printing. Start with `round.py`."""
