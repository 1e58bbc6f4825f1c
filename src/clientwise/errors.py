"""The one base class of everything a user can put right; the command prints it without a traceback."""


class ClientwiseError(Exception):
    """Something the user can put right: the message says what."""
