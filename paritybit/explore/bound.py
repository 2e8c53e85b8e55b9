"""The size of what is explored, whatever the engine."""

from dataclasses import dataclass

from paritybit.explore.laws import Tokens

OUTPUT = 1
"""The token that each request is given: outputs can then be prefixes of prompts."""


@dataclass(frozen=True)
class Bound:
    """The size of what is explored: pages in the pool, requests at a time, tokens in a page.

    `window` and `budget` count the tokens of a sliding window and those computed in a step. `keys`
    is the number of tokens in a key of the prefix cache: with drafts of EAGLE, sglang's has two.
    """

    slots: int = 18
    requests: int = 2
    page_size: int = 1
    window: int = 2
    budget: int = 4
    keys: int = 1

    @property
    def longest(self) -> int:
        """The most tokens of a request, which then ends."""
        return self.window + 4 * self.page_size + 3

    @property
    def prompts(self) -> tuple[Tokens, ...]:
        """The prompts of requests.

        The output of the first is longer than a window. The second leaves it after two pages, and
        the third is a next turn, with more output than the window has.
        """
        size = self.page_size
        return (
            (OUTPUT,) * (size + 1),
            (*(OUTPUT,) * (2 * size + 1), 2),
            (OUTPUT,) * (self.window + 4 * size + 1),
        )
