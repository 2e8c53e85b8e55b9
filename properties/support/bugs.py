"""What is expected of the catalogue's bugs, runner by runner, as the tests of subjects ask it."""

from subjects.bugs.catalogue import BUGS, runners_of


def affected_runners(bug: str) -> frozenset[str]:
    """Return the runners in which a bug can be detected."""
    return frozenset(runners_of(BUGS[bug]))
