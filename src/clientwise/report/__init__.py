"""Reports on runs: tables, charts and texts, in the terminal, on a page and as files.

`items.py` defines them, `sections.py` and `matrix.py` make them from frames, and `audit/` explains weights.
`terminal.py`, `page.py`, `files.py` and `charts.py` show them.
"""
