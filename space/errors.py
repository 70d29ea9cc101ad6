"""The one exception for input that cannot be accepted."""

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 60


class BadInput(ValueError):
    """A value from outside is wrong. The message is one line that names the value and what would be valid."""


def shown(value: object) -> str:
    """A value as messages show it: shortened in the middle when it is longer than 60 characters."""
    return _SHORT.repr(value)
