"""The live rows of a batch: the tokens, lengths and slots of each request.

A draft's KV at a position has the location of the target's. With EAGLE it also depends on the next
token. In a graph of draft steps, each step but the last writes one position per branch. Their
tokens are unknown before the replay.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from paritybit.connectors.following import Content, Places, content_of, shown
from paritybit.connectors.hooking import NotRecognisedError, maybe
from paritybit.connectors.sampling import RETURNED, Image, handed_on, row_sums, untried
from paritybit.connectors.sglang.pools import LOCATIONS, PREFILLS, SglangPool
from paritybit.watch.bits import on_host
from paritybit.watch.facts import Base, Forward, Row, RowValues
from paritybit.watch.reading import positions_of

EXTENDS = ("draft_extend", "draft_extend_v2")
"""Modes in which a draft computes the tokens that were accepted."""

MODES = (*PREFILLS, "decode", "target_verify")
"""Modes of a forward of the target whose rows are reported."""


@dataclass
class Rows:
    """The rows of a forward, and the row of the engine's batch that each belongs to.

    They differ for a tree of drafts, which has one row of the forward per branch. `known` has the
    fields of the batch from which others are made, and their right values.
    """

    rows: list[Row] = field(default_factory=list)
    batch_rows: list[int] = field(default_factory=list)
    known: Mapping[str, tuple[Tensor, list[int]]] = field(default_factory=dict)

    @property
    def pairs(self) -> list[tuple[int, Row]]:
        """Each row with that of the batch."""
        return list(zip(self.batch_rows, self.rows, strict=True))

    def of(self, rows: Sequence[Row] | None) -> "Rows | None":
        """Return other rows of the same rows of the batch."""
        return None if rows is None else Rows([*rows], self.batch_rows)

    def add(self, batch_row: int, row: Row) -> None:
        """Add a row of the forward that belongs to a row of the batch."""
        self.rows.append(row)
        self.batch_rows.append(batch_row)


def mode_of(batch: Any) -> str:
    """Return the engine's forward mode of a batch, in lower case."""
    return str(batch.forward_mode.name).lower()


def request_row(request: Any) -> int | None:
    """Return the row of a request in the request table, which releases keep in different places."""
    holders: tuple[Any, ...] = (maybe(request, "kv"), request)
    for holder in holders:
        if hasattr(holder, "req_pool_idx"):
            row: int | None = holder.req_pool_idx
            return row
    return None


def rows_in_table(requests: Sequence[Any]) -> list[int]:
    """Return the row of each request in the request table."""
    return [row for one in requests if (row := request_row(one)) is not None]


def committed(request: Any) -> int | None:
    """Return the number of positions of a request that are cached or computed, or None."""
    holders = (maybe(request, "kv"), request)
    return next((n for one in holders if (n := maybe(one, "kv_committed_len")) is not None), None)


def bases_of(
    batch: Any, requests: Sequence[Any], mode: str, spans: tuple[Any, Any] = (None, None)
) -> dict[str, tuple[Tensor, list[int]]]:
    """Return the fields of a batch from which others are made, by name, and their right values.

    `spans` are the scheduler's numbers of cached and of computed positions, per prompt. Those of a
    request that decodes beside prompts are not known if it has drafts.
    """
    if mode not in MODES or len(requests) != len(batch.req_pool_indices):
        return {}
    right: dict[str, Any] = {"req_pool_indices": [request_row(one) for one in requests]}
    drafts = batch.spec_info is not None or maybe(batch, "encoder_lens") is not None
    if mode not in {"target_verify", "mixed"} and not drafts:
        right["seq_lens"] = [committed(one) for one in requests]
    if mode in PREFILLS and mode != "mixed" and maybe(batch, "encoder_lens") is None:
        right["extend_prefix_lens"], right["extend_seq_lens"] = spans
    held = {name: maybe(batch, name) for name in right}
    return {
        name: (held[name], list(values))
        for name, values in right.items()
        if values is not None and None not in values and isinstance(held[name], Tensor)
        if len(held[name]) == len(values)
    }


def forward_of(
    batch: Any,
    requests: Sequence[Any],
    pool: SglangPool,
    table: Tensor,
    spans: tuple[Any, Any] = (None, None),
) -> tuple[Forward, Rows]:
    """Return the facts of a forward of the target model. Raises NotRecognisedError.

    Its rows are those of the requests, also if a field of the batch is wrong.
    """
    mode = mode_of(batch)
    if mode == "idle":
        return Forward(mode, ()), Rows()
    if mode not in MODES:
        raise NotRecognisedError(f"a forward with the mode {mode}")
    known, mine = bases_of(batch, requests, mode, spans), requests_of(batch, requests, mode)
    right = {name: values for name, (_, values) in known.items()}
    right.setdefault("req_pool_indices", rows_in_table(mine))
    found, bases = rows_by(batch, mine, pool, table, right), []
    found.known = known
    for name, held in zip(known, on_host([one for one, _ in known.values()]), strict=True):
        if held.tolist() != right[name]:
            values = {**right, name: held.tolist()}
            if name == "seq_lens" and mode in PREFILLS:
                computed = [row.computed for row in found.rows]
                prefixes = (n - one for n, one in zip(held.tolist(), computed, strict=True))
                values["extend_prefix_lens"] = list(prefixes)
            implied = possible(batch, table, values)
            rows = rows_by(batch, mine, pool, table, values).rows if implied else None
            bases.append(Base(name, "batch", rows))
    return Forward(mode, tuple(found.rows), bases=bases), found


def possible(batch: Any, table: Tensor, values: Mapping[str, Sequence[int]]) -> bool:
    """Return whether the request table has all positions of rows with these values."""
    spans = lengths(batch, mode_of(batch), values)
    inside = all(first >= 0 and n > 0 and first + n <= table.shape[1] for first, n in spans)
    return inside and all(0 <= row < len(table) for row in values["req_pool_indices"])


def rows_by(
    batch: Any,
    requests: Sequence[Any],
    pool: SglangPool,
    table: Tensor,
    values: Mapping[str, Sequence[int]],
) -> Rows:
    """Return the rows of a batch whose fields have these values."""
    mode = mode_of(batch)
    spans = lengths(batch, mode, values)
    plain = plain_rows(requests, values["req_pool_indices"], pool, table, spans)
    if mode != "target_verify":
        return plain
    found, ids = Rows(), batch.input_ids.tolist()
    for index, row in enumerate(plain.rows):
        before = row.tokens[: row.cached]
        drafts = ids[index * row.computed : (index + 1) * row.computed]
        for path in paths_of(batch.spec_info, index) or [[*range(row.computed)]]:
            places = torch.cat((torch.arange(row.cached), row.cached + torch.tensor(path)))
            mine = {name: one[places] for name, one in row.slots.items()}
            tokens = [*before, *(drafts[node] for node in path)]
            found.add(index, replace(row, tokens=tokens, computed=len(path), slots=mine))
    return found


def plain_rows(
    requests: Sequence[Any],
    places: Sequence[int],
    pool: SglangPool,
    table: Tensor,
    spans: Sequence[tuple[int, int]],
    ahead: bool = False,
) -> Rows:
    """Return one row per request, with the slots in its row of the table.

    `spans` are the numbers of cached and computed positions.
    """
    found, held = Rows(), slots_of(places, pool, table, max(map(sum, spans)))
    for at, (request, (cached, computed)) in enumerate(zip(requests, spans, strict=True)):
        slots = {name: block[at, : cached + computed] for name, block in held.items()}
        found.add(at, row_of(request, cached, computed, slots, ahead))
    return found


def slots_of(
    places: Sequence[int], pool: SglangPool, table: Tensor, longest: int
) -> dict[str, Tensor]:
    """Return, per group, the slots of each row's first positions, [rows, longest] on the host."""
    locations = table[torch.tensor(places, device=table.device), :longest]
    found = pool.slots(locations)
    if pool.located == LOCATIONS:
        found[LOCATIONS] = locations
    return {name: slots.cpu() for name, slots in found.items()}


def requests_of(batch: Any, requests: Sequence[Any], mode: str) -> list[Any]:
    """Return the request of each row of a batch. Raises NotRecognisedError.

    A batch with all requests of the scheduler's has them in its order.
    """
    if len(requests) == len(batch.req_pool_indices) and None not in map(request_row, requests):
        return list(requests)
    by_row = {request_row(request): request for request in requests}
    table_rows = batch.req_pool_indices.tolist()
    if any(at not in by_row for at in table_rows):
        raise NotRecognisedError(f"a row of a {mode} batch that belongs to no request of the batch")
    return [by_row[at] for at in table_rows]


def implied(found: Rows, kind: str, group: str) -> dict[str, Tensor]:
    """Return the inputs that rows imply, by name. There are none for a tree of drafts."""
    rows = found.rows
    if kind == "draft decode":
        starts = {at: row.cached for at, row in found.pairs}
        return {
            "positions": torch.tensor([row.cached for row in rows]),
            "out_cache_loc": slots_written(rows, group),
            "seq_lens": torch.tensor(list(starts.values())),
        }
    if not rows or found.batch_rows != list(range(len(rows))):
        return {}
    inputs = {"positions": positions_of(rows), "out_cache_loc": slots_written(rows, group)}
    if kind != "target_verify":
        inputs["seq_lens"] = torch.tensor([row.cached + row.computed for row in rows])
    return inputs


def slots_written(rows: Sequence[Row], group: str) -> Tensor:
    """Return the slots of the computed positions of rows, one after the other."""
    return torch.cat([row.slots[group][row.cached :] for row in rows])


def lengths(
    batch: Any, mode: str, values: Mapping[str, Sequence[int]] | None = None
) -> list[tuple[int, int]]:
    """Return the numbers of cached and of computed positions, per row.

    They are those of the batch where `values` has none.
    """
    values = values or {}
    if mode in PREFILLS:
        held = batch.extend_prefix_lens_cpu, batch.extend_prefix_lens
        prefixes = values.get("extend_prefix_lens") or host(*held)
        held = batch.extend_seq_lens_cpu, batch.extend_seq_lens
        computed = values.get("extend_seq_lens") or host(*held)
        return list(zip(prefixes, computed, strict=True))
    totals = values.get("seq_lens") or batch.seq_lens.tolist()
    if mode == "decode":
        return [(total - 1, 1) for total in totals]
    if maybe(batch.spec_info, "ragged_verify_layout") is not None:
        raise NotRecognisedError("draft tokens of different number per request")
    drafted = int(batch.spec_info.draft_token_num)
    return [(total, drafted) for total in totals]


def roots(batch: Any, requests: Sequence[Any]) -> Iterator[RowValues]:
    """Yield the token with which the drafts of each row of a batch begin, if the host knows it."""
    info, names = batch.spec_info, [one.rid for one in requests]
    ragged = maybe(info, "ragged_verify_layout") is not None
    if ragged or not type(info).__name__.startswith("Eagle"):
        yield from untried("input_ids", names, "the kind of drafts is not known")
        return
    held, cached = batch.input_ids.cpu()[:: int(info.draft_token_num)], batch.seq_lens.tolist()
    right, late = held.clone(), list[str]()
    if not len(held) == len(names) == len(cached):
        return
    for row, (request, place) in enumerate(zip(requests, cached, strict=True)):
        known = [*request.origin_input_ids, *request.output_ids]
        if place < len(known):
            right[row] = known[place]
        else:
            late.append(request.rid)
    yield RowValues("input_ids", names, held, right, filled=batch.input_ids)
    yield from untried("input_ids", late, "the host does not know the last token yet")


@dataclass
class Recorded:
    """The requests of a batch that asked for hidden states, before the scheduler records them.

    `known` are those of a forward, [tokens, size], and `spans` the tokens of each request in it.
    """

    requests: Sequence[Any]
    counts: Sequence[int | None]
    known: Tensor
    spans: Sequence[range]

    @classmethod
    def of(cls, batch: Any, result: Any) -> "Recorded | None":
        """Return those of a batch and its result, or None if there are none."""
        known, asked = maybe(result, "logits_output.hidden_states"), "return_hidden_states"
        counts = [
            len(one.hidden_states) if maybe(one, asked) is True else None for one in batch.reqs
        ]
        if not isinstance(known, Tensor) or counts == [None] * len(counts):
            return None
        sizes = [1] * len(counts)
        if mode_of(batch) in PREFILLS:
            sizes = maybe(result, "extend_input_len_per_req") or batch.extend_lens
        ends = [*accumulate(sizes)]
        spans = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        return cls(batch.reqs, counts, known, spans)

    def values(self) -> Iterator[RowValues]:
        """Yield whose hidden states the scheduler has recorded since for each request."""
        names, given, places = list[str](), list[Tensor](), list[int]()
        for request, count, span in zip(self.requests, self.counts, self.spans, strict=True):
            new = [] if count is None else request.hidden_states[count:]
            for one in new:
                given.append(torch.tensor(one).reshape(-1, self.known.shape[1]))
            mine = span if new else ()
            names += [request.rid] * len(mine)
            places += mine
        if given and len(self.known) != self.spans[-1].stop:  # Drafts have more.
            yield from untried(RETURNED, [*dict.fromkeys(names)], "it is not known whose they are")
        elif given:
            pairs = zip(self.requests, self.spans, strict=True)
            whose = [
                f"token {at - span[0]} of request {one.rid}" for one, span in pairs for at in span
            ]
            sums = row_sums(torch.cat(given)), row_sums(self.known.cpu())
            yield from handed_on(RETURNED, names, sums[0], places, sums[1], whose)


def host(values: Any, tensor: Any) -> list[int]:
    """Return lengths of the host, or else of the device, as a list."""
    values = tensor if values is None else values
    return values.tolist() if isinstance(values, Tensor) else list(values)


def paths_of(info: Any, index: int) -> list[list[int]] | None:
    """Return the paths from the root to the leaves of a tree of drafts, or None for a chain."""
    children = maybe(info, "retrieve_next_token")
    siblings = maybe(info, "retrieve_next_sibling")
    if children is None or siblings is None:
        if getattr(info, "topk", 1) == 1:
            return None
        raise NotRecognisedError("a tree of draft tokens without links")
    child, sibling = children[index].tolist(), siblings[index].tolist()
    paths, waiting = [], [[0]]
    while waiting:
        path = waiting.pop()
        node = child[path[-1]]
        if node < 0:
            paths.append(path)
        while node >= 0 and len(path) <= len(child):
            waiting.append([*path, node])
            node = sibling[node]
    return sorted(paths)


@dataclass
class Images:
    """The images of a request: what they show, and its positions, if these have dimensions."""

    contents: list[Content] = field(default_factory=list)
    places: Places | None = None


IMAGES: WeakKeyDictionary[Any, Images] = WeakKeyDictionary()
"""The images of each request. The engine drops them when the request ends."""


def images_of(request: Any) -> Images:
    """Return the images of a request. What an image shows is not known if its data is elsewhere."""
    held = maybe(request, "multimodal_inputs")
    if held is None or request in IMAGES:
        return IMAGES.get(request) or Images()
    found = IMAGES[request] = Images()
    for item in held.mm_items:
        data = [maybe(item, name) for name in ("feature", "precomputed_embeddings")]
        if (content := content_of(data)) is not None:
            spans = ((first, last + 1 - first) for first, last in item.offsets or ())
            found.contents += [(first, count, content) for first, count in spans]
    if (positions := maybe(held, "mrope_positions")) is not None:
        found.places = positions.cpu(), int(held.mrope_position_delta)
    return found


def embeddings_of(request: Any, *, passed: bool = False) -> Iterator[Image]:
    """Yield the images of a request, with the embeddings that came with it.

    If they are `passed`, the vision model returns the features of images as they are.
    """
    for item in maybe(request, "multimodal_inputs.mm_items") or ():
        given, start = maybe(item, "precomputed_embeddings"), 0
        given = maybe(item, "feature") if given is None and passed else given
        spans = [(first, last + 1 - first) for first, last in item.offsets or ()]
        whole = isinstance(given, Tensor) and len(given) == sum(count for _, count in spans)
        for first, count in spans:
            yield first, count, given[start : start + count] if whole else None
            start += count


def space(request: Any) -> str:
    """Return everything except tokens that the KV of a request depends on."""
    parts = [maybe(request, name) for name in ("lora_id", "extra_key", "cache_salt")]
    if maybe(request, "input_embeds") is not None:
        parts.append(request.rid)
    return repr(parts) if any(parts) else ""


# Draft models.


def draft_forward_of(
    batch: Any,
    requests: Sequence[Any],
    pool: SglangPool,
    table: Tensor,
    runner: Any,
    ahead: bool = False,
) -> tuple[Forward, Rows]:
    """Return the facts of a forward of a draft model. `runner` may replay a graph of steps."""
    mode, topk = mode_of(batch), maybe(runner, "topk")
    count = maybe(runner, "speculative_num_steps")
    if mode in (*PREFILLS, *EXTENDS):
        computed = host(batch.extend_seq_lens_cpu, batch.extend_seq_lens)
        pairs = zip(batch.seq_lens.tolist(), computed, strict=True)
        spans = [(end - count, count) for end, count in pairs]
        mine = requests_of(batch, requests, mode)
        found = plain_rows(mine, rows_in_table(mine), pool, table, spans, ahead)
    elif mode == "decode" and topk is not None and count is not None:
        found = stepped(batch, requests, pool, table, (int(topk), int(count)), ahead)
    else:
        raise NotRecognisedError(f"a draft's forward with the mode {mode}")
    return Forward(f"draft {mode}", tuple(found.rows), model="draft "), found


def stepped(
    batch: Any,
    requests: Sequence[Any],
    pool: SglangPool,
    table: Tensor,
    size: tuple[int, int],
    ahead: bool,
) -> Rows:
    """Return the rows of a graph of draft steps: one per branch. `size` has branches and steps."""
    found, (topk, count) = Rows(), size
    totals = batch.seq_lens.tolist()
    branches = batch.out_cache_loc.view(len(totals), topk, -1)
    columns = branches.shape[2]
    mine = requests_of(batch, requests, mode_of(batch))
    held = slots_of(rows_in_table(mine), pool, table, max(totals) + columns)
    new = {name: slots.cpu() for name, slots in pool.slots(branches).items()}
    for index, request in enumerate(mine):
        total = totals[index]
        for branch in range(topk):
            # A chain must use the slots of its next positions, even if the batch has others.
            slots = {
                name: block[index, : total + columns]
                if topk == 1
                else torch.cat((block[index, :total], new[name][index, branch].to(block)))
                for name, block in held.items()
            }
            row = row_of(request, total, columns, slots, ahead)
            found.add(index, replace(row, spare=columns - count + 1))
    return found


def row_of(
    request: Any, cached: int, computed: int, slots: dict[str, Tensor], ahead: bool = False
) -> Row:
    """Return the row of a request that has these slots."""
    known = [*request.origin_input_ids, *request.output_ids]
    known, kept = shown(known, images_of(request).contents), space(request)
    if ahead:
        first, *known = known
        kept = f"{kept} after {first}"
    return Row(request.rid, known[: cached + computed], cached, computed, slots, kept)


def kept_ids(batch: Any, requests: Sequence[Any], names_next: bool) -> list[int]:
    """Return, for each row, how many of its computed ids belong to the tokens of its request.

    The ids of draft steps and of rejected drafts do not. After a chunk of a prompt, the last id is
    the sampled token, unless the release passes the next token of the prompt (`names_next`), which
    it never does for tokens that the request generated before a retraction. For images, models get
    other ids than the request has.
    """
    mode, totals = mode_of(batch), batch.seq_lens.tolist()
    of_rows = requests_of(batch, requests, mode)
    if mode in PREFILLS or mode == "draft_extend":
        kept = list(host(batch.extend_seq_lens_cpu, batch.extend_seq_lens))
    else:
        lengths = maybe(batch.spec_info, "num_accept_tokens") if mode in EXTENDS else None
        kept = [0] * len(totals) if lengths is None else lengths.tolist()
    for index, (request, total) in enumerate(zip(of_rows, totals, strict=True)):
        prompt = len(request.origin_input_ids)
        last = total >= prompt + len(request.output_ids)
        if mode in PREFILLS and not (last or (names_next and total < prompt)):
            kept[index] -= 1
        if maybe(request, "multimodal_inputs") is not None:
            kept[index] = 0
    return kept
