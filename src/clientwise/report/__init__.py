"""Reading a run: numbers, tables, figures."""
