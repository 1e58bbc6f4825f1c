"""Reports on runs: documents of charts and tables, in the terminal, as files and on a live page.

`views.py` lists the sections of a report, `sections/` makes them, and `audit/` explains weights. `document.py` defines
documents, `output/` renders them, and `server/` serves the live page. `arena/` reports on a matrix.
"""
