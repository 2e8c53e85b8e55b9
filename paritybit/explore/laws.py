"""The laws for slots, for all engines. A shadow records which tokens were written to each slot."""

from collections.abc import Iterable, Sequence

from paritybit.explore.search import ViolationError

Tokens = tuple[int, ...]


class Shadow:
    """The group and the tokens for which each slot was last written. Its own token is the last.

    Groups that share a pool overwrite each other's slots, so a slot has one entry for all groups.
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
        """Check slots in the prefix cache. They belong to the last positions of `prefix`."""
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
    free: Sequence[int], holders: dict[int, list[str]], counts: dict[int, int], all_: Iterable[int]
) -> None:
    """Check that each page is either free once, or held as often as its reference count.

    - `free`: the free pages, including cached pages that can be evicted.
    - `holders`: the running requests that hold each page.
    - `counts`: the reference counts of the engine.
    - `all_`: all pages to check.
    """
    twice = sorted({page for page in free if free.count(page) > 1})
    if twice:
        raise ViolationError(f"double free: page {twice[0]} is in the free list twice")
    for page in all_:
        held = holders.get(page, [])
        if page in free and held:
            raise ViolationError(f"freed in use: page {page} is free, and {held[0]} holds it")
        if page not in free and not held:
            raise ViolationError(f"leak: page {page} is neither free nor held by a request")
        if counts[page] != len(held):
            raise ViolationError(
                f"wrong count: page {page} has the count {counts[page]}, and {len(held)} "
                "requests hold it"
            )


def content(held: tuple[int, Tokens]) -> str:
    """Return the content of a slot as text."""
    return f"{text(held[1])} of group {held[0]}"


def text(tokens: Tokens) -> str:
    """Return tokens as text."""
    return f"[{' '.join(map(str, tokens))}]"
