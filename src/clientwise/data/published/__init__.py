"""Published datasets, one file each. `data/datasets.py` imports them, which registers them."""
