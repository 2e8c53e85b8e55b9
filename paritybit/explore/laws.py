"""The laws for slots, for all engines. A shadow records which tokens were written to each slot."""

from collections.abc import Iterable, Sequence

from paritybit.explore.search import ViolationError

Tokens = tuple[int, ...]


class Shadow:
    """The group and the tokens for which each slot was last written. Its own token is the last.

    A slot has one entry for all groups, because they may share a pool.
    """

    def __init__(self) -> None:
        self.written: dict[int, tuple[int, Tokens]] = {}

    def write(self, group: int, slot: int, tokens: Tokens) -> None:
        """Record that a slot was written for the last of these tokens."""
        self.written[slot] = group, tokens

    def read(self, group: int, slots: Sequence[int | None], tokens: Tokens, who: str) -> None:
        """Check the slots that a query reads: the last positions of `tokens`, None for no slot."""
        first = len(tokens) - len(slots)
        for position, slot in enumerate(slots, first):
            wanted = tokens[: position + 1]
            if slot is None:
                raise ViolationError(
                    f"wrong list: {who} reads position {position} of group {group}, which has no "
                    "slot: it was evicted from the window too early"
                )
            held = self.written.get(slot)
            if held != (group, wanted):
                what = "was never written" if held is None else f"holds {content(held)}"
                raise ViolationError(
                    f"wrong owner: {who} reads position {position} of group {group}, slot {slot}, "
                    f"for {text(wanted)}, but the slot {what}"
                )

    def cached(self, group: int, slots: Iterable[int], prefix: Tokens) -> None:
        """Check the slots in the prefix cache for the last positions of `prefix`."""
        listed = list(slots)
        for position, slot in enumerate(listed, len(prefix) - len(listed)):
            held = self.written.get(slot)
            if held != (group, prefix[: position + 1]):
                holds = "nothing" if held is None else content(held)
                raise ViolationError(
                    f"wrong owner: the prefix cache keeps slot {slot} of group {group} for "
                    f"{text(prefix[: position + 1])}, but it holds {holds}"
                )


def ownership(
    free: Sequence[int],
    holders: dict[int, list[str]],
    pages: Iterable[int],
    pool: str = "",
) -> None:
    """Check that each page is either free once, or held once, by `holders`."""
    twice = sorted({page for page in free if free.count(page) > 1})
    if twice:
        raise ViolationError(f"double free: page {twice[0]}{pool} is in the free list twice")
    for page in pages:
        held, name = holders.get(page, []), f"page {page}{pool}"
        if page in free and held:
            raise ViolationError(f"freed in use: {name} is free, and {held[0]} holds it")
        if page not in free and not held:
            raise ViolationError(f"leak: {name} is neither free nor held")
        if len(held) > 1:
            raise ViolationError(
                f"wrong owner: {name} is given back by both {held[0]} and {held[1]}"
            )


def content(held: tuple[int, Tokens]) -> str:
    """Return the content of a slot as text."""
    return f"{text(held[1])} of group {held[0]}"


def text(tokens: Tokens) -> str:
    """Return tokens as text."""
    return f"[{' '.join(map(str, tokens))}]"
