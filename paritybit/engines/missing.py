"""What an engine lacks here, or asks for in vain: errors that end a leg as undecided."""


class PartMissingError(Exception):
    """The engine has no part of a name that is looked for, or the part does not work here."""


class UndeclaredError(PartMissingError, AttributeError):
    """The engine asked a stand-in for a name that nobody declared.

    It is an AttributeError too: an engine that asks with a default, or whether there is such a
    name, learns what it would of any object without it.
    """


class StandInUsedError(PartMissingError):
    """The engine called, compared, listed or asked the truth of a stand-in outside an import."""
