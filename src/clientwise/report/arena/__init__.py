"""The report of a matrix of runs."""
