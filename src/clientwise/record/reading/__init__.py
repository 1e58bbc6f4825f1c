"""Reading a run folder, one subject a file."""
