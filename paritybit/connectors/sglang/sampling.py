"""What the sampler and the adapters use for each row, and what its request asked for."""

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import expected
from paritybit.connectors.hooking import maybe, place_of
from paritybit.connectors.sampling import (
    MOST,
    ROUNDING,
    AskedSampling,
    Sampled,
    chosen,
    likely_of,
    logits_of,
    rows_of,
)
from paritybit.connectors.sglang.attention import spans_of
from paritybit.connectors.sglang.models import SglangModel
from paritybit.connectors.sglang.pools import PREFILLS
from paritybit.connectors.sglang.rows import Rows, mode_of
from paritybit.watch.facts import RowValues, StaticInput

UNSEEDED = 42
"""The seed of a request without one, if the engine samples deterministically."""

SETTLED = 4
"""The number of generated tokens of which at least one is penalised."""

OF_TOKENS = "acc_additive_penalties of tokens"

OF_ENDS = "acc_additive_penalties of ends"
"""The masks of tokens that end a request, unless a known wrong count explains them."""

MORE_ENDS = "additional_stop_token_ids"
"""The attribute of a tokenizer with more tokens that end a request."""

PARAMETERS = {
    "temperatures": ("temperature", 1.0),
    "top_ks": ("top_k", 1 << 30),
    "top_ps": ("top_p", 1.0),
    "min_ps": ("min_p", 0.0),
}
"""The parameter behind each field of a batch, and what the sampler uses if it looks at none."""

GREEDY = {"temperatures": 1, "top_ks": 1}
"""What greedy rows use: they take the likeliest token, whatever the rest says."""

KEPT = {
    "frequency_penalties": ("frequency_penalty", 0.0),
    "presence_penalties": ("presence_penalty", 0.0),
    "repetition_penalties": ("repetition_penalty", 1.0),
    "min_new_tokens": ("min_new_tokens", 0),
}
"""The parameter behind each field of a penalizer, and what holds without the penalizer."""

COUNTED = "len_output_tokens"
"""The field of a penalizer with the number of tokens that each request has generated."""


def rows(
    info: Any, requests: Sequence[Any], asked: Sequence[Any], mode: str, penalizers: Any = None
) -> Iterator[RowValues]:
    """Yield the engine's SamplingBatchInfo by row.

    `requests` are those of the rows, in order, and `asked` their parameters. `penalizers` is the
    BatchedPenalizerOrchestrator of the scheduler's batch, if there is one.
    """
    names = [one.rid for one in requests]
    size, greedy = len(names), info.is_all_greedy
    if len(info.temperatures) != size:
        return  # The batch is padded for other ranks.
    for name, (part, plain) in PARAMETERS.items():
        held = filled = getattr(info, name)
        if greedy and name in GREEDY:
            held = torch.full((size,), GREEDY[name])
        elif not getattr(info, f"need_{part}_sampling", True):
            held = torch.full((len(held),), plain)
        elif name == "top_ks" and (most := maybe(info, "max_top_k")) is not None:
            held = held.clamp(max=most)  # The sampler looks at no more tokens.
        if name in GREEDY or not greedy:
            right = [getattr(one, part) for one in asked]
            yield rows_of(name, names, held, right, filled=filled)
    if penalizers is not None:
        yield from kept(penalizers, requests, asked)
        if info.penalizer_orchestrator is penalizers and mode not in PREFILLS:
            yield from generated(penalizers, requests)
    if info.sampling_seed is not None:
        seeds = [UNSEEDED if one.sampling_seed is None else one.sampling_seed for one in asked]
        held = info.sampling_seed
        yield rows_of("sampling_seed", names, held, seeds, filled=held)
    if size * info.vocab_size <= MOST:
        given, asks = info.logit_bias, [one.logit_bias or {} for one in asked]
        # Without biases of the engine, entries after the last asked one need no comparison.
        width = 1 + max((int(token) for one in asks for token in one), default=-1)
        every = torch.zeros(size, width if given is None else info.vocab_size)
        held = every.clone() if given is None else given.float().cpu()
        for row, one in enumerate(asks):
            for token, bias in one.items():
                every[row, int(token)] = bias
        yield RowValues("logit_bias", names, held, every, filled=given)
        yield from penalties(info, requests, mode)


def kept(penalizers: Any, requests: Sequence[Any], asked: Sequence[Any]) -> Iterator[RowValues]:
    """Yield what the penalizers of the scheduler's batch keep for each row."""
    names = [one.rid for one in requests]
    ready = [one for one in penalizers.penalizers.values() if one.is_prepared()]
    for name, (part, plain) in KEPT.items():
        found = [maybe(one, name) for one in ready if penalizers.is_required]
        filled = next((one for one in found if one is not None), None)
        held = torch.full((len(names),), plain) if filled is None else filled
        yield rows_of(name, names, held, [getattr(one, part) for one in asked], filled=filled)


def generated(penalizers: Any, requests: Sequence[Any]) -> Iterator[RowValues]:
    """Yield the numbers of output tokens of rows that decode, if the engine does not overlap."""
    names = [one.rid for one in requests]
    ready = [one for one in penalizers.penalizers.values() if one.is_prepared()]
    for counts in [n for one in ready if (n := maybe(one, COUNTED)) is not None]:
        pairs = zip(counts.flatten().tolist(), requests, strict=False)
        yield rows_of(COUNTED, names, counts, [near(*pair) for pair in pairs], filled=counts)


def penalties(info: Any, requests: Sequence[Any], mode: str) -> Iterator[RowValues]:
    """Yield the penalties of each row, with the nearest ones that its own tokens allow.

    With overlap, the engine counts the last token that the scheduler knows, at first that of the
    prompt. It may count a token late, or once more for each step between which it got no other.
    Without, a row that decodes counts each token once.
    """
    own = info.penalizer_orchestrator
    exact = own is not None and own.is_required and mode == "decode"
    names, source = [one.rid for one in requests], place_of(info.update_penalties)
    added, scaled = applied(info)
    ids = [{one.origin_input_ids[-1], *one.output_ids} for one in requests]
    tokens_of = [sorted(one for one in some if one < info.vocab_size) for some in ids]  # No images.
    pairs = [*zip(requests, tokens_of, strict=True)]
    if added is not None:
        held = added.float().cpu()
        masked, none = held == -torch.inf, torch.zeros_like(held)
        given = none.masked_fill(masked, -torch.inf)
        counts = [len(one.output_ids) for one in requests], [*map(counted, requests)]
        due, known = (
            torch.stack([ended(*row) for row in zip(masked, requests, by, strict=True)])
            for by in counts
        )
        for name, places in {
            "acc_additive_penalties": masked & (due | ~known),
            OF_ENDS: due | masked & known,
        }.items():
            right = none.masked_fill(places, -torch.inf)
            yield RowValues(name, names, given, right, source=source)
        held = held.masked_fill(masked, 0)
        triples = zip(held, pairs, strict=True)
        right = torch.stack([allowed(row, *pair, mode, exact=exact) for row, pair in triples])
        yield RowValues(OF_TOKENS, names, held, right.masked_fill(masked, 0), ROUNDING, source)
    if scaled is not None:
        held = scaled.float().cpu()
        right = torch.ones_like(held)
        for row, (request, tokens) in enumerate(pairs):
            factor = torch.tensor(request.sampling_params.repetition_penalty)
            mine = held[row, tokens]
            right[row, tokens] = torch.where(mine == 1, mine, factor)
            if exact and not again(request):
                right[row, [one for one in request.output_ids if one < info.vocab_size]] = factor
        yield RowValues("acc_scaling_penalties", names, held, right, ROUNDING, source)


def applied(info: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return what the sampler adds to the logits, and the factors by which it scales them."""
    added, scaled = info.acc_additive_penalties, info.acc_scaling_penalties
    own = info.penalizer_orchestrator
    if own is not None and own.is_required:  # The engine does not overlap.
        none = torch.zeros(len(info.temperatures), info.vocab_size, device=info.temperatures.device)
        added = none if added is None else added.clone()
        own.accumulate_additive_penalties(added)
        scaled = own.accumulate_scaling_penalties()
    return added, scaled


def counted(request: Any) -> int:
    """Return the tokens of a request by the wrong count of the engine: see `docs/findings.md`.

    It counts one per step with drafts, and those since it began again after retraction.
    """
    count, steps = len(request.output_ids), int(getattr(request, "spec_verify_ct", 0))
    if not getattr(request, "retraction_count", 1):
        return steps or count
    end: int | None = maybe(request, "extend_end")
    if steps or end is None:
        return 0  # It is not known.
    return count - max(0, end - len(request.origin_input_ids))


def near(held: int, request: Any) -> int:
    """Return the nearest number of output tokens to that of a row which its request allows.

    Only requests with a minimum need it. The engine may count the last token late, and those of a
    request that began again anew.
    """
    counts = len(request.output_ids), counted(request)
    needed = request.sampling_params.min_new_tokens > 0
    return min(max(held, min(counts) - 1), max(counts) + 1) if needed else held


def ended(masked: Tensor, request: Any, count: int) -> Tensor:
    """Return which of the tokens that end a request are masked, bool [vocabulary].

    They are until it has enough tokens. Some releases do not mask those of the model's own.
    """
    asked, words = request.sampling_params, request.tokenizer
    known = maybe(words, "eos_token_id"), *(maybe(words, MORE_ENDS) or ())
    always = {*(asked.stop_token_ids or ()), *known}
    ends = {*always, *(request.eos_token_ids or ())} if count <= asked.min_new_tokens + 1 else ()
    due = always if count + SETTLED < asked.min_new_tokens else ()
    may, must = (
        [one for one in tokens if one is not None and one < len(masked)] for tokens in (ends, due)
    )
    right = torch.zeros_like(masked)
    right[may] = masked[may]
    right[must] = True
    return right


def again(request: Any) -> bool:
    """Return whether a request began again. It no longer counts its earlier tokens then."""
    return bool(getattr(request, "retraction_count", 1) or getattr(request, "is_retracted", False))


def allowed(held: Tensor, request: Any, tokens: Sequence[int], mode: str, *, exact: bool) -> Tensor:
    """Return the nearest penalties to those of a row that its tokens allow.

    They are `exact` if the engine counts each token once, unless the request began again.
    """
    asked, right = request.sampling_params, torch.zeros_like(held)
    frequency, presence = asked.frequency_penalty, asked.presence_penalty
    most, counts = len(request.output_ids) + 1, Counter(request.output_ids)
    for token in tokens:
        possible = [counts[token]] if exact and not again(request) else range(most + 1)
        choices = [-(frequency * count + presence) if count else 0.0 for count in possible]
        right[token] = min(choices, key=lambda one: abs(float(held[token]) - one))
    settled = mode == "decode" and len(request.output_ids) >= SETTLED
    penalised = asked.frequency_penalty or asked.presence_penalty
    if settled and penalised and not again(request) and not bool(right.any()):
        right[request.output_ids[0]] = -(asked.frequency_penalty + asked.presence_penalty)
    return right


def of_prompts(
    processor: Any, hidden: Tensor, head: Any, batch: Any, given: Any, found: Rows, requests: Any
) -> Iterator[RowValues]:
    """Yield the logits after each prompt, and the log-likelihoods of its tokens.

    `given` has those of the engine's `processor`. The `head` is applied to `hidden` here again. It
    may have the part of the vocabulary that belongs to this rank.
    """
    logits, cap = hidden @ head.weight.T, processor.final_logit_softcapping
    logits = cap * (logits / cap).tanh() if cap else logits
    held = given.next_token_logits.cpu()
    part, size = maybe(head, "shard_indices.org_vocab_start_index") or 0, held.shape[1]
    held = held[:, part : part + logits.shape[1]]
    logits, apart = logits[:, : held.shape[1]].cpu(), held.shape[1] < size
    starts, values = batch.extend_logprob_start_lens_cpu, given.input_token_logprobs
    first, place = 0, 0
    names, ends = [row.request for row in found.rows], list[int]()
    prompts = {one.rid: len(one.origin_input_ids) for one in requests}
    for row, start in zip(found.rows, starts or [0] * len(names), strict=True):
        last, begin = first + row.computed, row.cached + start + 1
        ends.append(last - 1)
        # The token after the last one may not be known. Those of an output have no use.
        tokens = row.tokens[begin : min(row.cached + row.computed, prompts[row.request])]
        if values is not None and tokens and apart:
            why = "other ranks have the rest of the vocabulary"
            yield RowValues("log-likelihoods", [row.request], values, values, untried=why)
        elif values is not None and tokens:
            ids = torch.tensor(tokens)
            text = ids >= 0  # Images have no logits.
            mine = logits[first + start :][: len(tokens)][text].log_softmax(1)
            right = mine.gather(1, ids[text, None]).T
            theirs = values[place : place + len(tokens)].cpu()[text][None]
            yield RowValues("log-likelihoods", [row.request], theirs, right, ROUNDING)
        first, place = last, place + row.computed - start
    yield RowValues("logits of prompts", names, held, logits[ends], ROUNDING)


# Tokens.


def asked_of(given: Any, vocabulary: int) -> AskedSampling:
    """Return which tokens sampling parameters drop, and the biases."""
    bias = {int(token): value for token, value in (given.logit_bias or {}).items()}
    top_k = given.top_k if given.top_k < vocabulary else 0
    return AskedSampling(given.temperature, top_k, given.top_p, given.min_p, bias=bias)


def simulated() -> bool:
    """Return whether the engine accepts drafts by chance."""
    module = sys.modules.get("sglang.srt.speculative.spec_utils")
    return (getattr(module, "SIMULATE_ACC_LEN", 0) or 0) > 0


def processed(request: Any) -> bool:
    """Return whether a processor that is not known changes the logits of a request."""
    return maybe(request, "custom_logit_processor") is not None


def biased(requests: Sequence[Any], raw: Tensor, held: Tensor) -> Iterator[RowValues]:
    """Yield the logits of requests without penalties before and after their biases."""
    rows = list[Sampled]()
    for one in requests:
        asked = one.sampling_params
        strengths = (
            *(asked.frequency_penalty, asked.presence_penalty, asked.repetition_penalty - 1),
            asked.min_new_tokens,
        )
        plain = not any(strengths) and maybe(one, "grammar") is None
        bias = AskedSampling(bias=asked_of(asked, raw.shape[-1]).bias)
        rows.append(Sampled(one.rid, bias, 0, (), used=plain))
    yield from logits_of(rows, raw, held)


def allowed_tokens(
    requests: Sequence[Any], asked: Sequence[Any], logits: Tensor, made: Sequence[Sequence[int]]
) -> Iterator[RowValues]:
    """Yield the tokens that were `made` for requests, by the `logits` of each token."""
    rows = [row for row, tokens in enumerate(made) for _ in tokens]
    tokens = [token for some in made for token in some]
    mine = [at for at, row in enumerate(rows) if not processed(requests[row])]
    names = [requests[rows[at]].rid for at in mine]
    parts = [asked_of(asked[rows[at]], logits.shape[-1]) for at in mine]
    yield from chosen(names, parts, logits[mine], [tokens[at] for at in mine])


def likelihoods(
    requests: Sequence[Any],
    asked: Sequence[Any],
    logits: Tensor,
    made: Sequence[Sequence[int]],
    *,
    heats: bool,
) -> list[list[float | None]] | None:
    """Return the log-likelihoods of the tokens that were `made`, if a request asks for them.

    Without `heats`, they do not depend on temperatures, as in a batch of greedy requests.
    """
    module = sys.modules.get("sglang.srt.layers.sampler")
    other = getattr(module, "SGLANG_RETURN_ORIGINAL_LOGPROB", False)
    if other or not any(maybe(one, "return_logprob") for one in requests):
        return None
    pairs = zip(asked, made, strict=True)
    heat = torch.tensor(
        [one.temperature if heats else 1.0 for one, tokens in pairs for _ in tokens]
    )
    found = iter(
        likely_of(
            logits / heat[:, None].to(logits.device), [token for some in made for token in some]
        )
    )
    rows = [[next(found) for _ in tokens] for tokens in made]
    return [
        [None] * len(row) if processed(one) else [*row]
        for one, row in zip(requests, rows, strict=True)
    ]


def listed(request: Any, places: Iterable[int]) -> Mapping[int, float]:
    """Return the log-likelihoods that a request has for tokens at some places."""
    given = maybe(request, "logprob.output_token_logprobs_val")
    given = maybe(request, "output_token_logprobs_val") if given is None else given
    known = given is not None and len(given) == len(request.output_ids)
    first = len(request.origin_input_ids)
    mine = [at for at in places if known and 0 <= at - first < len(given)]
    return {at: float(given[at - first]) for at in mine}


# LoRA adapters.

BASE, TWICE = -1, -2
"""Stand for a token without an adapter, and for one that several segments have.

The engine keeps the weights of a few adapters in numbered buffers. A batch has segments of tokens
with a buffer each. A buffer with the rank 0 stands for the base model.
"""


def buffers_used(now: Any, requests: Sequence[Any]) -> list[StaticInput]:
    """Return the buffers that the tokens of the current forward use."""
    model, found = now.model, now.rows
    manager = maybe(model.runner, "lora_manager")
    pool = maybe(manager, "memory_pool")
    info = maybe(manager, "lora_backend.batch_info")
    # With data-parallel attention, the forward itself prepares the batch.
    late = model.drafts or maybe(manager, "attn_dp_enabled")
    if late or pool is None or info is None or not found.rows:
        return []
    places = {name: place for place, name in reversed([*enumerate(pool.buffer_id_to_uid)])} | {
        None: BASE
    }
    names = {request.rid: maybe(request, "lora_id") for request in requests}
    of_rows = dict(found.pairs)
    spans = spans_of(now.batch, mode_of(now.batch), found)
    wanted = [
        places.get(names[row.request], TWICE - 1)
        for at, row in of_rows.items()
        for _ in range(spans[at][1])
    ]
    used = used_by(info, len(wanted))
    indices = expected("weight_indices", torch.tensor(used), wanted, info.weight_indices)
    kept = unloaded(pool, manager)
    return [indices, *kept, *weights_loaded(model, pool, info.lora_ranks.tolist(), used)]


def unloaded(pool: Any, manager: Any) -> Iterator[StaticInput]:
    """Yield which buffers have an adapter that is not loaded, in releases that remove it."""
    if (loaded := maybe(manager, "loras")) is not None and hasattr(pool, "remove_lora"):
        names = [one for one in pool.buffer_id_to_uid if isinstance(one, str)]
        held, source = [int(one not in loaded) for one in names], place_of(pool.remove_lora)
        one = expected("adapters in buffers", torch.tensor(held), [0] * len(names))
        yield replace(one, source=source)


def weights_loaded(
    model: SglangModel, pool: Any, ranks: Sequence[int], used: Collection[int]
) -> Iterator[StaticInput]:
    """Yield sums of the weights in LoRA buffers that were loaded since their last use.

    They must equal those of the adapter's first load. An adapter of a lower rank is left out,
    because it leaves a part of its buffer as it was.
    """
    for place, name in enumerate(pool.buffer_id_to_uid):
        full = ranks[place] == pool.max_lora_rank
        if place not in used or not full or model.loaded.get(place) == name:
            continue
        model.loaded[place] = name
        buffers = (*pool.A_buffer.values(), *pool.B_buffer.values())
        held = torch.stack([layer[place].double().sum() for layers in buffers for layer in layers])
        right = model.weights.setdefault(name, held)
        source = place_of(pool.load_lora_weight_to_buffer)
        yield replace(expected("weights of an adapter", held, right), source=source)


def used_by(info: Any, count: int) -> list[int]:
    """Return the buffer of the adapter that is applied to each of the first `count` tokens."""
    ranks, order = info.lora_ranks.tolist(), maybe(info, "permutation")
    places = range(count) if order is None else order.tolist()
    found = [BASE] * count
    for buffer, first, last in segments(info):
        if not ranks[buffer]:
            continue
        for token in places[first:last]:
            if token < count:
                found[token] = buffer if found[token] == BASE else TWICE
    return found


def segments(info: Any) -> Iterator[tuple[int, int, int]]:
    """Yield the buffer of each segment that the kernels read, its start and its end."""
    starts, lengths = info.seg_indptr.tolist(), maybe(info, "seg_lens")
    buffers = info.weight_indices.tolist()
    if lengths is not None and bool(lengths.any()):
        lengths = lengths.tolist()
        for place in range(info.bs):
            yield buffers[place], starts[place], starts[place] + lengths[place]
    else:
        for place in range(len(buffers) if info.use_cuda_graph else info.num_segments):
            yield buffers[place], starts[place], starts[place + 1]
