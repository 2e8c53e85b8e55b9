"""What every explained step lives in."""

import pytest

from properties.support.fixtures import captures_when_needed

__all__ = ["captures_when_needed"]


@pytest.fixture(autouse=True)
def few_captures(captures_when_needed: None) -> None:
    """Each engine captures what its schedule needs."""
