"""A federation that weighs every client by what it brings."""
