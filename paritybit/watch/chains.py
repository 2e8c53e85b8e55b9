"""Chains of token hashes: the hash at a position stands for all tokens of a request up to it.

Equal tokens have equal hashes, whichever request they belong to, so a shared prefix is one. A
token that the host does not know yet has a placeholder of its own: its hash, and the hashes after
it, are *provisional*, and are odd. Once the token is known, an alias leads from each provisional
hash to the final one. All final hashes are even and none is 0.

A token may also be known first, as a draft, and not known while the host does not know whether it
was accepted. The provisional hash that it had is kept until then.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

UNKNOWN = 0
"""The hash of a slot about whose tokens nothing is known."""

MOST_TOKENS = 4_000_000
MOST_ALIASES = 1_000_000
MOST_REPLACED = 8


@dataclass
class Chain:
    """The tokens of one request, and the hash at each position. `start` stands before them."""

    start: int = UNKNOWN
    tokens: list[int | None] = field(default_factory=list)
    hashes: "array[int]" = field(default_factory=lambda: array("q"))
    replaced: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    """By position, tokens that others took the place of: the hash before, the hash, the token."""


@dataclass
class Chains:
    """The chains of all requests seen lately.

    A request that is forgotten is hashed again from its tokens. An alias that is forgotten leaves
    a provisional hash that means nothing: such a slot cannot be judged.
    """

    chains: OrderedDict[str, Chain] = field(default_factory=OrderedDict)
    aliases: OrderedDict[int, int] = field(default_factory=OrderedDict)
    held: int = 0
    emptied: int = 0
    """How often KV has lost its worth, so that equal tokens from before have other hashes."""

    def hashes(
        self, request: str, tokens: Sequence[int | None], length: int, space: str = ""
    ) -> "array[int]":
        """Return the hashes at the first `length` positions of a request with these tokens.

        They are 64-bit integers. Requests of different spaces share none.
        """
        chain = self.chains.get(request)
        if chain is None:
            within = f"{self.emptied} {space}" if self.emptied else space
            chain = self.chains[request] = Chain(start(within))
        self.chains.move_to_end(request)
        before = len(chain.tokens)
        update(chain, request, list(tokens[:length]), self.aliases)
        self.held += len(chain.tokens) - before
        while self.held > MOST_TOKENS and len(self.chains) > 1:
            _, old = self.chains.popitem(last=False)
            self.held -= len(old.tokens)
        while len(self.aliases) > MOST_ALIASES:
            self.aliases.popitem(last=False)
        return chain.hashes[:length]

    def empty(self) -> None:
        """Let no request share KV with one from before."""
        self.chains.clear()
        self.held, self.emptied = 0, self.emptied + 1

    def known(self, request: str, position: int, token: int) -> None:
        """Note a token that the host knows now."""
        chain = self.chains.get(request)
        if chain is not None and position < len(chain.tokens) and chain.tokens[position] is None:
            tokens = list(chain.tokens)
            tokens[position] = token
            update(chain, request, tokens, self.aliases)

    def final(self, value: int) -> int:
        """Return the final hash for a provisional one, or the value itself if none is known."""
        return final(value, self.aliases)


def final(value: int, aliases: OrderedDict[int, int]) -> int:
    """Return where the aliases lead from a provisional hash, or the value itself."""
    for _ in range(8):
        if value & 1 and value in aliases:
            value = aliases[value]
    return value


def update(
    chain: Chain, request: str, tokens: list[int | None], aliases: OrderedDict[int, int]
) -> None:
    """Make a chain that of `tokens`, if these differ from its first tokens or go on after them.

    While the only difference is that tokens became known, aliases lead from old hashes to new.
    """
    old_tokens, old_hashes = chain.tokens, chain.hashes
    if len(tokens) <= len(old_tokens) and old_tokens[: len(tokens)] == tokens:
        return
    first = first_difference(old_tokens, tokens)
    hashes = old_hashes[:first]
    previous = old = hashes[-1] if hashes else chain.start
    same, again = True, min(len(old_tokens), len(tokens))
    for position in range(first, again):
        token, old_token, before = tokens[position], old_tokens[position], previous
        previous = following(before, token, request, position)
        hashes.append(previous)
        before_old, old = old, old_hashes[position]
        same = same and old_token in (token, None)
        if same and old != previous:
            aliases[old] = previous
        if not same and old_token is not None and old & 1:
            replaced = chain.replaced.setdefault(position, [])
            replaced.append((before_old, old, old_token))
            del replaced[:-MOST_REPLACED]
        if token is not None:
            for earlier, value, known in chain.replaced.pop(position, ()):
                if known == token and final(earlier, aliases) == final(before, aliases):
                    aliases[value] = previous
    if not previous & 1:
        hashes.extend(final_hashes(previous, known_from(tokens, max(first, again))))
        previous = hashes[-1] if hashes else chain.start
    for position in range(len(hashes), len(tokens)):
        previous = following(previous, tokens[position], request, position)
        hashes.append(previous)
    chain.tokens, chain.hashes = tokens, hashes


def known_from(tokens: list[int | None], first: int) -> list[int | None]:
    """Return the tokens from a position on, up to the first that is not known."""
    rest = tokens[first:]
    return rest[: rest.index(None)] if None in rest else rest


def first_difference(one: list[int | None], other: list[int | None]) -> int:
    """Return the first index at which two lists differ, or the shorter one's length."""
    shared = min(len(one), len(other))
    if one[:shared] == other[:shared]:
        return shared
    return next(index for index in range(shared) if one[index] != other[index])


def start(space: str) -> int:
    """Return what stands before the first hash in a space."""
    return hash(space) & ~1 if space else UNKNOWN


def final_hashes(previous: int, tokens: Sequence[int | None]) -> list[int]:
    """Return the hash after each of some tokens that are all known, as `following` gives it."""
    hashes = []
    for token in tokens:
        previous = (hash((previous, token)) & ~1) or 2
        hashes.append(previous)
    return hashes


def following(previous: int, token: int | None, request: str, position: int) -> int:
    """Return the hash after one more token: odd if this or an earlier token is not known."""
    if token is None:
        return hash((previous, request, position)) | 1
    value = hash((previous, token))
    return value | 1 if previous & 1 else (value & ~1) or 2
