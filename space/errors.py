"""The one exception for input that cannot be accepted."""


class BadInput(ValueError):
    """A value from outside is wrong. The message is one line that names the value and what would be valid."""
