"""`python -m clientwise` is the command."""

from .cli import main

main()
