"""The states of recurrent layers: which ones kernels get, and which tokens each depends on.

A forward reads the state after a row's cached tokens, and leaves the one after its last token. If
it verifies drafts, it leaves one after each token, since drafts may be rejected. The next forward
starts from the one after the last token that was accepted.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from paritybit.connectors.following import expected
from paritybit.connectors.hooking import maybe
from paritybit.connectors.vllm.pools import States, VllmPool
from paritybit.connectors.vllm.requests import Request
from paritybit.watch.bits import Checksums
from paritybit.watch.facts import Row, StaticInput

MOST = 10_000
"""The number of states that are remembered."""

PLACES = 1 << 20
"""The size of the table of states that are not remembered any more."""

Rows = Sequence[tuple[Request, Row]]


class GivenStates:
    """What the kernels of one of the engine's groups get for the rows of a forward.

    - `drafted`: the numbers of the rows that may have drafts.
    - `accepted`: per row, how many tokens of its last forward were accepted.
    - `inside`: prompts with a state after some of the tokens that they compute, one block before.
    """

    def __init__(self, states: States) -> None:
        self.states = states
        self.whole = None if states.whole is None else Checksums(states.whole)
        self.inputs = [Checksums(group) for group in states.inputs]
        self.drafted: Sequence[int] = ()
        self.accepted: Sequence[int] = ()
        self.inside: Sequence[tuple[Request, Row, int]] = ()

    def blocks(self, request: Request, end: int, before: int = 0) -> list[int]:
        """Return the blocks for states of a forward up to `end`, from some blocks `before` on."""
        return request.blocks[self.states.number][self.states.first(end) - before :]

    def sums(self, blocks: Sequence[int], count: int = 1) -> list[int]:
        """Return the checksums of the state after the first `count` tokens of a forward."""
        if not 0 < count <= min(len(blocks), 1 + self.states.drafts):  # There is none.
            return [0] * ((self.whole is not None) + bool(self.inputs))
        given = [] if self.whole is None else [(self.whole, blocks[count - 1])]
        given += [(self.inputs[count - 1], blocks[0])] if self.inputs else []
        return [int(sums.of(torch.tensor([block]))) for sums, block in given]

    def judged(self, rows: Rows, given: Any) -> Iterator[StaticInput]:
        """Read what the kernels get. Yield which states that are, and which rows go on from one."""
        number, first = self.states.number, min(given.num_decodes, len(rows))  # Or padding.
        order = self.ordered(rows, given)
        decodes, prompts = order[:first], order[first:]
        each = [self.blocks(one, row.cached + row.computed) for one, row in rows]
        indices = {
            "state_indices_tensor_d": decodes,
            "state_indices_tensor_p": prompts,
            # Those of gated delta nets.
            "non_spec_state_indices_tensor": order,
            "prefill_state_indices": prompts,
            "spec_state_indices_tensor": self.drafted,
        }
        for name, mine in indices.items():
            if len(mine) and (held := maybe(given, name)) is not None:
                lines = held[: len(mine)].reshape(len(mine), -1)
                sizes = [max(rows[at][1].computed, self.accepted[at]) for at in mine]
                listed = [line[:size] for line, size in zip(lines, sizes, strict=True)]
                pairs = zip(mine, listed, strict=True)
                right = [block for at, line in pairs for block in each[at][: len(line)]]
                yield expected(f"{name} {number}", torch.cat(listed), right)
        going = [int(row.cached > 0) for _, row in rows]
        goes_on = {
            "has_initial_states_p": prompts,
            "has_initial_states_d": decodes,
            "has_initial_state": order,
            "prefill_has_initial_state": prompts,
        }
        for name, mine in goes_on.items():
            if mine and (held := maybe(given, name)) is not None:
                right = [going[at] for at in mine]
                yield expected(f"{name} {number}", held.flatten()[: len(mine)], right)
        known = maybe(given, "has_initial_states_d") is not None
        decoded = sorted({*self.drafted, *([] if known else decodes)})
        continuing = torch.ones(len(decoded), dtype=torch.int64)
        yield expected(f"decoded rows {number}", continuing, [going[at] for at in decoded])
        self.inside = []
        if (kept := maybe(given, "checkpoint_meta")) is not None:
            values = list[int]()
            for at, more in zip(prompts, kept.offsets, strict=False):
                request, row = rows[at]
                block, *_ = self.blocks(request, row.cached + row.computed, 1) if more else [0]
                values.append(block)
                self.inside = [*self.inside, *([(request, row, more)] if block else [])]
            yield expected(f"checkpoint {number}", kept.state_indices[: len(values)], values)

    def ordered(self, rows: Rows, given: Any) -> list[int]:
        """Return the numbers of rows as kernels get them, without those that may have drafts.

        If the metadata do not say which have drafts, all are returned, and decoding rows are first.
        """
        masks, counts = maybe(given, "spec_sequence_masks_cpu"), maybe(given, "num_accepted_tokens")
        masks = maybe(given, "spec_sequence_masks") if masks is None else masks
        order = [*range(len(rows))]
        if masks is None:
            self.drafted = range(0 if counts is None else min(given.num_decodes, len(rows)))
        else:
            drafted = masks.tolist()
            self.drafted = [at for at in order if drafted[at]]
            order = [at for at in order if not drafted[at]]
            if maybe(given, "non_spec_state_indices_tensor") is None:
                order.sort(key=lambda at: rows[at][1].computed > 1)
        self.accepted = [1] * len(rows)
        if counts is not None:
            for at, count in zip(self.drafted, counts.tolist(), strict=False):
                self.accepted[at] = count
        return order


class VllmStates:
    """The checksums of states after forwards, by the tokens that each depends on.

    Several forwards may compute a state, with other bits. A prompt may start from a state that a
    prompt has left, or that a forward has left at the end of a page: these are remembered.

    If the first few of the tokens of a state are known, only these are compared. If states are
    `loaded` from elsewhere, no forward here need have computed them.
    """

    def __init__(self, pool: VllmPool, loaded: bool = False) -> None:
        self.parts = [GivenStates(one) for one in pool.states]
        self.page, self.loaded = pool.page, loaded
        self.known: dict[int, dict[int, dict[int, list[list[int]]]]] = {}
        """The checksums, by the number of tokens, by that of the known ones, and by their key."""
        self.order = deque[tuple[int, int, int]]()
        self.forgotten = bytearray(PLACES)
        """Whether a state was forgotten, by its key, or by its number of tokens."""
        self.rows: Rows = ()

    def begin(self, rows: Rows, metadata: Any) -> Iterator[StaticInput]:
        """Yield the checksums of the states from which rows start, and what the kernels get."""
        self.rows = rows
        judged = [
            one for part in self.parts for one in part.judged(rows, metadata[part.states.layer])
        ]
        given, right, computed = list[int](), list[int](), list[int]()
        for at, (request, row) in enumerate(rows):
            if not row.cached:
                continue
            end, held = row.cached + row.computed, list[int]()
            for part in self.parts:
                held += part.sums(part.blocks(request, end), part.accepted[at])
            own = request.states.get(row.cached)
            made, others = self.computed(row) if own is None else ([own], False)
            if held in made or (made and not others):
                given += held
                right += held if held in made else made[-1]
            computed.append(int(bool(made) or others or row.cached % self.page > 0))
        yield expected("states", torch.tensor(given, dtype=torch.int64), right)
        if not self.loaded:
            yield expected("computed states", torch.tensor(computed), [1] * len(computed))
        yield from judged

    def computed(self, row: Row) -> tuple[list[list[int]], bool]:
        """Return the states from which a row may start, and whether there may be others."""
        end, mine = row.cached, self.known.get(row.cached, {})
        if known_tokens(row, end) < end:
            return [], True
        whole = key(row, end)
        others = any(key(row, first) in keys for first, keys in mine.items() if first < end)
        forgotten = any(self.forgotten[one % PLACES] for one in (whole, end))
        return mine.get(end, {}).get(whole, []), others or forgotten

    def end(self) -> None:
        """Remember the states that the forward has computed."""
        for at, (request, row) in enumerate(self.rows):
            end = row.cached + row.computed
            drafted = any(at in part.drafted for part in self.parts)
            request.states = dict[int, list[int]]()
            for count in range(1, 1 + row.computed if drafted else 2):
                after, held = row.cached + count if drafted else end, list[int]()
                for part in self.parts:
                    held += part.sums(part.blocks(request, end), count)
                request.states[after] = held
                if (row.computed > 1 and after == end) or after % self.page == 0:
                    self.remember(row, after, held)
        for request, row, more in self.parts[-1].inside if self.parts else ():
            end, held = row.cached + row.computed, list[int]()
            for part in self.parts:
                held += part.sums(part.blocks(request, end, 1))
            self.remember(row, row.cached + more, held)

    def remember(self, row: Row, end: int, state: list[int]) -> None:
        """Remember the state after the first tokens of a row, and forget the oldest ones."""
        first = known_tokens(row, end)
        self.order.append((end, first, one := key(row, first)))
        self.known.setdefault(end, {}).setdefault(first, {}).setdefault(one, []).append(state)
        while len(self.order) > MOST:
            end, first, one = self.order.popleft()
            self.forgotten[(one if first == end else end) % PLACES] = 1
            firsts = self.known[end]
            keys = firsts[first]
            keys[one].pop(0)
            if not keys[one]:
                del keys[one]
            if not keys:
                del firsts[first]
            if not firsts:
                del self.known[end]


def key(row: Row, end: int) -> int:
    """Return what stands for everything that a state depends on."""
    return hash((row.space, *row.tokens[:end]))


def known_tokens(row: Row, end: int) -> int:
    """Return how many of the first tokens of a row are known, up to some end."""
    tokens = row.tokens[:end]
    return tokens.index(None) if None in tokens else len(tokens)
