"""Judges what the samplers and adapters of both runners use for each row.

The older runner keeps arrays by row of the batch, and moves requests between rows. The newer one
keeps them by a slot that a request has until it ends.
"""

import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import attributes, offsets, tensors
from paritybit.connectors.hooking import Call, maybe, place_of
from paritybit.connectors.sampling import (
    HIDDEN,
    LOGITS,
    MOST,
    PROBABLE,
    ROUNDING,
    AskedSampling,
    Recording,
    Sampled,
    Streams,
    chosen,
    handed_on,
    likely_of,
    logits_of,
    moves,
    row_sums,
    rows_of,
    untried,
)
from paritybit.connectors.vllm.drafting import Drafting
from paritybit.connectors.vllm.requests import Account, tokens_of
from paritybit.watch.bits import sums_of
from paritybit.watch.facts import RowValues
from paritybit.watch.stacks import Stack
from paritybit.watch.weak import Weakly

SAMPLER = "sampler"

GREEDY = 1e-5
"""Requests with a lower temperature get the likeliest token."""

GRAMMAR = "sampling_params.structured_outputs"

COUNTED = "it is not known which tokens the engine counts for a request that was just added"
MASKED = "a grammar masks them first"
FEWER = "the engine verifies fewer drafts than were scheduled"
LATE = "the engine may count drafts that are rejected"

LENIENT = "synthetic", "fly"
"""The ways to verify drafts that accept tokens which the logits of a row do not allow."""

RAW = "raw_logprobs"
"""The log-likelihoods that an engine returns by default: those before any parameter."""

OF_OTHERS = "logits of tokens that the request does not have"

OF_PROMPTS, COUNT_OF_PROMPTS = "log-likelihoods of a prompt", "number of them"
"""What the engine returns for a prompt."""

NONE = -1
"""Stands for the seed of a request without one."""

PENALTIES = "frequency_penalty", "presence_penalty", "repetition_penalty"
OF_OLDER = "temperature", "top_k", "top_p", *PENALTIES
OF_NEWER = *OF_OLDER, "min_p", "seed"
"""The parameters that the samplers keep by row or by slot, as fields of `AskedSampling`."""

WITHOUT = {"temperature": 0.0, "top_p": 1.0, **dict.fromkeys(PENALTIES, 0.0), PENALTIES[2]: 1.0}
"""What a sampler uses that does not look at a parameter. For `top_k`, it is the vocabulary."""

STACKS = "lora_a_stacked", "lora_b_stacked"
"""The attributes of a layer with the weights of the adapters in each slot."""

BUILT_IN = {
    *("MinTokensLogitsProcessor", "LogitBiasLogitsProcessor", "MinPLogitsProcessor"),
    *("LogitBiasState", "PenaltiesState", "BadWordsState"),
}
"""The classes of logits processors whose effect is known."""


def asked_of(request: Any, vocabulary: int) -> AskedSampling | None:
    """Return the sampling parameters of a request, or None if they are not judged."""
    given = request.sampling_params
    if given is None or maybe(given, "thinking_token_budget") is not None:
        return None
    return AskedSampling(
        temperature=given.temperature if given.temperature >= GREEDY else 0.0,
        top_k=given.top_k if 0 < given.top_k < vocabulary else 0,
        top_p=given.top_p,
        min_p=given.min_p,
        bias=given.logit_bias or {},
        allowed=given.allowed_token_ids or None,
        forbidden=given.bad_words_token_ids or (),
        least=given.min_tokens,
        stops=given.all_stop_token_ids,
        seed=given.seed,
        **{name: getattr(given, name) for name in PENALTIES},
    )


@dataclass
class SampledBatch:
    """The rows of the last checked forward: requests, with the drafts that they verify last."""

    rows: list[Sampled]
    drafts: list[int]
    cached: list[int]
    vocabulary: int
    account: Account | None = None
    """With one, the older runner may count drafts that are rejected, when a request may end."""
    added: Collection[str] = ()
    """Requests that begin, with drafts that only stand for some."""
    tokens: dict[int, int] = field(default_factory=dict)
    """The tokens that the sampler returns, by the row of logits."""
    taken: int = 0
    """The number of logits rows that the sampler has processed."""
    masked: Collection[str] = ()
    """Requests with a grammar."""
    hidden: Tensor | None = None
    scored: Tensor | None = None
    """The checksums of the hidden states of all tokens, and of the logits that the head returns."""
    raw: Tensor | None = None
    """The logits that the head returns, if a request asks for log-likelihoods of its output."""
    final: list[tuple[Sequence[int], Sequence[Sampled], Tensor]] = field(default_factory=list)
    """The logits after the parameters of rows, with their places and what they ask of them."""
    listed: bool = False
    """Whether the head's logits are needed for log-likelihoods."""
    prompted: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The prompts of requests that ask for their log-likelihoods."""
    exact: bool = True
    """Whether the logits of a row say which tokens it may get."""

    @classmethod
    def of(
        cls, now: Any, names: Sequence[str], of: Mapping[str, Any], account: Account | None
    ) -> "SampledBatch | None":
        """Return the rows of a forward, or None if what a request asks is not judged."""
        vocabulary = int(now.runner.vllm_config.model_config.get_vocab_size())
        asked = [asked_of(of[name], vocabulary) for name in names]
        rows, given = list[Sampled](), dict[str, list[int]]()
        drafts, found = now.output.scheduled_spec_decode_tokens, now.forward.rows
        if any(one is not None and (one.counts or one.least) for one in asked):
            given = now.batch.by_row(names, now.output.num_scheduled_tokens)
        for name, row, one in zip(names, found, asked, strict=False):
            if one is None:
                return None
            known = list(row.tokens[: row.cached + row.computed])
            for first, count, _ in of[name].contents:  # It counts what stands for images.
                end = min(first + count, len(known))
                known[first:end] = of[name].all_token_ids[first:end]
            for place, token in enumerate(given.get(name, ()), row.cached):
                known[place] = token if known[place] is None else known[place]
            used = len(known) >= len(of[name].all_token_ids)
            rows.append(Sampled(name, one, int(of[name].num_prompt_tokens), known, used))
        cached = [row.cached for row in found[: len(names)]]
        counts = [len(drafts.get(name, ())) for name in names]
        begun = {} if account is None else account.requests
        added = {
            name for name, one in begun.items() if drafts.get(name) and one.computed < one.begun
        }
        masked = {name for name in names if maybe(of[name], GRAMMAR) is not None}
        runner = now.runner
        usual = maybe(runner, "vllm_config.model_config.logprobs_mode") == RAW
        ranks = maybe(runner, "vllm_config.parallel_config.tensor_parallel_size")
        alone = ranks == 1 and maybe(runner, "vllm_config.lora_config") is None
        listed, prompted = (
            {name for name in names if maybe(of[name], f"sampling_params.{part}") is not None}
            for part in ("logprobs", "prompt_logprobs")
        )
        how = maybe(runner, "vllm_config.speculative_config.rejection_sample_method")
        exact = how not in LENIENT and maybe(runner, "sampler.trace_replay_state") is None
        return cls(
            *(rows, counts, cached, vocabulary, account, added),
            masked=masked,
            listed=usual and bool(listed),
            prompted={
                name: of[name].all_token_ids[: of[name].num_prompt_tokens]
                for name in (prompted if usual and alone else ())
            },
            exact=exact,
        )

    @property
    def names(self) -> list[str]:
        """The requests in the order of the batch."""
        return [row.request for row in self.rows]

    def every(self, last: bool = True) -> list[Sampled]:
        """Return a row per row of logits: for each draft, and with `last` for the next token."""
        return [
            replace(row, tokens=row.tokens[: len(row.tokens) - (drafts - place)])
            for row, drafts in zip(self.rows, self.drafts, strict=True)
            for place in range(drafts + last)
        ]

    @property
    def places(self) -> list[int]:
        """The indices of the tokens whose logits are sampled."""
        pairs = zip(self.rows, self.cached, strict=True)
        ends = accumulate(len(row.tokens) - cached for row, cached in pairs)
        return [
            place
            for end, drafts in zip(ends, self.drafts, strict=True)
            for place in range(end - drafts - 1, end)
        ]

    def made(
        self, result: Any
    ) -> tuple[list[str], list[int], list[list[int]], list[list[float | None]] | None]:
        """Return what `Recording.sampled` gets of the result of a sampler."""
        first, *rest = result if isinstance(result, tuple) else (result,)
        tokens = tokens_of(first.sampled_token_ids, *rest[:1])
        rows = zip(
            self.rows, self.drafts, tokens, offsets(n + 1 for n in self.drafts), strict=False
        )
        found = [
            (row, len(row.tokens) - drafts, made, at) for row, drafts, made, at in rows if row.used
        ]
        self.tokens = {
            at + place: token for *_, made, at in found for place, token in enumerate(made)
        }
        likely = None
        if self.raw is not None and len(self.raw) == sum(self.drafts) + len(self.drafts):
            values = likely_of(self.raw[[*self.tokens]], [*self.tokens.values()])
            by_place = dict(zip(self.tokens, values, strict=True))
            # A grammar masks logits before the engine takes log-likelihoods of them.
            likely = [
                [
                    None if row.request in self.masked else by_place[at + place]
                    for place in range(len(made))
                ]
                for row, _, made, at in found
            ]
        names, firsts = [row.request for row, *_ in found], [first for _, first, *_ in found]
        return names, firsts, [made for _, _, made, _ in found], likely

    def chosen(self) -> Iterator[RowValues]:
        """Yield the tokens of the result of a sampler, and some that their logits allow."""
        places = [at for places, *_ in self.final for at in places]
        # If the engine verifies fewer drafts, it is not known which row is whose.
        if not self.exact or sorted(places) != [*range(sum(self.drafts) + len(self.drafts))]:
            return
        for places_of, rows, logits in self.final:
            mine = [at for at, place in enumerate(places_of) if place in self.tokens]
            names, asked = [rows[at].request for at in mine], [rows[at].asked for at in mine]
            yield from chosen(
                names, asked, logits[mine], [self.tokens[places_of[at]] for at in mine]
            )

    def logits_indices(self, given: Tensor) -> Iterator[RowValues]:
        """Yield the indices of the tokens whose logits are sampled."""
        names = [row.request for row in self.every()]
        yield rows_of("logits_indices", names, given, self.places, None, given)

    def heads(self, hidden: Tensor, logits: Tensor | None) -> Iterator[RowValues]:
        """Yield whose hidden states the logits head gets. Note the logits that it returns."""
        tokens = [
            f"position {place} of request {row.request}"
            for row, cached in zip(self.rows, self.cached, strict=True)
            for place in range(cached, len(row.tokens))
        ]
        names = [row.request for row in self.every()]
        given = row_sums(hidden)
        yield from handed_on(HIDDEN, names, given, self.places, self.hidden, tokens)
        if self.hidden is not None and logits is not None:
            self.scored = row_sums(logits)
        if self.listed and logits is not None and logits.numel() <= MOST:
            self.raw = logits.float().clone()

    def handed(self, raw: Tensor, places: Sequence[int]) -> Iterator[RowValues]:
        """Yield whose logits the sampler gets, which are to be those at `places`."""
        every, given = [row.request for row in self.every()], row_sums(raw)
        rows = [at for at, place in enumerate(places) if every[place] not in self.masked]
        mine, whose = [places[at] for at in rows], [f"request {name}" for name in every]
        names = [every[place] for place in mine]
        yield from handed_on(LOGITS, names, given[rows], mine, self.scored, whose)
        yield from untried(LOGITS, [*self.masked], MASKED)

    def prompts(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the tokens of prompts whose log-likelihoods this forward computes.

        They have a request and a position, and the value is the place of the token before among
        those of the forward, and the token.
        """
        found, start = dict[tuple[str, int], tuple[int, int]](), 0
        for row, cached in zip(self.rows, self.cached, strict=True):
            prompt = self.prompted.get(row.request, ())
            for at in range(cached + 1, min(len(row.tokens) + 1, len(prompt))):
                found[row.request, at] = start + at - 1 - cached, prompt[at]
            start += len(row.tokens) - cached
        return found

    def others(
        self, rows: Sequence[Sampled], raw: Tensor, held: Tensor, names: Collection[str]
    ) -> Iterator[RowValues]:
        """Yield the logits of requests for tokens that they do not have, which have no penalty.

        It is not known which of their own tokens the engine counts.
        """
        places = [
            at for at, row in enumerate(rows) if row.used and row.request in names and row.known
        ]
        if not places or len(places) * raw.shape[-1] > MOST:
            return
        right = torch.stack([rows[at].logits(raw[at], heated=False) for at in places])
        given = held[places].float()
        for row, at in enumerate(places):
            forbidden = (word[-1] for word in rows[at].asked.forbidden)
            own = {*rows[at].tokens, *forbidden, *rows[at].asked.stops}
            mine = [one for one in own if one is not None and one < raw.shape[-1]]
            right[row, mine] = given[row, mine]
        yield RowValues(OF_OTHERS, [rows[at].request for at in places], given, right, ROUNDING)

    def drawn(self, given: Mapping[str, Any], count: int) -> Iterator[RowValues]:
        """Yield where in its text the newer runner draws the token of each row of logits."""
        rows = self.every()[self.taken : self.taken + count]
        names = [row.request for row in rows]
        steps = [step for drafts in self.drafts for step in range(drafts + 1)]
        right = {
            "pos": [len(row.tokens) - 1 for row in rows],
            "expanded_local_pos": steps[self.taken : self.taken + count],
        }
        for name, values in right.items():
            if isinstance(held := given.get(name), Tensor) and len(held) == len(rows):
                yield rows_of(name, names, held, values)

    def asks(self, row: Sampled, given: Any, owner: Any, dropped: bool) -> AskedSampling:
        """Return what the logits of a row do not have yet: the newer runner's have temperatures.

        They may also lack what `top_p` has `dropped`, so what is left is likelier. The older runner
        verifies drafts without `min_p`.
        """
        if given is None:
            top_p = 1.0 if dropped else row.asked.top_p
            heat = 1.0 if row.asked.temperature else 0.0
            return replace(row.asked, temperature=heat, top_p=top_p)
        return replace(row.asked, min_p=0.0) if hasattr(owner, "sampler") else row.asked

    def asked(self, part: str, rows: Sequence[Sampled]) -> list[Any]:
        """Return what the requests of rows ask for as one parameter of their sampling."""
        values = [getattr(row.asked, part) for row in rows]
        return [value or self.vocabulary for value in values] if part == "top_k" else values

    def older(self, runner: Any, verified: Any) -> Iterator[RowValues]:
        """Yield what the older runner uses by row. `verified` says where drafts are, or is None."""
        batch, names, size = runner.input_batch, self.names, len(self.rows)
        given = batch.sampling_metadata
        for part in OF_OLDER:
            name = part.replace("penalty", "penalties")
            right, held = self.asked(part, self.rows), getattr(given, name)
            if part == "temperature" and given.all_random:
                held = held.masked_fill(held < GREEDY, torch.inf)
            unused = given.no_penalties and part in PENALTIES
            if held is None or unused or (given.all_greedy and part == "temperature"):
                held = torch.full((size,), WITHOUT.get(part, float(self.vocabulary)))
            filled = getattr(batch, f"{name}_cpu_tensor")
            yield rows_of(name, names, held[:size], right, None, filled)
        for one in given.logitsprocs.argmax_invariant:
            if hasattr(one, "min_p_count"):
                values = one.min_p if one.min_p_count else torch.zeros(size)
                right, source = self.asked("min_p", self.rows), place_of(one.update_state)
                yield rows_of("min_p", names, values, right, source)
        seeds = {row: one.initial_seed() for row, one in given.generators.items()}
        held = torch.tensor([seeds.get(row, NONE) for row in range(size)])
        asked = (row.asked for row in self.rows)
        right = [NONE if one.seed is None or not one.temperature else one.seed for one in asked]
        yield rows_of("seed of the generator", names, held, right)
        if verified is not None:
            yield from self.drafts_of(verified)

    def drafts_of(self, verified: Any) -> Iterator[RowValues]:
        """Yield where the older runner's sampler finds the drafts and logits of requests."""
        firsts = offsets(count + 1 for count in self.drafts)
        pairs = zip(firsts, self.drafts, strict=False)
        right = {
            "num_draft_tokens": self.drafts,
            "cu_num_draft_tokens": offsets(self.drafts)[1:],
            "bonus_logits_indices": [end - 1 for end in firsts[1:]],
            "target_logits_indices": [at + place for at, count in pairs for place in range(count)],
        }
        for name, values in right.items():
            each = name == "target_logits_indices"
            names = [row.request for row in self.every(last=False)] if each else self.names
            yield rows_of(name, names, getattr(verified, name), values)

    def generators(self, runner: Any) -> dict[str, torch.Generator]:
        """Return the generators of the requests that the older runner gives one."""
        given = runner.input_batch.sampling_metadata.generators
        return {name: given[row] for row, name in enumerate(self.names) if row in given}

    def newer(self, runner: Any, batch: Any) -> Iterator[RowValues]:
        """Yield what the newer runner uses for each row of logits."""
        rows, states = self.every(), runner.sampler.sampling_states
        names, penalties = [row.request for row in rows], runner.sampler.penalties_state
        if len(batch.expanded_idx_mapping) != len(rows):
            self.hidden = None
            yield from untried("parameters of sampling", names, FEWER)
            return
        slots = batch.expanded_idx_mapping.long()
        for part in OF_NEWER:
            owner, name = penalties if part in PENALTIES else states, part.replace("seed", "seeds")
            held, right = getattr(owner, name), self.asked(part, rows)
            source = place_of(owner.add_request)
            mine = [at for at, value in enumerate(right) if value is not None]
            if mine:
                given, of = held.gpu[slots][mine], [names[at] for at in mine]
                yield rows_of(name, of, given, [right[at] for at in mine], source, held.cpu)

    def logits(
        self,
        owner: Any,
        raw: Tensor,
        result: Tensor,
        given: Any,
        source: str | None,
        *,
        dropped: bool = True,
    ) -> Iterator[RowValues]:
        """Yield logits before and after the sampling parameters.

        The sampler `owner` changed them, at the line `source`. `given` is the older runner's
        metadata, or None, and then unlikely tokens may be `dropped`. Penalties of `added` requests
        are not judged, nor those of the older runner if it schedules ahead.
        """
        late, rows = self.account is not None, self.rows
        ends = offsets(count + 1 for count in self.drafts)
        places = [end - 1 for end in ends[1:]]
        ahead = given is not None and self.account is not None and self.account.ahead
        if given is None:
            late, rows = False, self.every()[self.taken : self.taken + len(raw)]
            places = [*range(self.taken, self.taken + len(rows))]
            self.taken += len(raw)
        elif hasattr(owner, "sampler"):  # It verifies drafts, and knows no biases.
            places = [at for at in range(ends[-1]) if at not in places]
            rows = [
                replace(row, asked=replace(row.asked, bias={})) for row in self.every(last=False)
            ]
        processors = owner.logits_processors if given is None else given.logitsprocs.all
        known = {type(one).__name__ for one in processors} <= BUILT_IN
        if given is not None and len(rows) != len(raw):
            return
        yield from self.handed(raw, places)
        if result.numel() <= MOST:
            asks = [replace(row, asked=self.asks(row, given, owner, dropped)) for row in rows]
            self.final.append((places, asks, result.float().clone()))
        if not known:
            return
        used = [row for row in rows if row.used]
        unsure = self.names if ahead else self.added
        counted = {row.request for row in used if row.asked.counts and row.request in unsure}
        ending = {row.request for row in used if late and row.asked.least}
        yield from untried("penalties and forbidden words", sorted(counted), COUNTED)
        yield from untried("logits with a minimum of tokens", sorted(ending), LATE)
        if ahead and not any(self.drafts):
            yield from self.others(rows, raw, result, counted - ending)
        unknown = counted | ending
        sure = [replace(row, used=row.used and row.request not in unknown) for row in rows]
        yield from logits_of(sure, raw, result, given is None, source)


def adapters(
    runner: Any,
    names: Sequence[str],
    of: Mapping[str, Any],
    counts: Mapping[str, int],
    loaded: dict[Any, Any],
) -> Iterator[RowValues]:
    """Yield the adapter that kernels apply to each token, if the runner has adapters.

    `loaded` has the adapter in each slot, and the sums of the weights of each adapter.
    """
    manager = maybe(runner, "lora_manager._adapter_manager")
    wrappers = list(getattr(manager, "punica_wrapper_mapping", {}).values())
    if not wrappers:
        return
    requests = [name for name in names for _ in range(counts[name])]
    slots, held = manager.lora_index_to_id, wrappers[0].token_lora_indices[: len(requests)]
    known = [slots[at] or 0 if 0 <= at < len(slots) else 0 for at in held.tolist()]
    right = [int(getattr(of[name].lora_request, "lora_int_id", 0)) for name in requests]
    source = place_of(runner._set_active_loras)
    yield rows_of("adapter", requests, torch.tensor(known), right, source, held)
    for at, number, name in {*zip(held.tolist(), known, requests, strict=True)}:
        adapter = getattr(manager._registered_adapters, "cache", {}).get(number)
        if adapter is not None and loaded.get(at) != weakref.ref(adapter):
            loaded[at] = weakref.ref(adapter)
            key = number, *(float(one.double().sum()) for _, one in weights_of(adapter))
            layers = [maybe(one, part) for one in manager.modules.values() for part in STACKS]
            sums = torch.stack([one[at].double().sum() for _, one in tensors(layers)])
            mine, source = loaded.setdefault(key, sums), place_of(manager.activate_adapter)
            yield rows_of("weights of an adapter", [name] * len(sums), sums, mine.tolist(), source)


def content_of(
    runner: Any, request: Any, known: MutableMapping[Any, str], first: MutableMapping[int, int]
) -> str:
    """Return what stands for the content of a request's adapter.

    It is the number of the adapter, with a checksum unless this is its `first` content. `known` has
    what stands for each loaded adapter.
    """
    number = getattr(request.lora_request, "lora_int_id", None)
    adapters = maybe(runner, "lora_manager._adapter_manager._registered_adapters.cache") or {}
    if number is None or (adapter := adapters.get(number)) is None:
        return ""
    if adapter not in known:
        content = hash(tuple(int(sums_of(one).sum()) for _, one in weights_of(adapter)))
        same = first.setdefault(number, content) == content
        known[adapter] = str(number) if same else f"{number} {content:x}"
    return known[adapter]


def weights_of(adapter: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of an adapter, by layer."""
    return tensors([(one.lora_a, one.lora_b) for one in adapter.loras.values()])


def likely_in(
    outputs: Iterable[Any], of: Mapping[str, Any]
) -> Iterator[tuple[str, dict[int, float]]]:
    """Yield the log-likelihoods that a scheduler returns for the last tokens of its requests."""
    for one in outputs:
        given, name = maybe(one, "new_logprobs"), one.request_id
        if given is not None and name in of:
            first = len(of[name].all_token_ids) - len(one.new_token_ids)
            yield name, dict(enumerate(given.logprobs[:, 0].tolist(), first))


def of_prompts(
    outputs: Iterable[Any], of: Mapping[str, Any], known: Mapping[str, Mapping[int, float]]
) -> Iterator[RowValues]:
    """Yield the log-likelihoods of prompts that a scheduler returns: how many, and how large.

    `known` are those that were computed here, by position.
    """
    for one in outputs:
        given, name = maybe(one, "new_prompt_logprobs_tensors"), one.request_id
        if given is None or name not in of or name not in known or of[name].num_prompt_tokens < 2:
            continue
        held, right = given.logprobs[:, 0].float().cpu(), of[name].num_prompt_tokens - 1
        yield rows_of(COUNT_OF_PROMPTS, [name], [len(held)], [right])
        places = [at for at in known[name] if at <= len(held)]
        if len(held) == right and places:
            mine = torch.tensor([known[name][at] for at in places])
            given_there = held[[at - 1 for at in places]]
            yield RowValues(OF_PROMPTS, [name], given_there[None], mine[None], PROBABLE)


def model_of(runner: Any) -> Any:
    """Return the model of a runner, without the wrapper of its graphs."""
    model = runner.get_model()
    return model.unwrap() if hasattr(model, "unwrap") else model


class JudgedRows(Drafting):
    """The part of an engine that follows requests from row to row, and judges rows."""

    runner: Any = Weakly()
    sampling: SampledBatch | None = None
    own: bool = False
    """Whether the connector itself uses the model's head."""

    def forget(self) -> None:
        """Stop watching, and forget all that is known of requests and rows."""
        super().forget()
        self.sampling = None
        self.loaded: dict[Any, Any] = {}
        self.contents: MutableMapping[Any, str] = weakref.WeakKeyDictionary()
        self.first_contents: dict[int, int] = {}
        self.moves: dict[str, tuple[Stack, str]] = {}
        """How each request came into its row, since the forward before that was judged."""
        self.recording, self.streams = Recording(), Streams()
        self.prompted: dict[str, dict[int, float]] = {}
        """The log-likelihoods of tokens of prompts, by request and position."""
        self.placed: dict[str, int] = {}

    def begin_rows(self, now: Any, names: Sequence[str]) -> None:
        """Note what the requests of a forward asked for, and judge the adapters of its tokens."""
        of, runner, counts = self.requests.known, now.runner, now.output.num_scheduled_tokens
        self.prompted = {name: one for name, one in self.prompted.items() if name in of}
        with self.recognising("rows"):
            before, self.placed = self.placed, {name: row for row, name in enumerate(names)}
            holder = maybe(runner, "input_batch") or runner.req_states
            self.moves = moves(before, self.placed, holder, "add_request", "condense")
            self.sampling = SampledBatch.of(now, names, of, self.account)
        self.rows("adapters", adapters(runner, names, of, counts, self.loaded), self.moves)

    def indices(self, given: Any) -> None:
        """Judge which tokens a runner samples after."""
        if (sampling := self.sampling) is not None and isinstance(given, Tensor):
            self.rows(SAMPLER, sampling.logits_indices(given))

    def sampled(self, original: Call, runner: Any) -> None:
        """Judge what a sampler uses for each row, then count the drafts that it accepts."""
        sampling, batch = self.sampling, original.having("req_ids")
        generators = dict[str, torch.Generator]()
        if sampling is not None and self.checked and batch is None:
            verified = original.having("num_draft_tokens")
            self.rows(SAMPLER, sampling.older(runner, verified), self.moves)
            generators = sampling.generators(runner)
            if all(one.device.type == "cpu" for one in generators.values()):
                self.streams.learn(sampling.vocabulary)
            self.rows(SAMPLER, self.streams.begin(self.requests.known, generators), self.moves)
        elif batch is None:
            self.streams.unseen(self.requests.known)
        elif sampling is not None and self.checked:
            self.rows(SAMPLER, sampling.newer(runner, batch), self.moves)
            if len(batch.expanded_idx_mapping) == len(sampling.every()):
                self.indices(batch.logits_indices)
        try:
            super().sampled(original, runner)
            if sampling is not None and self.checked:
                self.recording.sampled(*sampling.made(original.result()))
                self.rows(SAMPLER, sampling.chosen(), self.moves)
                drafts = dict(zip(sampling.names, sampling.drafts, strict=True))
                used = {row.request for row in sampling.rows if row.used}
                self.rows(SAMPLER, self.streams.end(generators, drafts, used), self.moves)
        finally:
            self.sampling = None

    def records(self, original: Call, scheduler: Any, output: Any) -> None:
        """Judge which tokens a scheduler in this process records for requests."""
        of = {name: scheduler.requests.get(name) for name in output.num_scheduled_tokens}
        result = original()
        mine = {name: one for name, one in of.items() if one is not None}
        told = [one for outputs in (result or {}).values() for one in outputs.outputs]
        self.judge_recorded(mine, dict(likely_in(told, mine)))
        self.rows("scheduler", of_prompts(told, mine, self.prompted))

    def judge_recorded(
        self, of: Mapping[str, Any], likely: Mapping[str, Mapping[int, float]] = {}
    ) -> None:
        """Judge which tokens the scheduler has recorded for requests, and how likely they are."""
        mine = {name: of[name] for name in self.recording.made.keys() & of.keys()}
        known = {
            name: (first, one.all_token_ids[first:])
            for name, one in mine.items()
            for first in [one.num_prompt_tokens]
        }
        self.rows("scheduler", self.recording.recorded(known, likely))

    def computed(self, output: Any, live: int) -> None:
        """Note the hidden states of the live tokens of a forward."""
        output = output[0] if isinstance(output, tuple) else output
        sampling = self.sampling
        if sampling is not None and isinstance(output, Tensor) and len(output) >= live:
            sampling.hidden = row_sums(output[:live])
            known = sampling.prompts()
            # Those of other dtypes depend on how many rows the head gets at once.
            exact = output.dtype == torch.float32
            if known and exact and len(known) * sampling.vocabulary <= MOST:
                places, tokens = zip(*known.values(), strict=True)
                with torch.no_grad(), attributes((self, "own", True)):
                    logits = model_of(self.runner).compute_logits(output[[*places]])
                for (name, at), value in zip(known, likely_of(logits, tokens), strict=True):
                    self.prompted.setdefault(name, {})[at] = value

    def scores(self, result: Any, model: Any, hidden: Tensor) -> None:
        """Judge the hidden states that a runner's logits head gets for the sampler."""
        sampling = self.sampling
        mine = self.runner is not None and model is model_of(self.runner)
        if sampling is not None and sampling.scored is None and mine and not self.own:
            self.rows("logits head", sampling.heads(hidden, result))

    def processed(self, original: Call, owner: Any, logits: Tensor) -> None:
        """Judge logits after a sampler has applied the parameters of their requests."""
        sampling, metadata = self.sampling, original.having("all_greedy")
        if sampling is None or not self.checked:
            return
        if metadata is None:
            self.rows(SAMPLER, sampling.drawn(original.arguments, len(logits)), self.moves)
        raw = logits if metadata is None else logits.clone()
        result = original()
        source = place_of(original.function)
        dropped = not original.arguments.get("skip_top_k_top_p")
        judged = sampling.logits(owner, raw, result, metadata, source, dropped=dropped)
        self.rows(SAMPLER, judged, self.moves)
