"""Reading a run folder, one subject a file. `folder.py` joins them: `RunFolder`. `rows.py` has the rows."""
