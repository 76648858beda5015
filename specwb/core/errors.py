"""The base class of all exceptions that this package defines, and the plainest of them."""


class SpecwbError(Exception):
    """Something that was given to specwb, or that it met, cannot be used; the message says what.

    Every exception of the package derives from it and from the built-in kind that fits (ValueError,
    RuntimeError, ImportError), so both ``except SpecwbError`` and ``except ValueError`` catch it.
    """


class ArgumentError(SpecwbError, ValueError):
    """An argument that cannot be used: it has another type, lies out of its range, or does not fit
    the others. What has a kind of its own (prompts, methods, models) has an exception of its own.
    """
