"""The batch of a forward pass: its rows, index lists, masks and static inputs.

A row's slots are those in the index lists that attention gets, so the layout of a window in its
pages does not matter. A forward reads its inputs on the compute stream, and must wait for the
stream that writes them. The connector copies them there without a wait, so it sees what the forward
may read.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import expected, offsets, padding
from paritybit.connectors.hooking import maybe, place_of
from paritybit.connectors.sampling import (
    HIDDEN,
    LOGITS,
    MOST,
    UNSEEN,
    AskedSampling,
    Sampled,
    handed_on,
    logits_of,
    row_sums,
    rows_of,
    untried,
)
from paritybit.connectors.transformers.cache import LayerGroup
from paritybit.watch.facts import IndexList, Row, RowValues, StaticInput

ASKED = "_paritybit_asked"
"""The attribute of a request that the engine made from another one."""

HELD = {
    "input_ids": "input_ids",
    "position_ids": "position_ids",
    "logits_indices": "logits_indices",
    "cu_seq_lens_q": "cumulative_seqlens_q",
    "cu_seq_lens_k": "cumulative_seqlens_k",
    "write_index": "write_index_storage",
    "read_index": "read_index_storage",
}
"""The inputs that the engine copies from the host, and its attributes with their tensors."""

KNOWN = {
    f"{prefix}{name}LogitsWarper"
    for prefix in ("", "ContinuousBatching")
    for name in ("Temperature", "TopK", "TopP")
}
"""The classes of logits processors whose effect is known."""

LARGEST_MASK = 2**24
"""The most entries of a mask that is judged, as its expected value is built."""


@dataclass(frozen=True)
class PlannedRequest:
    """A request: its state, numbers of cached and computed tokens, and whether it gets a token."""

    state: Any
    cached: int
    computed: int
    predicted: bool


@dataclass
class IndexLists:
    """The entries of one group that the rows read and write, and the end of each row's part."""

    read: Tensor
    write: Tensor
    ends: list[int]


class TransformersBatch:
    """The current batch. `given` are the keyword arguments of the model."""

    def __init__(
        self,
        requests: Sequence[PlannedRequest],
        given: Mapping[str, Any],
        parts: Mapping[str, LayerGroup],
    ) -> None:
        self.requests, self.given, self.parts = requests, given, parts
        self.size = sum(one.computed for one in requests)
        self.padded = int(given["input_ids"].shape[-1])
        """The numbers of computed tokens, without and with padding."""
        self.predicted = sum(one.predicted for one in requests)
        self.kind = "decode" if all(one.computed == 1 for one in requests) else "prefill"
        self.lists = {name: self._lists_of(part) for name, part in parts.items()}

    def _lists_of(self, part: LayerGroup) -> IndexLists:
        index = part.allocator.index
        if self.given.get("block_table") is not None:
            return self._from_table(part, self.given["block_table"][index].to("cpu", torch.int64))
        write, read = self.given["write_index"][index], self.given["read_index"][index]
        ends = [0] * len(self.requests)
        if read.numel():
            ends = self.given["cu_seq_lens_k"][part.name].tolist()[1 : len(self.requests) + 1]
        return IndexLists(read, write[: self.size], ends)

    def _from_table(self, part: LayerGroup, table: Tensor) -> IndexLists:
        """Return the lists that a kernel derives from a table of pages."""
        lengths = [one.cached + one.computed for one in self.requests]
        read = []
        for row, length in enumerate(lengths):
            position = torch.arange(length)
            page = table[row, (position // part.page).clamp(max=table.shape[1] - 1)]
            read.append(page * part.page + position % part.page)
        write = [rows[one.cached :] for rows, one in zip(read, self.requests, strict=True)]
        return IndexLists(torch.cat(read), torch.cat(write), list(accumulate(lengths)))

    def rows(self) -> tuple[Row, ...]:
        """Return the rows of the forward pass."""
        slots = {name: self._slots(part, self.lists[name]) for name, part in self.parts.items()}
        return tuple(
            Row(
                one.state.request_id,
                [*one.state.initial_tokens, *one.state.generated_tokens],
                one.cached,
                one.computed,
                {name: found[at] for name, found in slots.items()},
            )
            for at, one in enumerate(self.requests)
        )

    def _slots(self, part: LayerGroup, lists: IndexLists) -> list[Tensor]:
        """Return the slot of each position of each row, or -1 for none."""
        read, write = part.slots(lists.read).cpu(), self._written(part, lists)
        found, place, begin = [], 0, 0
        for one, end in zip(self.requests, lists.ends, strict=True):
            slots = torch.full((one.cached + one.computed,), -1)
            size = min(max(0, end - one.computed - begin), one.cached)
            old = read[end - one.computed - size : end - one.computed]  # The list may be too short.
            slots[one.cached - size :][: len(old)] = old
            slots[one.cached :] = write[place : place + one.computed]
            found.append(slots)
            place, begin = place + one.computed, max(begin, end)
        return found

    def written(self) -> dict[str, Tensor]:
        """Return the slots of new tokens, per group."""
        found = {name: self._written(self.parts[name], one) for name, one in self.lists.items()}
        return {name: slots[slots >= 0] for name, slots in found.items()}

    def _written(self, part: LayerGroup, lists: IndexLists) -> Tensor:
        """Return the slot of each new token, or -1 for the slot of unused writes."""
        slots = part.slots(lists.write).cpu()
        return slots.masked_fill(slots == part.slots(torch.tensor(part.trash[2:])), -1)


def written_on_device(
    count: int, given: Mapping[str, Any], parts: Mapping[str, LayerGroup]
) -> dict[str, Tensor]:
    """Return the slots that the first `count` tokens may write, on the device, without a wait."""
    found, table = {}, given.get("block_table")
    for name, part in parts.items():
        number = part.allocator.index
        if table is None:
            indices = given["write_index"][number][:count]
        else:
            position = given["position_ids"][0, :count].long()
            column = (position // part.page).clamp(max=table.shape[-1] - 1)
            page = table[number][:count].gather(1, column[:, None])[:, 0]
            indices = page.long() * part.page + position % part.page
        found[name] = part.slots(indices)
    return found


def lists_of(batch: TransformersBatch) -> Iterator[IndexList]:
    """Yield the index lists that attention reads. Entries after those of the rows are padding."""
    for name, lists in batch.lists.items():
        if not lists.read.numel():
            continue
        part, begins = batch.parts[name], [0, *lists.ends[:-1]]
        # Layers with a window get the K and V of new tokens directly.
        direct = part.window is not None
        rows = zip(begins, lists.ends, batch.requests, strict=True)
        counts = [end - begin - direct * one.computed for begin, end, one in rows]
        entries = part.slots(lists.read).cpu()
        yield IndexList(
            f"read_index[{name}]",
            name,
            entries,
            torch.tensor([*begins, lists.ends[-1]]),
            torch.tensor([*counts, len(entries) - lists.ends[-1]]),
            computed=0 if direct else None,
            exact=False,
        )


def implied_inputs(batch: TransformersBatch) -> Iterator[StaticInput]:
    """Yield the arguments of the model whose values the batch implies, including padding."""
    given, rows, size = batch.given, len(batch.requests), batch.size
    starts = offsets(one.computed for one in batch.requests)
    yield expected("cu_seq_lens_q", given["cu_seq_lens_q"][: rows + 1], starts)
    # A request without a token to compute has no logits of its own.
    pairs = zip(starts[1:], batch.requests, strict=True)
    predicted = [(end, one) for end, one in pairs if one.predicted]
    last = [end - 1 if one.computed else -1 for end, one in predicted]
    yield expected("logits_indices", given["logits_indices"][: len(last)], last)
    tails: list[tuple[str, Tensor, int]] = [
        ("input_ids", given["input_ids"][0, size:], 0),
        ("position_ids", given["position_ids"][0, size:], 0),
        ("cu_seq_lens_q", given["cu_seq_lens_q"][rows + 1 :], size),
        ("logits_indices", given["logits_indices"][batch.predicted :], 0),
    ]
    for name, bounds in given["cu_seq_lens_k"].items():
        tails.append((f"cu_seq_lens_k[{name}]", bounds[rows + 1 :], int(bounds[rows])))
    table = given.get("block_table")
    for name, part in batch.parts.items():
        number = part.allocator.index
        if table is not None:
            tails.append((f"block_table[{name}]", table[number, rows:].flatten(), -1))
        else:
            tail = given["write_index"][number][size:]
            tails.append((f"write_index[{name}]", tail, part.trash[2]))
        lists, mask = batch.lists[name], masks_of(batch).get(name)
        if part.window is not None and lists.read.numel():
            yield new_tokens(batch, part, lists)
        if mask is not None and mask.numel() <= LARGEST_MASK:
            yield mask_of(batch, part, mask[0, 0])
            unused = mask[0, 0, size:] == 0  # Whether a padded query attends to a key.
            tails.append((f"attention_mask[{name}]", unused.flatten(), 0))
    for name, tail, right in tails:
        yield from padding(name, tail, right)


def masks_of(batch: TransformersBatch) -> dict[str, Tensor]:
    """Return the masks of a batch by group, without groups whose kernel needs none."""
    given = batch.given.get("attention_mask")
    masks = given if isinstance(given, dict) else dict.fromkeys(batch.parts, given)
    return {name: mask for name, mask in masks.items() if mask is not None}


def new_tokens(batch: TransformersBatch, part: LayerGroup, lists: IndexLists) -> StaticInput:
    """Return whether the entries of new tokens are their slots, or stand for new tokens."""
    places = [
        torch.arange(max(0, end - one.computed), end)
        for one, end in zip(batch.requests, lists.ends, strict=True)
    ]
    entries = lists.read.cpu()[torch.cat(places)]
    right = (entries == part.trash[1]) | (entries == lists.write.cpu())
    return expected(f"new tokens in read_index[{part.name}]", right, [1] * batch.size)


def mask_of(batch: TransformersBatch, part: LayerGroup, mask: Tensor) -> StaticInput:
    """Return the keys that each live token attends to, with the keys in its window as expected."""
    queries, keys = mask.shape
    ends = batch.given["cu_seq_lens_k"][part.name].tolist()
    # A mask with too few keys for the rows has another shape than what is expected.
    right = torch.zeros(batch.size, max(keys, *ends), dtype=torch.bool)
    first = 0
    for row, one in enumerate(batch.requests):
        begin, end = ends[row], ends[row + 1]
        last = one.cached + one.computed
        position = torch.arange(one.cached, last)[:, None]
        key = torch.arange(last - (end - begin), last)  # The keys of a row are its last positions.
        seen = key <= position
        if part.window is not None:
            seen &= position - key < part.window
        right[first : first + one.computed, begin:end] = seen
        first += one.computed
    name, held = f"attention_mask[{part.name}]", mask[: batch.size] == 0
    return expected(name, held, right, size=queries)


def buffers_of(io: Any) -> dict[str, Tensor]:
    """Return the static inputs of graphs by name."""
    found = inputs_by_name(held_by(io), dict(enumerate(io.cache.cache_allocators)))
    found |= {f"attention_mask[{name}]": mask for name, mask in (io.attention_mask or {}).items()}
    found["carry_over_ids"] = io.carry_over_ids
    return found | ({"block_table": io.block_table} if io.block_table.numel() else {})


def statics_of(io: Any, batch: TransformersBatch) -> list[StaticInput]:
    """Return the static inputs of graphs for a batch."""
    size, rows = batch.size, len(batch.given["cu_seq_lens_q"]) - 1
    reads = max((int(one.numel()) for one in batch.given["read_index"]), default=0)
    valid = {
        "input_ids": (0, int(io.config.vocab_size)),
        "position_ids": (0, int(io.cache.max_tokens_read)),
        "logits_indices": (0, max(size, 1)),
    }
    tokens, bounds = (size, batch.padded), (len(batch.requests) + 1, rows + 1)
    spans = {
        **dict.fromkeys(("input_ids", "position_ids", "carry_over_ids", "write_index"), tokens),
        **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), bounds),
        "logits_indices": (batch.predicted, rows),
        "read_index": (0, 0),
        "attention_mask": (1, 1),
    }
    for name, lists in batch.lists.items():
        spans[f"read_index[{name}]"] = [0, *lists.ends][-1], reads
    found = []
    for name, tensor in buffers_of(io).items():
        whole = len(tensor), len(tensor)
        live, used = spans.get(name) or spans.get(name.partition("[")[0], whole)
        found.append(StaticInput(name, tensor, live, max(live, used), valid=valid.get(name)))
    return found


def given_of(batch: TransformersBatch) -> list[StaticInput]:
    """Return the arguments of the model, to compare with those that a graph captured."""
    names = {part.allocator.index: name for name, part in batch.parts.items()}
    found = inputs_by_name(batch.given, names)
    if batch.given.get("block_table") is not None:
        found["block_table"] = batch.given["block_table"]
    return [StaticInput(f"{name} of the batch", one, 0, 0) for name, one in found.items()]


def inputs_by_name(given: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Tensor]:
    """Return the inputs in HELD by name, with one for each group where there are several.

    `given` are the model's arguments, or the inputs that the engine holds for them. `names` has the
    groups by number.
    """
    found = dict[str, Tensor]()
    for kind in HELD:
        if kind == "cu_seq_lens_k":
            found |= {f"{kind}[{group}]": ends for group, ends in given[kind].items()}
        elif kind.endswith("_index"):
            found |= {f"{kind}[{names[number]}]": one for number, one in enumerate(given[kind])}
        else:
            found[kind] = given[kind].flatten()
    return found


def held_by(io: Any) -> dict[str, Any]:
    """Return the same inputs as an object of the engine holds them."""
    return {name: getattr(io, attribute) for name, attribute in HELD.items()}


@contextmanager
def on_stream(runner: Any) -> Iterator[Any]:
    """Run the watcher on a runner's compute stream. Yields the stream that writes, or None."""
    stream = runner.inputs_and_outputs.compute_stream
    if stream is None:
        yield None
        return
    device = torch.get_device_module()
    writer = device.current_stream() if hasattr(device, "current_stream") else None
    with device.stream(stream):
        yield writer


def filled(
    inputs: Mapping[str, Tensor], prepared: Any, names: Mapping[int, str]
) -> dict[str, Tensor]:
    """Return the tensors that the engine fills, by name: on the host, if the inputs are copies."""
    if prepared is None:
        return dict(inputs)
    found = dict(inputs)
    for name, whole in inputs_by_name(held_by(prepared), names).items():
        here = inputs[name]
        mine = whole[: len(here)]
        same = mine.shape == here.shape and mine.data_ptr() != here.data_ptr()
        if same and torch.equal(mine, here.to(mine.device)):
            found[name] = mine
    return found


def unordered(early: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> list[StaticInput]:
    """Return the values that the compute stream read, with the written values as expected."""
    return [
        expected(f"{name} (read without waiting for its writer)", tensor, inputs[name])
        for name, tensor in early.items()
    ]


def asked_of(state: Any) -> Mapping[str, Any]:
    """Return the parameters of sampling that a client gave for a request."""
    given: Mapping[str, Any] = getattr(state, ASKED, state.logit_processor_kwargs)
    return given


def rows(batch: TransformersBatch, processors: Any) -> Iterator[RowValues]:
    """Yield the arguments of logits processors that have one per request."""
    given = batch.given.get("logits_processor_args")
    mine = [one.state for one in batch.requests if one.predicted]
    per_request = [one for one in processors.logits_processor if hasattr(one, "supported_kwargs")]
    if given is None or not mine:
        return
    for number, processor in enumerate(per_request):
        for name, kind in processor.supported_kwargs.items():
            held = given[number, : len(mine)]
            held = held.view(torch.float32) if kind is float else held
            asked = [asked_of(one).get(name, getattr(processor, name)) for one in mine]
            least = processor.min_tokens_to_keep if name == "top_k" else None
            right = asked if least is None else [max(one, least) for one in asked]
            names = [one.request_id for one in mine]
            yield rows_of(name, names, held, right, place_of(processors.prepare_tensor_args))


def sampled_of(state: Any, processors: Sequence[Any]) -> Sampled:
    """Return the row of logits of a request. `processors` have the parameters that it lacks."""
    plain = AskedSampling()
    given = {
        name: asked_of(state).get(
            name, next(filter(None, (maybe(o, name) for o in processors)), one)
        )
        for name, one in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0))
    }
    return Sampled(state.request_id, replace(plain, **given), 0, ())


def heads(
    batch: TransformersBatch, noted: Mapping[str, Tensor], processors: Sequence[Any] = ()
) -> Iterator[RowValues]:
    """Yield whose hidden states the logits head gets, and whose logits the sampler.

    `noted` has the `hidden` states that were computed, those that are `given` to the head, the
    `logits`, and the `scores` that the sampler gets, which `processors` may change first.
    """
    mine, tokens, lasts = list[str](), list[str](), list[int]()
    for one in batch.requests:
        name, places = one.state.request_id, range(one.cached, one.cached + one.computed)
        tokens += [f"position {place} of request {name}" for place in places]
        if one.predicted and one.computed:
            mine.append(name)
            lasts.append(len(tokens) - 1)
    names = "hidden", "given", "logits", "scores"
    if not {*names} <= {*noted}:
        yield from untried(HIDDEN, mine, UNSEEN)
        yield from untried(LOGITS, mine, UNSEEN)
        return
    hidden, given, logits, scores = (row_sums(noted[name][0]) for name in names)
    if "logits_to_keep" in batch.given:
        whose = [f"request {name}" for name in mine]
        yield from handed_on(HIDDEN, mine, given[: len(mine)], lasts, hidden[: batch.size], tokens)
        lasts, logits = [*range(len(mine))], logits[: len(mine)]
    else:
        whose, logits = tokens, logits[: batch.size]
    known = {type(one).__name__ for one in processors} <= KNOWN
    if processors and known and noted["scores"].numel() <= MOST:
        states = {one.state.request_id: one.state for one in batch.requests}
        asked = [sampled_of(states[name], processors) for name in mine]
        raw, held = noted["logits"][0][lasts], noted["scores"][0][: len(mine)]
        yield from logits_of(asked, raw, held, heated=True)
    elif processors:
        yield from untried(LOGITS, mine, "processors change them first")
    else:
        yield from handed_on(LOGITS, mine, scores[: len(mine)], lasts, logits, whose)
