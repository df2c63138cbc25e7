"""Errors that methods raise. Imports no torch, so that any process may match them by class."""


class Unsupported(Exception):
    """A method can't run the workload; the message gives the reason."""
