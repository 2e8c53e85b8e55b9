"""The size of what is explored, whatever the engine."""

from dataclasses import dataclass

from paritybit.explore.laws import Tokens

OUTPUT = 1
"""The token that each request is given: outputs can then be prefixes of prompts."""


@dataclass(frozen=True)
class Bound:
    """The size of what is explored: pages in the pool, requests at a time, tokens in a page.

    `window` and `budget` count the tokens of a sliding window and those computed in a step.
    """

    slots: int = 14
    requests: int = 2
    page_size: int = 1
    window: int = 3
    budget: int = 3

    @property
    def longest(self) -> int:
        """The most tokens of a request, which then ends."""
        return 3 * self.page_size + 3

    @property
    def prompts(self) -> tuple[Tokens, ...]:
        """The prompts of requests: two share two pages, and the third shares none."""
        shared = (OUTPUT,) * (2 * self.page_size)
        return (*shared, OUTPUT), (*shared, 2), (2, *shared)
