"""The one exception type of equinorm, and its variant for a wrong argument."""


class EquinormError(Exception):
    """Something equinorm cannot do; the message names the place and says what to do about it."""


class ArgumentError(EquinormError, ValueError):
    """An argument, weight or file that cannot be used as it is."""
