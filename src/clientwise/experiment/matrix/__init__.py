"""Many experiments in one file: `grid.py` lists the cells, `runs.py` runs them."""
