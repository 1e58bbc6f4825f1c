"""Many experiments in one file."""
