"""Reports on runs: documents of charts and tables, in the terminal and as files.

`views.py` lists the sections of a report, `sections/` makes them, and `audit/` explains weights. `document.py` defines
documents, `output/` renders them, and `arena/` reports on a matrix.
"""
