"""Build what an experiment runs with."""
