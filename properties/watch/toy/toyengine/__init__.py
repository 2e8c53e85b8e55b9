"""A toy engine: two KV groups, a prefix cache, and decode graphs with padded buckets.

It knows nothing of paritybit. Requests are greedy; a token attends to all earlier ones in the
group "full", and to the last WINDOW in the group "swa".
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

VOCABULARY, WIDTH, WINDOW, MOST, BUCKETS = 64, 8, 4, 32, (2, 4)
GROUPS = ("full", "swa")


@dataclass
class Request:
    """A request: its tokens, and per group the slot of each position (-1: freed)."""

    name: str
    tokens: list[int]
    cached: int = 0
    slots: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in GROUPS})


@dataclass
class Transfer:
    """A copy of the first positions of a request to places on the host, or back."""

    number: int
    request: str
    slots: dict[str, list[int]]
    places: list[int]
    stores: bool
    polls: int = 3
    failed: bool = False


class Allocator:
    """Hands out slots; slot 0 is for padding."""

    def __init__(self, slots: int) -> None:
        self.free_slots = list(range(1, slots))

    def alloc(self) -> int:
        """Return a free slot."""
        return self.free_slots.pop(0)

    def free(self, slots: list[int]) -> None:
        """Take slots back."""
        self.free_slots[:0] = slots


class Graph:
    """A decode graph of one bucket: static inputs, and a callable over them."""

    def __init__(self, engine: "Engine", bucket: int) -> None:
        self.engine, self.bucket = engine, bucket
        rows: dict[str, tuple[int, ...]]
        rows = {"ids": (), "positions": (), "counts_full": (), "counts_swa": ()}
        rows |= {"loc_full": (), "loc_swa": (), "entries_full": (MOST,), "entries_swa": (MOST,)}
        self.static = {
            name: torch.zeros((bucket, *shape), dtype=torch.int64) for name, shape in rows.items()
        }
        self.static["counts_full"].fill_(1)
        self.static["counts_swa"].fill_(1)
        self.capture = {name: value.clone() for name, value in self.static.items()}
        self.logits = torch.zeros(bucket, VOCABULARY)

    def fill(self, batch: dict[str, Tensor]) -> None:
        """Copy a batch into the static inputs, and reset the padding."""
        for name, value in batch.items():
            self.static[name].copy_(self.capture[name])
            self.static[name][: len(value)] = value

    def replay(self, rows: int) -> Tensor:
        """Run; returns the logits of the first rows."""
        self.logits.copy_(self.engine.model(self.static))
        return self.logits[:rows]


class Engine:
    """The engine. `step` runs one forward for all its requests."""

    def __init__(self, slots: int = 48, seed: int = 0) -> None:
        noise = torch.Generator().manual_seed(seed)
        self.weights = [torch.randn(5, WIDTH, WIDTH, generator=noise) / 3 for _ in GROUPS]
        self.embedding = torch.randn(VOCABULARY, WIDTH, generator=noise)
        self.places = torch.randn(MOST, WIDTH, generator=noise)
        self.kv = {name: torch.zeros(2, slots, 1, WIDTH) for name in GROUPS}
        self.allocators = {name: Allocator(slots) for name in GROUPS}
        self.graphs = {bucket: Graph(self, bucket) for bucket in BUCKETS}
        self.running: list[Request] = []
        self.prefixes: dict[tuple[int, ...], dict[str, list[int]]] = {}
        self.host = {name: torch.zeros_like(kv) for name, kv in self.kv.items()}
        self.on_host: dict[object, list[int]] = {}
        self.free_places = list(range(slots))
        self.transfers: list[Transfer] = []
        self.started = 0

    def model(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the logits of a batch of tokens, [tokens, VOCABULARY]."""
        hidden = self.embedding[batch["ids"]] + self.places[batch["positions"]]
        for name, (query, key, value, out, up) in zip(GROUPS, self.weights, strict=True):
            self.kv[name][0][batch[f"loc_{name}"], 0] = torch.tanh(hidden @ key)
            self.kv[name][1][batch[f"loc_{name}"], 0] = torch.tanh(hidden @ value)
            keys, values = self.kv[name][:, :, 0][:, batch[f"entries_{name}"]]
            scores = torch.einsum("tw,tew->te", hidden @ query, keys)
            outside = torch.arange(MOST) >= batch[f"counts_{name}"][:, None]
            scores = scores.masked_fill(outside, -torch.inf).softmax(1)
            values = values.masked_fill(outside[..., None], 0)
            hidden = hidden + torch.tanh(torch.einsum("te,tew->tw", scores, values) @ out @ up)
        return hidden @ self.embedding.T

    def entries(self, name: str, slots: list[int]) -> tuple[list[int], int]:
        """Return what a token attends to, given the slots up to it: padded to MOST, and a count."""
        shown = slots[-WINDOW:] if name == "swa" else slots
        return shown + [0] * (MOST - len(shown)), len(shown)

    def batch(self, requests: list[Request]) -> dict[str, Tensor]:
        """Return the model's inputs for the tokens that requests have not computed yet."""
        places = [(r, p) for r in requests for p in range(r.cached, len(r.tokens))]
        made = {"ids": torch.tensor([r.tokens[p] for r, p in places])}
        made["positions"] = torch.tensor([p for _, p in places])
        for name in GROUPS:
            made[f"loc_{name}"] = torch.tensor([r.slots[name][p] for r, p in places])
            lists = [self.entries(name, r.slots[name][: p + 1]) for r, p in places]
            made[f"entries_{name}"] = torch.tensor([entries for entries, _ in lists])
            made[f"counts_{name}"] = torch.tensor([count for _, count in lists])
        return made

    def match(self, tokens: list[int]) -> int:
        """Return how many leading tokens the prefix cache holds: never all."""
        return max((n for n in range(len(tokens)) if tuple(tokens[:n]) in self.prefixes), default=0)

    def add(self, name: str, tokens: list[int]) -> Request:
        """Start a request: share a prefix, and run its prefill."""
        request = Request(name, list(tokens))
        request.cached = self.match(request.tokens)
        for group in GROUPS:
            shared = self.prefixes.get(tuple(request.tokens[: request.cached]), {})
            request.slots[group] = list(shared.get(group, []))
        self.running.append(request)
        length = max(
            (n for n in range(len(tokens)) if self.key(tokens[:n]) in self.on_host), default=0
        )
        if length > request.cached:
            self.load(request, length)
        self.extend([request])
        return request

    def key(self, tokens: list[int]) -> object:
        """Return the key of a prefix on the host."""
        return tuple(tokens)

    # Copies to the host and back, which take some forwards.

    def offload(self, request: Request, keep: int) -> None:
        """End a request whose first `keep` positions go to the host."""
        self.running.remove(request)
        for group, mine in request.slots.items():
            self.allocators[group].free(mine[keep:])
        slots = {group: mine[:keep] for group, mine in request.slots.items()}
        places, self.free_places = self.free_places[:keep], self.free_places[keep:]
        self.start(Transfer(self.number(), request.name, slots, places, stores=True))
        self.on_host[self.key(request.tokens[:keep])] = places

    def load(self, request: Request, length: int) -> None:
        """Load the first positions of a request from the host, and wait for them."""
        for other in [*self.transfers]:
            self.wait(other)
        places = self.on_host[self.key(request.tokens[:length])]
        for group in GROUPS:
            mine = request.slots[group]
            mine += [self.allocators[group].alloc() for _ in range(length - len(mine))]
        slots = {name: mine[request.cached :] for name, mine in request.slots.items()}
        one = Transfer(self.number(), request.name, slots, places[request.cached :], stores=False)
        self.start(one)
        self.wait(one)
        if not one.failed:
            request.cached = length

    def number(self) -> int:
        """Return the number of the next copy."""
        self.started += 1
        return self.started

    def start(self, one: Transfer) -> None:
        """Start a copy."""
        self.transfers.append(one)

    def copy(self, one: Transfer) -> None:
        """Copy the bytes."""
        for name, slots in one.slots.items():
            here, there = self.kv[name], self.host[name]
            if one.stores:
                there[:, one.places] = here[:, slots]
            else:
                here[:, slots] = there[:, one.places]

    def finished(self, one: Transfer) -> None:
        """End a copy that is over."""
        self.transfers.remove(one)
        if one.stores:
            for group, slots in one.slots.items():
                self.allocators[group].free(slots)

    def wait(self, one: Transfer) -> None:
        """Wait for a copy and all before it."""
        while one in self.transfers:
            self.complete(self.transfers[0])

    def complete(self, one: Transfer) -> None:
        """Complete a copy."""
        if not one.failed:
            self.copy(one)
        self.finished(one)

    def poll(self) -> None:
        """Complete the copies whose time has come."""
        for one in [*self.transfers]:
            one.polls -= 1
            if one.polls <= 0:
                self.complete(one)

    def obtain(self, requests: list[Request]) -> None:
        """Give each token that is not computed a slot in each group."""
        for request in requests:
            for group in GROUPS:
                while len(request.slots[group]) < len(request.tokens):
                    request.slots[group].append(self.allocators[group].alloc())

    def extend(self, requests: list[Request]) -> None:
        """Run a prefill eagerly."""
        self.obtain(requests)
        self.forward("extend", requests)

    def decode(self) -> None:
        """Run one decode step of all requests."""
        self.obtain(self.running)
        self.forward("decode", self.running)

    def forward(self, kind: str, requests: list[Request]) -> None:
        """Run one forward and append a token to each request."""
        batch = self.batch(requests)
        self.poll()
        logits = self.model(batch) if kind == "extend" else self.replayed(batch)
        lengths = torch.tensor([len(r.tokens) - r.cached for r in requests])
        for request, row in zip(requests, logits[lengths.cumsum(0) - 1], strict=True):
            request.cached = len(request.tokens)
            request.tokens.append(int(row.argmax()))

    def replayed(self, batch: dict[str, Tensor]) -> Tensor:
        """Run a batch by the graph of the smallest bucket that holds it."""
        rows = len(batch["ids"])
        graph = self.graphs[min(bucket for bucket in BUCKETS if bucket >= rows)]
        graph.fill(batch)
        return graph.replay(rows)

    def finish(self, request: Request, keep: int = 0) -> None:
        """End a request; its first `keep` tokens stay in the prefix cache."""
        self.running.remove(request)
        for length in range(1, keep + 1):
            part = {group: slots[:length] for group, slots in request.slots.items()}
            self.prefixes.setdefault(tuple(request.tokens[:length]), part)
        for group in GROUPS:
            cached = self.cached(group)
            self.allocators[group].free([s for s in request.slots[group] if s not in cached])

    def cached(self, group: str) -> set[int]:
        """Return the slots that the prefix cache holds."""
        return {slot for part in self.prefixes.values() for slot in part[group]}
