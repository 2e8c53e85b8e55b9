"""Chains of token hashes. The hash at a position stands for all tokens of a request up to it.

Equal token sequences have equal hashes in all requests, so a shared prefix has one hash. If the
host does not know a token yet, the hash at its position and all hashes after it are *provisional*:
they depend on the request, and are odd. When the token becomes known, an *alias* maps each
provisional hash to the final hash. Final hashes are even, and never 0.

A draft token may be known at first and unknown later, until the host knows whether it was accepted.
Its hash is kept until then.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

UNKNOWN = 0
"""The hash of a slot whose tokens are unknown."""

MOST_TOKENS = 4_000_000
MOST_ALIASES = 1_000_000
MOST_REPLACED = 8

NEWEST = 8
"""The number of last tokens that often become known."""


@dataclass
class Chain:
    """The tokens of one request, and the hash at each position. `start` precedes the first hash."""

    start: int = UNKNOWN
    tokens: list[int | None] = field(default_factory=list)
    hashes: "array[int]" = field(default_factory=lambda: array("q"))
    replaced: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    """Tokens that were replaced, by position: the hash before the token, its hash, the token."""


@dataclass
class Chains:
    """The chains of recent requests.

    A request that was forgotten is hashed again. If an alias was forgotten, slots with its
    provisional hash cannot be judged.
    """

    chains: OrderedDict[str, Chain] = field(default_factory=OrderedDict)
    aliases: OrderedDict[int, int] = field(default_factory=OrderedDict)
    token_count: int = 0
    emptied: int = 0
    """How often a cache was emptied. Equal tokens have other hashes afterwards."""

    def hashes(
        self, request: str, tokens: Sequence[int | None], length: int, space: str = ""
    ) -> "array[int]":
        """Return the hashes at the first `length` positions of a request with these tokens.

        Hashes are 64-bit integers. Requests of different spaces have no hash in common.
        """
        chain = self.chains.get(request)
        if chain is None:
            within = f"{self.emptied} {space}" if self.emptied else space
            chain = self.chains[request] = Chain(begun(within) if within else UNKNOWN)
        self.chains.move_to_end(request)
        before = len(chain.tokens)
        self.update(chain, request, [*tokens[:length]] if len(tokens) > length else [*tokens])
        self.token_count += len(chain.tokens) - before
        while self.token_count > MOST_TOKENS and len(self.chains) > 1:
            _, old = self.chains.popitem(last=False)
            self.token_count -= len(old.tokens)
        while len(self.aliases) > MOST_ALIASES:
            self.aliases.popitem(last=False)
        return chain.hashes[:length]

    def empty(self) -> None:
        """Record that a cache was emptied. No request may share KV with an earlier one."""
        self.chains.clear()
        self.token_count, self.emptied = 0, self.emptied + 1

    def token(self, request: str, position: int, value: int) -> int | None:
        """Return the token of a request at a position with this final hash, or None if unknown."""
        chain = self.chains.get(request)
        if chain is None or position >= len(chain.tokens):
            return None
        return chain.tokens[position] if self.final(chain.hashes[position]) == value else None

    def final(self, value: int) -> int:
        """Return the final hash for a provisional hash, or the value itself if none is known."""
        for _ in range(8):
            if value & 1 and value in self.aliases:
                value = self.aliases[value]
        return value

    def update(self, chain: Chain, request: str, tokens: list[int | None]) -> None:
        """Update a chain to `tokens`. Does nothing if they are the first tokens of the chain.

        As long as tokens only became known, each old hash gets an alias to the new one.
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
                self.aliases[old] = previous
            if not same and old_token is not None and old & 1:
                replaced = chain.replaced.setdefault(position, [])
                replaced.append((before_old, old, old_token))
                del replaced[:-MOST_REPLACED]
            if token is not None:
                for earlier, value, known in chain.replaced.pop(position, ()):
                    if known == token and self.final(earlier) == self.final(before):
                        self.aliases[value] = previous
        if not previous & 1:
            rest = tokens[max(first, again) :]
            known_tokens = rest[: rest.index(None)] if None in rest else rest
            hashes.extend(final_hashes(previous, known_tokens))
            previous = hashes[-1] if hashes else chain.start
        for position in range(len(hashes), len(tokens)):
            previous = following(previous, tokens[position], request, position)
            hashes.append(previous)
        chain.tokens, chain.hashes = tokens, hashes


def begun(space: str) -> int:
    """Return a hash with which the chains of a space begin, the same in each process."""
    digest = blake2b(space.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) & ~1


def first_difference(one: list[int | None], other: list[int | None]) -> int:
    """Return the first index at which two lists differ, or the length of the shorter list.

    Slices are compared faster than elements, and most often only the last tokens became known.
    """
    last = min(len(one), len(other))
    first = max(0, last - NEWEST)
    if one[:first] == other[:first]:
        return next((at for at in range(first, last) if one[at] != other[at]), last)
    first, last = 0, first
    while last - first > 1:
        middle = (first + last) // 2
        if one[first:middle] == other[first:middle]:
            first = middle
        else:
            last = middle
    return first


def final_hashes(previous: int, tokens: Sequence[int | None]) -> list[int]:
    """Return the hash after each of some known tokens, as `following` computes it."""
    hashes = []
    for token in tokens:
        previous = (hash((previous, token)) & ~1) or 2
        hashes.append(previous)
    return hashes


def following(previous: int, token: int | None, request: str, position: int) -> int:
    """Return the hash after one more token. It is odd if this or an earlier token is unknown."""
    if token is None:
        return hash((previous, request, position)) | 1
    value = hash((previous, token))
    return value | 1 if previous & 1 else (value & ~1) or 2
