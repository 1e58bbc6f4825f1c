"""The report of a matrix: the standings of its methods, as tables and heat maps."""
