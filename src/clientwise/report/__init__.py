"""What a run shows: documents of charts and tables, in the terminal, as files and on a live page."""
