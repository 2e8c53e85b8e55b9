"""Errors for missing parts of an engine, and for undeclared settings."""


class PartMissingError(Exception):
    """The engine lacks a part, or the part does not work here."""


class UndeclaredError(PartMissingError, AttributeError):
    """The engine read an undeclared name of a stand-in.

    It is also an AttributeError, so `getattr` with a default and `hasattr` work as usual.
    """


class StandInUsedError(PartMissingError):
    """The engine called, compared, listed or tested a stand-in outside of an import."""
