"""The bound of an exploration, for all engines."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from paritybit.explore.laws import Tokens

MOST = 100
"""The most actions of a case, and the largest size of any part of a bound."""

Size = Annotated[int, Meta(ge=1, le=MOST)]

OUTPUT = 1
"""The token that each step samples, so that an output can be a prefix of a prompt."""


@dataclass(frozen=True)
class Bound:
    """The size of an exploration.

    - `slots`: pages in the pool.
    - `requests`: the most requests at a time.
    - `page_size`: tokens in a page.
    - `window`: tokens of a sliding window.
    - `budget`: the most tokens that a step computes.
    - `keys`: tokens in a key of sglang's prefix cache. With EAGLE, a key has two.
    """

    slots: Size = 18
    requests: Size = 2
    page_size: Size = 1
    window: Size = 2
    budget: Size = 4
    keys: Annotated[int, Meta(ge=1, le=2)] = 1

    @property
    def longest(self) -> int:
        """The number of tokens at which a request ends."""
        return self.window + 4 * self.page_size + 3

    @property
    def prompts(self) -> tuple[Tokens, ...]:
        """The prompts of requests.

        The second one differs from the first one with its output after two pages. The third one is
        a next turn, whose prefix is an output longer than a window.
        """
        size = self.page_size
        return (
            (OUTPUT,) * (size + 1),
            (*(OUTPUT,) * (2 * size + 1), 2),
            (OUTPUT,) * (self.window + 4 * size + 1),
        )
