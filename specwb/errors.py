"""The one base class of all exceptions that this package defines."""


class SpecwbError(Exception):
    """Something that was given to specwb, or that it met, cannot be used; the message says what.

    Every exception of the package derives from it and from the built-in kind that fits (ValueError,
    RuntimeError, ImportError), so both ``except SpecwbError`` and ``except ValueError`` catch it.
    """
