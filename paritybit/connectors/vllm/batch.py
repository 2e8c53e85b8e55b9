"""What an engine passes to its model and its kernels for a forward."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import expected, implied_by, offsets, padding
from paritybit.connectors.hooking import NotRecognisedError, maybe
from paritybit.connectors.sharing import WHOLE, Part, Share, dealt, in_chunks, of_lines, places_of
from paritybit.connectors.vllm.pools import GROUP, View, VllmPool
from paritybit.connectors.vllm.requests import padded
from paritybit.watch.bits import on_host
from paritybit.watch.facts import Base, Forward, IndexList, Row, StaticInput, first_seen
from paritybit.watch.reading import positions_of, repeated

NEEDED = ("block_table", "seq_lens", "query_start_loc", "slot_mapping")

INDEXER = "IndexerMetadata"
"""How the class of the metadata of an indexer ends."""

LENGTHS = "dcp_context_kv_lens"
"""The lengths of the contexts in this rank, if ranks share them."""


@dataclass(frozen=True)
class VllmBatch:
    """The inputs of one forward, with the metadata of each view. Sizes are requests and tokens.

    By default, each of the metadata is the view of a group.
    """

    ids: Tensor
    positions: Tensor
    metadata: tuple[Any, ...]
    live: tuple[int, int]
    padded: tuple[int, int]
    share: Share = WHOLE
    views: tuple[View, ...] = ()

    def view(self, number: int) -> View:
        """Return the view of some metadata."""
        return self.views[number] if self.views else View(number)

    def spans(self, forward: Forward, number: int) -> list[Part]:
        """Return the parts of rows that are the rows of some metadata."""
        rows, chunks = forward.rows[: self.live[0]], self.view(number).chunks
        spans = [(row.cached, row.computed) for row in rows]
        return in_chunks(spans, None if chunks is None else chunks.size)

    def begins(self, forward: Forward, number: int) -> list[int]:
        """Return the positions of the first keys of such parts."""
        chunks = self.view(number).chunks
        return [first_seen(chunks, first) for _, first, _ in self.spans(forward, number)]

    def tokens(self) -> tuple[Tensor, Tensor]:
        """Return the ids and the positions of the tokens of all requests."""
        return self.ids, self.positions

    def lists(self, pool: VllmPool, group: str, forward: Forward) -> list[IndexList]:
        """Return the block tables of all groups, concatenated by row, with padded rows last.

        Those of several views of the only group are lists of their own. If ranks share contexts, a
        list has the slot of each cached position in place of blocks, or -1.
        """
        if self.share.ranks > 1:
            return [self.shared_list(group, pool.page, forward)]
        views = range(len(self.metadata))
        together = [[one] for one in views] if len(pool.targets) == 1 else [views]
        return [self.list_of(numbers, group, pool.page, forward) for numbers in together]

    def list_of(self, numbers: Sequence[int], group: str, page: int, forward: Forward) -> IndexList:
        """Return the block tables of some views. The parts of a row follow one another."""
        rows, live, rest = self.live[0], list[tuple[Tensor, ...]](), list[tuple[Tensor, ...]]()
        for number in numbers:
            one, spans = self.metadata[number], self.spans(forward, number)
            table, size = one.block_table, len(spans)
            counts = -(-one.seq_lens[: len(table)].long() // page)
            starts, counts = of_lines(spans, counts, table.shape[1])
            live.append((table[:size].flatten(), starts[:rows], counts[:rows]))
            padded_starts = starts[rows:] - size * table.shape[1]
            rest.append((table[size:].flatten(), padded_starts, counts[rows:]))
        entries, firsts, lengths = zip(*live, *rest, strict=True)
        bases = offsets(len(one) for one in entries)
        moved = [one + base for one, base in zip(firsts, bases, strict=False)]
        given = torch.cat(entries), torch.cat(moved), torch.cat(lengths)
        # Rows of several groups have windows of their own.
        window = self.view(numbers[0]).chunks if len(numbers) == 1 else None
        return IndexList("block_table", group, *given, exact=False, page=page, window=window)

    def shared_list(self, group: str, page: int, forward: Forward) -> IndexList:
        """Return the slots of the cached positions of the only group, by row."""
        (one,), span, share = self.metadata, page * self.share.ranks, self.share
        cached = torch.tensor([row.cached for row in forward.rows])
        table, held = one.block_table, one.dcp_context_kv_lens.long()
        width = min(table.shape[1], int(cached.max()) // span + 1) * span
        entries = share.slots(table, torch.arange(width, device=table.device), page)
        right = padded(cached, len(held), 0).to(held.device)
        counts = right.where(held == share.counts(right), share.ends(held))
        offsets = torch.arange(len(table)) * width
        return IndexList("block_table", group, entries.flatten(), offsets, counts, 0, exact=False)

    def by_row(self, names: Sequence[str], counts: Mapping[str, int]) -> dict[str, list[int]]:
        """Return the token ids that the model gets for each request, in order."""
        sizes = [counts[name] for name in names]
        parts = self.tokens()[0][: sum(sizes)].split(sizes)
        return {name: part.tolist() for name, part in zip(names, parts, strict=True)}

    def inputs(self, forward: Forward | None = None) -> list[StaticInput]:
        """Return the inputs of the model and of the attention kernels."""
        tokens = self.live[1]
        given = {"input_ids": (self.ids, tokens), "positions": (self.positions, tokens)}
        for number, one in enumerate(self.metadata):
            rows = 0 if forward is None else len(self.spans(forward, number))
            given[f"seq_lens {number}"] = one.seq_lens, rows
            given[f"query_start_loc {number}"] = one.query_start_loc, rows + 1
            given[f"block_table {number}"] = one.block_table, rows
            if self.share.ranks > 1:
                given[f"{LENGTHS} {number}"] = one.dcp_context_kv_lens, rows
            given[f"slot_mapping {number}"] = one.slot_mapping, tokens
        return [
            StaticInput(name, tensor, live, len(tensor), writes=GROUP if "slot" in name else None)
            for name, (tensor, live) in given.items()
        ]

    def tails(self, forward: Forward) -> list[StaticInput]:
        """Return the padding of inputs that kernels read. A padded row has no token and no keys."""
        tokens, found = self.live[1], list[StaticInput]()
        for number, one in enumerate(self.metadata):
            rows = len(self.spans(forward, number))
            starts, lengths = one.query_start_loc, one.seq_lens
            found += padding(f"query_start_loc {number}", starts[rows + 1 :], tokens, starts)
            found += padding(f"seq_lens {number}", lengths[rows:], 0, lengths)
            if self.share.ranks > 1:
                lengths = one.dcp_context_kv_lens
                found += padding(f"{LENGTHS} {number}", lengths[rows:], 0, lengths)
        return found

    def to_judge(
        self, forward: Forward, config: Any, bases: Sequence[tuple[Base, Any]] = ()
    ) -> list[StaticInput]:
        """Return the inputs with the values that rows imply, and those that padding may have."""
        valid = {
            "input_ids": (0, int(config.get_vocab_size())),
            # Those of a draft grow with each of its steps.
            "positions": (0, max(1, int(config.max_model_len) // 2)),
        }
        right, inputs = self.expected(forward), self.inputs(forward)
        for static in inputs:
            static.expected, static.valid = right.get(static.name), valid.get(static.name)
        implied_by(inputs, bases)
        return inputs

    def mappings(self) -> list[Tensor]:
        """Return the slots to write of each group."""
        return [one.slot_mapping for one in self.metadata]

    def expected_positions(self, forward: Forward) -> Tensor:
        """Return the positions of all live tokens, int64 [tokens]."""
        return positions_of(forward.rows[: self.live[0]])

    def expected(self, forward: Forward) -> dict[str, Tensor]:
        """Return the values of inputs that the rows of a forward imply, by name."""
        count, rows = self.live[0], forward.rows
        found = {"positions": self.expected_positions(forward)}
        shared = self.share.counts(torch.tensor([row.cached for row in rows[:count]]))
        for number in range(len(self.metadata)):
            spans, begins = self.spans(forward, number), self.begins(forward, number)
            lengths = [last - begin for (_, _, last), begin in zip(spans, begins, strict=True)]
            found[f"seq_lens {number}"] = torch.tensor(lengths)
            starts = offsets(last - first for _, first, last in spans)
            found[f"query_start_loc {number}"] = torch.tensor(starts)
            found[f"{LENGTHS} {number}"] = shared
            place = self.view(number).place
            mine = rows[place * count : (place + 1) * count]
            parts = [next(iter(row.slots.values()))[row.cached :] for row in mine]
            found[f"slot_mapping {number}"] = torch.cat(parts).clamp(min=-1)
        return found


@dataclass(frozen=True)
class SplitBatch(VllmBatch):
    """The inputs of a rank that computes `parts` of the rows of a `whole` batch.

    `every` has the parts of all ranks. The KV of all parts is written in each rank.
    """

    whole: Any = None
    parts: Sequence[Part] = ()
    every: Sequence[Sequence[Part]] = ()

    def tokens(self) -> tuple[Tensor, Tensor]:
        """Return the ids and the positions of the tokens of all requests."""
        return self.whole.input_ids, self.whole.positions

    def expected_positions(self, forward: Forward) -> Tensor:
        """Return the positions of the tokens of this rank, int64 [tokens]."""
        return torch.cat([torch.arange(first, last) for _, first, last in self.parts])

    def spans(self, forward: Forward, number: int) -> list[Part]:
        """Return the parts that this rank computes."""
        return list(self.parts)

    def expected(self, forward: Forward) -> dict[str, Tensor]:
        """Return the values of inputs that the parts imply, by name."""
        slots = [next(iter(row.slots.values())) for row in forward.rows]
        gathered = [
            torch.cat([*(slots[row][first:last] for row, first, last in parts), slots[0][:0]])
            for parts in self.every
        ]
        size = len(self.metadata[0].slot_mapping) // len(self.every)
        mapping = torch.cat([padded(one, size, -1) for one in gathered])
        return {**super().expected(forward), "slot_mapping 0": mapping}

    def places(self, forward: Forward) -> tuple[list[int], list[tuple[str, int]]]:
        """Return the places of this rank's tokens among all, and whose all are."""
        rows = forward.rows
        places = places_of(self.parts, [(row.cached, row.computed) for row in rows])
        return places, [
            (row.request, row.cached + at) for row in rows for at in range(row.computed)
        ]

    def inputs(self, forward: Forward | None = None) -> list[StaticInput]:
        """Return the inputs of the model and of the attention kernels."""
        found = super().inputs(forward)
        for one in found:
            one.live = one.size if one.writes else one.live
        return found

    def lists(self, pool: VllmPool, group: str, forward: Forward) -> list[IndexList]:
        """Return the slots of all positions of each row: those that its first or last part reads.

        The others, which this rank does not read, have their right slots.
        """
        (one,), rows = self.metadata, forward.rows
        ends = torch.tensor([row.cached + row.computed for row in rows])
        width = int(ends.max())
        right = torch.stack([padded(row.slots[group], width, -1) for row in rows])
        lengths, table = on_host([one.seq_lens.long(), one.block_table.long()])
        positions, found = torch.arange(width), list[IndexList]()
        for numbers in (range(len(self.parts))[::-1], range(len(self.parts))):
            entries, counts = right.clone(), ends.clone()
            for at in numbers:  # The first part of a row comes last, or its last one.
                row, _, last = self.parts[at]
                listed = WHOLE.slots(table[at], positions, pool.page)
                entries[row] = listed.where(positions < last, right[row])
                counts[row] = ends[row] + lengths[at] - last
            starts = torch.arange(len(rows)) * width
            given = entries.flatten(), starts, counts
            found.append(IndexList("block_table", group, *given, exact=False))
        return found


def split(batch: VllmBatch, whole: Any, forward: Forward, rank: int, ranks: int) -> SplitBatch:
    """Return the batch of a rank of some that split the prompts of a `whole` batch."""
    spans = [(row.cached, row.computed) for row in forward.rows]
    every = dealt(spans, whole.is_prefilling_np.tolist(), ranks)
    mine = every[rank] or [(0, 0, 0)]
    if len(batch.metadata) > 1:
        raise NotRecognisedError("several groups of layers with parts of prompts")
    live = len(mine), sum(last - first for _, first, last in mine)
    given = batch.ids, batch.positions, batch.metadata, live, batch.padded
    return SplitBatch(*given, whole=whole, parts=mine, every=every)


class Compressed:
    """The metadata of compressed KV as those of other kinds: its decoding rows, then its prompts.

    Prompts get the lengths of their contexts in parts.
    """

    def __init__(self, held: Any) -> None:
        self.query_start_loc, self.slot_mapping = held.query_start_loc, held.slot_mapping
        self.num_actual_tokens = held.num_actual_tokens
        parts = [part for part in (held.decode, held.prefill) if part is not None]
        lengths = [] if held.decode is None else [held.decode.seq_lens]
        if held.prefill is not None:
            ends = held.prefill.query_start_loc.diff()
            for chunk in maybe(held.prefill, "chunked_context.chunks") or ():
                ends[chunk.request_slice] += chunk.cu_seq_lens.diff()
            lengths.append(ends)
        self.block_table = joined([part.block_table for part in parts])
        self.seq_lens = joined(lengths)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the rows of tensors, or the only tensor."""
    return parts[0] if len(parts) == 1 else torch.cat([*parts])


def counts_of(runner: Any, given: Any, count: int) -> Tensor | None:
    """Return how many tokens of each row a runner takes for computed, or None if not known."""
    older, newer = maybe(runner, "num_computed_tokens"), maybe(runner, "req_states")
    if given is None:
        return older[:count] if isinstance(older, Tensor) else None
    held, rows = maybe(newer, "num_computed_tokens.gpu"), maybe(given, "idx_mapping")
    known = isinstance(held, Tensor) and isinstance(rows, Tensor)
    return held[rows[:count].long()] if known else None


def bases_of(
    batch: VllmBatch,
    forward: Forward,
    counts: Tensor | None,
    slots: Sequence[Sequence[Tensor]],
    page: int,
) -> list[tuple[Base, dict[str, Tensor] | None]]:
    """Return the wrong inputs from which others are made, each with what it implies.

    `counts` are those of `counts_of`. `slots` has, per group, those of each request.
    """
    rows, right, found = forward.rows[: batch.live[0]], batch.expected(forward), []
    tokens, (positions, *mappings) = batch.live[1], (batch.positions, *batch.mappings())
    held = [one[:tokens] for one in (positions, *mappings)]
    positions, *mappings = on_host([*held, *([] if counts is None else [counts])])
    if counts is not None and (cached := mappings.pop().tolist()) != [row.cached for row in rows]:
        implied, others = None, None
        ends = [first + row.computed for first, row in zip(cached, rows, strict=True)]
        held_ends = (end <= len(one) for mine in slots for end, one in zip(ends, mine, strict=True))
        if min(cached) >= 0 and all(held_ends):
            given = [*zip(cached, ends, strict=True)] * len(slots)
            parts = zip(forward.rows, given, [one for mine in slots for one in mine], strict=True)
            others = tuple(
                replace(row, cached=first, slots=dict.fromkeys(row.slots, mine[:end]))
                for row, (first, end), mine in parts
            )
            implied = batch.expected(replace(forward, rows=others))
        found.append((Base("num_computed_tokens", "runner", others), implied))
    spans = [row.computed for row in rows]
    follows = any(one and torch.equal(one["positions"], positions.long()) for _, one in found)
    if not follows and not torch.equal(positions.long(), right["positions"]):
        each = [slots[batch.view(number).place] for number in range(len(mappings))]
        found.append((Base("positions", "batch", forward.rows), slots_at(positions, spans, each)))
    for number, mapping in enumerate(mappings):
        name = f"slot_mapping {number}"
        if not torch.equal(mapping.long(), right[name]):
            cut = batch.spans(forward, number)
            table = batch.metadata[number].block_table[: len(cut)].cpu().long()
            if len(table) < len(cut):
                continue
            sizes = torch.tensor([last - first for _, first, last in cut])
            row = torch.arange(len(cut)).repeat_interleave(sizes)
            begins = torch.tensor(batch.begins(forward, number))[row]
            at = (right["positions"] - begins)[:, None]
            listed = batch.share.slots(table[row], at, page).flatten()
            if not torch.equal(listed, right[name]):
                found.append((Base("block_table", None, forward.rows), {name: listed}))
    return [*found, *wrong_lengths(batch, forward)]


def wrong_lengths(
    batch: VllmBatch, forward: Forward
) -> list[tuple[Base, dict[str, Tensor] | None]]:
    """Return the lengths of contexts in this rank as a base, with what it implies, if it is wrong.

    A row with another length has the positions before the end of that part of its context.
    """
    if batch.share.ranks == 1:
        return []
    (held,), rows = on_host([batch.metadata[0].dcp_context_kv_lens.long()]), list(forward.rows)
    right = batch.share.counts(torch.tensor([row.cached for row in rows]))
    if torch.equal(held, padded(right, len(held), 0)):
        return []
    for at, end in enumerate(batch.share.ends(held[: len(rows)]).tolist()):
        if held[at] != right[at]:
            row, size = rows[at], end + rows[at].computed
            slots = {name: padded(one[:end], size) for name, one in row.slots.items()}
            rows[at] = replace(row, cached=end, slots=slots)
    return [(Base(f"{LENGTHS} 0", "batch", rows), {f"{LENGTHS} 0": held[: len(rows)]})]


def slots_at(
    positions: Tensor, spans: Sequence[int], slots: Sequence[Sequence[Tensor]]
) -> dict[str, Tensor]:
    """Return the slots to write at some positions of rows that compute `spans` tokens each.

    There are none if a row has no such position.
    """
    parts = positions.long().split([*spans])
    pairs = ((part, one) for mine in slots for part, one in zip(parts, mine, strict=True))
    if any(int(part.min()) < 0 or int(part.max()) >= len(one) for part, one in pairs):
        return {}
    return {
        f"slot_mapping {number}": torch.cat(
            [one[part] for one, part in zip(mine, parts, strict=True)]
        ).clamp(min=-1)
        for number, mine in enumerate(slots)
    }


def of_runner(
    runner: Any, metadata: Any, pool: VllmPool, given: Any, live: tuple[int, int]
) -> VllmBatch:
    """Return the batch of a runner, or the newer one's that is given. Raises NotRecognisedError."""
    if not isinstance(metadata, dict) or any(one.layer not in metadata for one in pool.views):
        raise NotRecognisedError("attention metadata that is not by layer")
    held = (metadata[one.layer] for one in pool.views)
    mine = tuple(one if hasattr(one, "block_table") else Compressed(one) for one in held)
    needed = NEEDED if pool.share.ranks == 1 else (*NEEDED, LENGTHS)
    lacking = [name for name in needed if not isinstance(maybe(mine[0], name), Tensor)]
    if lacking:
        kind = type(mine[0]).__name__
        raise NotRecognisedError(f"a {kind} without {', '.join(lacking)}")
    source = runner if given is None else given
    size = int(mine[0].num_actual_tokens)
    ids, positions = (
        (buffer if isinstance(buffer, Tensor) else buffer.gpu)[:size]
        for buffer in (source.input_ids, source.positions)
    )
    padded_to = len(mine[0].seq_lens), size
    return VllmBatch(ids, positions, mine, live, padded_to, pool.share, pool.views)


def of_indexer(
    batch: VllmBatch, metadata: Any, forward: Forward, drafts: bool = False
) -> Iterator[StaticInput]:
    """Yield what an indexer gets for rows: slots to write, lengths, blocks and ranges of keys.

    With drafts, it gets the decoding rows by token. Raises NotRecognisedError.
    """
    each = (one for one in metadata.values() if type(one).__name__.endswith(INDEXER))
    if (held := next(each, None)) is None:
        return
    if isinstance(batch, SplitBatch) or batch.share.ranks > 1:
        raise NotRecognisedError("an indexer with context parallelism")
    tokens, rows = batch.live[1], forward.rows[: batch.live[0]]
    right, table = batch.expected(forward), batch.metadata[0].block_table
    slots = held.slot_mapping[:tokens]
    yield expected("slot_mapping of the indexer", slots, right["slot_mapping 0"])
    decodes = rows[: held.num_decodes]
    if held.decode is not None and held.decode.seq_lens[0].numel() == 1:
        seen = positions_of(decodes) + 1
        of_row = repeated(range(len(decodes)), [row.computed for row in decodes])
        lengths = held.decode.seq_lens[: len(seen)].flatten()
        yield expected("seq_lens of the indexer", lengths, seen)
        blocks = held.decode.block_table[: len(seen)]
        yield expected("block_table of the indexer", blocks, table[of_row])
    yield from chunks_of_indexer(
        maybe(held, "prefill.chunks") or (), rows, table, len(decodes), drafts
    )


def chunks_of_indexer(
    chunks: Sequence[Any], rows: Sequence[Row], table: Tensor, first: int, drafts: bool
) -> Iterator[StaticInput]:
    """Yield what an indexer gets for the chunks of prompts, which are the rows from `first` on.

    The keys of the requests of a chunk are gathered, one request after the other. A chunk without
    a gather uses those of the chunk before. With `drafts`, the number of keys may be larger.
    """
    starts, gathered = offsets(row.computed for row in rows), list[int]()
    ends = [starts[first], *(chunk.token_end for chunk in chunks)]
    begins = torch.tensor([*(chunk.token_start for chunk in chunks), ends[-1]])
    yield expected("chunks of the indexer", begins, [*ends[:-1], starts[-1]])
    for chunk in chunks:
        at, firsts, lasts, parts = 0, list[int](), list[int](), list[int]()
        begin, end = chunk.token_start, chunk.token_end
        for number, (row, start) in enumerate(zip(rows, starts, strict=False)):
            if start < end and begin < start + row.computed:
                asked = range(max(begin, start), min(end, start + row.computed))
                firsts += [at] * len(asked)
                lasts += [at + row.cached + token - start + 1 for token in asked]
                parts.append(number)
                at += row.cached + row.computed
        lengths = [rows[number].cached + rows[number].computed for number in parts]
        longest, reused = max(lengths, default=0), int(maybe(chunk, "skip_kv_gather") is True)
        right: dict[str, Sequence[int] | Tensor] = {
            "cu_seqlen_ks": firsts,
            "cu_seqlen_ke": lasts,
            "block_table": table[parts],
            "cu_seq_lens": offsets(lengths),
            "token_to_seq": repeated(range(len(parts)), lengths),
        }
        for name, values in right.items():
            if (given := maybe(chunk, name)) is not None:
                longer = drafts and name == "token_to_seq"
                held = given[: len(values)] if longer else given
                yield expected(f"{name} of the indexer", held, values)
        bound = min(chunk.max_seqlen_k, longest) if hasattr(chunk, "max_seqlen_k") else longest
        total = int(chunk.total_seq_lens)
        held = torch.tensor([min(total, at) if drafts else total, bound, reused])
        values = [at, longest, reused and int(parts == gathered)]
        yield expected("sizes of the indexer's keys", held, values)
        gathered = parts
