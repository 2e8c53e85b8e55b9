"""The hidden states that an EAGLE draft model gets, by row.

Each forward of the target is followed by one of the draft model, which takes up the same tokens or
those that were accepted. Its steps begin with what it returned for the last of these.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import offsets
from paritybit.connectors.hooking import maybe
from paritybit.connectors.sampling import (
    MOST_MADE,
    UNSEEN,
    Made,
    handed_on,
    row_sums,
    rows_of,
    untried,
)
from paritybit.connectors.sglang.rows import EXTENDS, Rows, mode_of, paths_of
from paritybit.watch.facts import RowValues

TAKEN, BEGUN = "hidden states of a draft", "hidden states of draft steps"
SELECTED, SAMPLED = "select_index", "sampled tokens of a draft"
"""What is judged: the states of accepted tokens, those of the last ones, and where these are. Also
the tokens that were just sampled."""


@dataclass
class Computed:
    """The tokens of a forward of the target, in order.

    `firsts` has the place of each request's first token, and `below` the tokens that follow each
    place in a tree of drafts, with their places. `sums` are the checksums of the hidden states.
    """

    firsts: dict[str, int]
    below: dict[int, dict[int, int]]
    whose: list[str]
    sums: Tensor


@dataclass
class DraftStates:
    """What the target computed last, and what the draft model returned last for each request."""

    target: Computed | None = None
    returned: dict[str, tuple[int, Tensor]] = field(default_factory=dict)

    def computed(self, batch: Any, found: Rows, output: Any) -> None:
        """Note the hidden states of a forward of the target."""
        self.target, hidden = None, states_of(output)
        names = list(dict.fromkeys(row.request for row in found.rows))
        if hidden is None or not names:
            return
        ids, below = batch.input_ids.tolist(), dict[int, dict[int, int]]()
        counts = [row.computed for row in found.rows]
        if mode_of(batch) == "target_verify":
            counts = [int(batch.spec_info.draft_token_num)] * len(names)
        places = offsets(counts)
        if len(counts) != len(names) or len(hidden) < places[-1]:
            return
        for row, (at, count) in enumerate(zip(places, counts, strict=False)):
            for path in paths_of(batch.spec_info, row) or [[*range(count)]]:
                for before, node in pairwise(path):
                    below.setdefault(at + before, {})[ids[at + node]] = at + node
        pairs = zip(names, counts, strict=True)
        whose = [f"token {at} of request {name}" for name, count in pairs for at in range(count)]
        firsts, sums = dict(zip(names, places, strict=False)), row_sums(hidden[: places[-1]])
        self.target = Computed(firsts, below, whose, sums)

    def given(self, batch: Any, found: Rows) -> Iterator[RowValues]:
        """Yield whose hidden states a forward of the draft model gets."""
        given, mode = maybe(batch, "spec_info.hidden_states"), mode_of(batch)
        if not isinstance(given, Tensor) or given.ndim != 2 or not found.rows:
            return
        if mode == "decode":
            yield from self.begun(given, found)
        elif (target := self.target) is None:
            yield from untried(TAKEN, [row.request for row in found.rows], UNSEEN)
        else:
            ids, lasts = batch.input_ids.tolist(), accepted(batch, found)
            names, rows, places, unknown = list[str](), list[int](), list[int](), list[str]()
            for row, first, last in zip(found.rows, starts(found), lasts, strict=True):
                place = target.firsts.get(row.request) if last else None
                for at in range(first, first + max(last, 1)):
                    if place is None:
                        unknown.append(row.request)
                        break
                    names.append(row.request)
                    rows.append(at)
                    places.append(place)
                    place = target.below.get(place, {}).get(ids[at])
            if len(given) > max(rows, default=-1):
                sums = row_sums(given[rows])
                yield from handed_on(TAKEN, names, sums, places, target.sums, target.whose)
            yield from untried(TAKEN, unknown, "it is not known which tokens were accepted")

    def begun(self, given: Tensor, found: Rows) -> Iterator[RowValues]:
        """Yield whose hidden states draft steps begin with."""
        names = list(dict.fromkeys(row.request for row in found.rows))
        fits = len(given) == len(names)
        known = [self.returned.get(name) if fits else None for name in names]
        mine = [(at, *one) for at, one in enumerate(known) if one is not None]
        unknown = [name for name, one in zip(names, known, strict=True) if one is None]
        yield from untried(BEGUN, unknown, "it is not seen what the draft model returned")
        if mine:
            rows, lasts, sums = zip(*mine, strict=True)
            firsts = offsets(len(one) for one in sums)
            whose = [
                f"token {at} of request {names[row]}"
                for row, one in zip(rows, sums, strict=True)
                for at in range(len(one))
            ]
            places = [first + last for first, last in zip(firsts, lasts, strict=False)]
            of, held = [names[row] for row in rows], row_sums(given[[*rows]])
            yield from handed_on(BEGUN, of, held, places, torch.cat(sums), whose)

    def returns(self, batch: Any, found: Rows, output: Any, index: Any) -> Iterator[RowValues]:
        """Note what a forward of the draft model returned. Yield which rows a graph selects."""
        mode, hidden = mode_of(batch), states_of(output)
        if mode == "decode" or not found.rows:
            return
        names, lasts = [row.request for row in found.rows], accepted(batch, found)
        firsts = starts(found)
        if isinstance(index, Tensor) and len(index) == len(names) and all(lasts):
            right = [first + last - 1 for first, last in zip(firsts, lasts, strict=True)]
            yield rows_of(SELECTED, names, index, right)
        sums = torch.empty(0) if hidden is None else row_sums(hidden)
        # A graph returns the selected rows, and a prefill the last ones.
        whole = index is None and len(sums) >= sum(row.computed for row in found.rows)
        for at, (row, first, last) in enumerate(zip(found.rows, firsts, lasts, strict=True)):
            self.returned.pop(row.request, None)
            if last and whole:
                self.returned[row.request] = last - 1, sums[first : first + row.computed]
            elif last and len(sums) >= len(names):
                self.returned[row.request] = 0, sums[at : at + 1]
        while len(self.returned) > MOST_MADE:
            del self.returned[next(iter(self.returned))]

    def last(self, request: str) -> int | None:
        """Return the checksum of what the draft model returned last for a request, if known."""
        place, sums = self.returned.get(request, (0, ()))
        return int(sums[place]) if len(sums) else None

    def brought(self, request: str, last: int | None) -> None:
        """Note that a request goes on with what another engine's model returned, or is unknown."""
        self.returned.pop(request, None)
        if last is not None:
            self.returned[request] = 0, torch.tensor([last])

    def forget(self) -> None:
        """Forget all states, as a forward is not watched."""
        self.target = None
        self.returned.clear()


def sampled(
    batch: Any, found: Rows, made: Mapping[str, Mapping[int, Sequence[Made]]]
) -> Iterator[RowValues]:
    """Yield the tokens that a draft model gets and the sampler has just `made`, by position."""
    ids = batch.input_ids.tolist()
    names, held, right = list[str](), list[int](), list[int]()
    for row, first, last in zip(found.rows, starts(found), accepted(batch, found), strict=True):
        mine = made.get(row.request, {})
        for at in range(last):
            if (tokens := mine.get(row.cached + 1 + at)) and first + at < len(ids):
                names.append(row.request)
                held.append(ids[first + at])
                right.append(tokens[-1].token)
    if names:
        yield rows_of(SAMPLED, names, held, right)


def starts(found: Rows) -> list[int]:
    """Return the place of the first token of each row of a forward."""
    return offsets(row.computed for row in found.rows)[:-1]


def accepted(batch: Any, found: Rows) -> Sequence[int]:
    """Return how many tokens of each row of a draft's forward were accepted."""
    if mode_of(batch) != EXTENDS[-1]:
        return [row.computed for row in found.rows]
    counts = maybe(batch, "spec_info.num_accept_tokens")
    return [0] * len(found.rows) if counts is None else counts.tolist()[: len(found.rows)]


def states_of(output: Any) -> Tensor | None:
    """Return the hidden states in the result of a forward, or None."""
    first = output[0] if isinstance(output, tuple) and output else output
    states = maybe(maybe(first, "logits_output") or first, "hidden_states")
    return states if isinstance(states, Tensor) and states.ndim == 2 else None
