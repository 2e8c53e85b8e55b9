"""Contents of a request that must match its tokens: its KV, recurrent state and token row.

The oracle gives the right contents for a request of the eager world. No knowledge of any bug is
used.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from paritybit.harness.explain.further_runs.followed import Checkpoint
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.request_book import RequestBook
from paritybit.harness.lockstep.requests import Request
from paritybit.reference.config import Kind, Role
from paritybit.reference.ops import Ops
from paritybit.reference.oracle import dense_draft_logits, dense_logits, heads, recurrent_states
from paritybit.reference.state_pool import Section
from torch import Tensor


def request_of(book: RequestBook, serial: int) -> Request | None:
    """Return a request of a world, running or retracted."""
    return next((one for one in (*book.running, *book.retracted) if one.serial == serial), None)


@dataclass(frozen=True)
class Content:
    """A token of a request, or what a cache holds of it. `right` is the right value, float64.

    KV is that of one layer of a model. State covers all tokens up to `column`.
    """

    what: Literal["token", "state", "KV"]
    column: int
    right: Tensor
    role: Role = Role.TARGET
    layer: int = 0
    kind: Kind = Kind.FULL

    @property
    def name(self) -> str:
        """The content in words."""
        if self.what == "token":
            return f"token {self.column}"
        if self.what == "state":
            return f"recurrent state after token {self.column}"
        return f"{self.role} KV of token {self.column} in layer {self.layer}"

    def where(self, place: int) -> str:
        """Return the name of the slot or row that it is in."""
        if self.what == "token":
            return f"token row {place}"
        return f"state slot {place}" if self.what == "state" else f"{self.kind} slot {place}"

    def like(self, other: "Content") -> bool:
        """Whether it has the same kind as another content."""
        return (self.what, self.role) == (other.what, other.role)

    def claimed(self, request: Request) -> bool:
        """Whether a request claims to have it."""
        if self.what == "token":
            return self.column < request.known
        if self.role is Role.DRAFT:
            return self.column < request.drafted
        return request.allocation is not None and self.column < request.length

    def place(self, book: RequestBook, request: Request) -> int | None:
        """Return the slot or row that it is in, or None."""
        held = request.allocation
        if self.what == "token":
            return request.token_row
        if held is None or self.what == "state":
            return None if held is None else held.state_slot
        page, offset = divmod(self.column, book.pools.sizes.page_size)
        pages = held.full_pages if self.kind is Kind.FULL else held.swa_pages
        found = pages[page] if page < len(pages) else None
        return None if found is None else found * book.pools.sizes.page_size + offset

    def stored(self, book: RequestBook, place: int) -> Tensor:
        """Return the view of the contents of a slot or row."""
        if self.what == "token":
            return book.tokens[place, self.column]
        if self.what == "state":
            return book.pools.state.sections[Section.RECURRENT][place, 0]
        return book.pools[self.role].cache(self.layer)[:, place : place + 1]

    def is_right(self, stored: Tensor, ops: Ops, bound: float) -> bool:
        """Whether the stored value is right, within a rounding bound."""
        if self.what == "KV" and stored.shape[-1] != self.right.shape[-1]:
            stored = ops.dequantised(stored)
        error = (stored.cpu().double() - self.right).abs() / (1 + self.right.abs())
        return bool(error.max() <= bound)

    def put(self, book: RequestBook, place: int, ops: Ops) -> None:
        """Store the right value."""
        stored = self.stored(book, place)
        right = self.right.to(stored)
        if self.what == "KV":
            right = torch.stack(ops.as_stored(stored, *right))
        stored.copy_(right)


class Contents:
    """The contents of one request of a pair, compared with the oracle.

    `at` is the first checkpoint with wrong contents. Those in `wrong` are all of one kind.
    """

    def __init__(self, pair: Pair, serial: int, bound: float) -> None:
        self.pair, self.book, self.serial, self.bound = pair, pair.eager, serial, bound
        self.ops = pair.trial.ops()
        self.tokens: list[int] = []
        self.at: Checkpoint | None = None
        self.wrong: list[Content] = []
        self.place: int | None = None
        self.both = False

    def look(self, at: Checkpoint) -> None:
        """Look for wrong contents at a checkpoint, unless some were found before."""
        request = request_of(self.book, self.serial)
        wrong = [] if self.at is not None or request is None else self._wrong(request)
        if request is not None and wrong:
            first, other = wrong[0], request_of(self.pair.graph, self.serial)
            self.wrong = [one for one in wrong if one.like(first)]
            self.at, self.place = at, first.place(self.book, request)
            self.both = other is not None and not self.right(first, self.pair.graph, other)

    def _wrong(self, request: Request) -> list[Content]:
        """Return the contents that are wrong now. The tokens are followed from the first."""
        row = self.book.tokens[request.token_row].tolist()
        self.tokens = self.tokens or list(request.prompt_tokens)
        self.tokens += row[len(self.tokens) : request.known]
        return [one for one in self.of(request) if not self.right(one, self.book, request)]

    def right(self, one: Content, book: RequestBook, request: Request) -> bool:
        """Whether a content is stored right in one world."""
        place = one.place(book, request)
        return place is not None and one.is_right(one.stored(book, place), self.ops, self.bound)

    def elsewhere(self, one: Content) -> list[int]:
        """Return the slots of the eager world that hold the right KV."""
        book = self.book
        slots = range(book.pools.sizes.slots(one.kind))
        return [
            slot for slot in slots if one.is_right(one.stored(book, slot), self.ops, self.bound)
        ]

    def of(self, request: Request) -> Iterator[Content]:
        """Yield the contents of a request that future queries see, dependencies first."""
        book, models = self.book, self.pair.models
        tokens = torch.tensor(self.tokens)
        for column, token in enumerate(tokens):
            yield Content("token", column, token.double())
        if request.allocation is not None and request.length:
            length, tracked, layers = request.length, book.tracked(request), list[Tensor]()
            dense_logits(
                models[Role.TARGET],
                tokens[:length],
                request.mrope_delta,
                request.encoder_len,
                tracked=tracked,
                lora_id=request.lora_id,
                layers=layers,
            )
            if tracked:
                state = recurrent_states(models[Role.TARGET], tokens[:length])[-1]
                yield Content("state", length - 1, state)
            yield from self._kv(request, Role.TARGET, layers, request.mrope_delta)
        drafted = min(request.drafted, request.known - 1)
        if drafted > 0:
            hidden, layers = book.hidden_states[request.token_row, :drafted], []
            draft = models[Role.DRAFT]
            dense_draft_logits(draft, tokens[1 : drafted + 1], hidden, layers=layers)
            yield from self._kv(request, Role.DRAFT, layers, 0)
        if request.drafted > drafted:  # The draft KV of a token without a successor yet.
            none = book.pools[Role.DRAFT].cache(0)[:, :1].cpu().double() * torch.nan
            kind = models[Role.DRAFT].config.layers[0]
            yield Content("KV", drafted, none, Role.DRAFT, 0, kind)

    def _kv(
        self, request: Request, role: Role, layers: Sequence[Tensor], delta: int
    ) -> Iterator[Content]:
        """Yield the KV of a model, token by token, given the inputs of its layers."""
        config, seen = self.pair.models[role].config, self.book.seen_from(request)
        both = [
            torch.stack(heads(self.pair.models[role], layer, hidden, delta)[1:])
            for layer, hidden in enumerate(layers[:-1])
        ]
        for column in range(len(layers[0])):
            for layer, kind in enumerate(config.layers):
                if kind is Kind.FULL or column >= seen:
                    right = both[layer][:, :, column, None].transpose(1, 2)
                    yield Content("KV", column, right, role, layer, kind)

    def fix(self, like: Content) -> None:
        """Correct the wrong contents of one kind in both worlds.

        Draft KV without a place, or without a right value, lowers the request's count of drafted
        tokens instead.
        """
        request = request_of(self.book, self.serial)
        wrong = [] if request is None else [one for one in self._wrong(request) if one.like(like)]
        for book in (self.book, self.pair.graph):
            request = request_of(book, self.serial)
            for one in wrong if request is not None else ():
                assert request is not None
                place = one.place(book, request)
                if place is not None and not one.right.isnan().any():
                    one.put(book, place, self.ops)
                elif one.role is Role.DRAFT:
                    request.drafted = min(request.drafted, one.column)
