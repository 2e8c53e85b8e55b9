"""What vLLM's samplers and adapters use for each row, over stand-ins of both runners."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from paritybit.connectors.sampling import (
    CHOSEN,
    HIDDEN,
    LOGITS,
    UNTOLD,
    AskedSampling,
    Sampled,
    row_sums,
)
from paritybit.connectors.vllm.requests import Account, Request
from paritybit.connectors.vllm.sampling import (
    COUNT_OF_PROMPTS,
    OF_OTHERS,
    OF_PROMPTS,
    PENALTIES,
    SampledBatch,
    adapters,
    content_of,
    likely_in,
    of_prompts,
)
from paritybit.watch.checks import wrong_row
from paritybit.watch.facts import Forward, Row, RowValues
from paritybit.watch.observations import RowsGiven
from properties.connectors.parts import Part, hooked
from properties.connectors.parts_vllm import DECODE, FIRST, PROMPT, TABLE, Served, a_request
from properties.support.watching import lines_in

VOCABULARY = 8
ASKED = (
    AskedSampling(temperature=0.5, top_k=3, frequency_penalty=-1.0, seed=7),
    AskedSampling(temperature=0.0, repetition_penalty=1.5, seed=9),
    AskedSampling(temperature=0.9, top_p=0.5, min_p=0.25, presence_penalty=0.5),
)


def sampling(drafts: tuple[int, ...] = (0, 0, 0)) -> SampledBatch:
    """Return rows of three requests with two tokens of a prompt and five in all."""
    rows = [Sampled(name, one, 2, [1, 2, 3, 4, 5]) for name, one in zip("abc", ASKED, strict=True)]
    return SampledBatch(rows, list(drafts), [4 - count for count in drafts], VOCABULARY)


def test_a_sampler_counts_what_stands_for_an_image() -> None:
    names = "temperature", "top_k", "top_p", "min_p", "min_tokens", "seed"
    asked = Part(
        **dict.fromkeys(names, 0),
        **dict.fromkeys(("logit_bias", "allowed_token_ids", "bad_words_token_ids")),
        **dict.fromkeys(PENALTIES, 1.0),
        all_stop_token_ids=(),
    )
    request = Request([], 0, all_token_ids=[3, 9, 9, 4, 5], sampling_params=asked)
    request.contents, request.num_prompt_tokens = [(1, 2, -7)], 4
    row = Row("a", [3, -7, -7, 4, 5], 4, 1, {})
    now = Part(
        runner=Part(vllm_config=Part(model_config=Part(get_vocab_size=lambda: VOCABULARY))),
        output=Part(scheduled_spec_decode_tokens={}, num_scheduled_tokens={"a": 1}),
        forward=Forward("decode", (row,)),
        batch=Part(by_row=lambda *_: {"a": [5]}),
    )
    batch = SampledBatch.of(now, ["a"], {"a": request}, None)
    assert batch is not None
    assert batch.rows[0].tokens == request.all_token_ids


def buffer(*values: float) -> torch.Tensor:
    """Return values by row."""
    return torch.tensor(values)


def older() -> Part:
    """Return an older runner with a right batch of the three requests."""
    generator = torch.Generator()
    generator.manual_seed(7)
    given = Part(
        temperature=buffer(0.5, 0.0, 0.9),
        all_greedy=False,
        all_random=False,
        no_penalties=False,
        top_k=torch.tensor([3, 8, 8]),
        top_p=buffer(1.0, 1.0, 0.5),
        frequency_penalties=buffer(-1.0, 0.0, 0.0),
        presence_penalties=buffer(0.0, 0.0, 0.5),
        repetition_penalties=buffer(1.0, 1.5, 1.0),
        generators={0: generator},
        logitsprocs=Part(
            argmax_invariant=[
                Part(min_p_count=1, min_p=buffer(0.0, 0.0, 0.25)[:, None], update_state=print)
            ]
        ),
    )
    names: tuple[str, ...] = ("temperature", "top_k", "top_p")
    names += tuple(f"{name}_penalties" for name in ("frequency", "presence", "repetition"))
    batch = Part(
        sampling_metadata=given,
        **{f"{name}_cpu_tensor": torch.zeros(4) for name in names},
    )
    return Part(input_batch=batch)


def wrong(values: Iterable[RowValues]) -> dict[str, str]:
    """Return the request of each wrong value, by name."""
    found = wrong_row.judge(RowsGiven(1, "decode", "sampler", list(values)))
    return {
        str(one.cause and one.cause["what"]): str((one.reader or {})["request"]) for one in found
    }


Break = Callable[[Any], object]


@pytest.mark.parametrize(
    ("broken", "name", "request_"),
    [
        (lambda given: given.temperature[2].fill_(0.5), "temperature", "c"),
        (lambda given: setattr(given, "all_greedy", True), "temperature", "a"),
        (lambda given: setattr(given, "all_random", True), "temperature", "b"),
        (lambda given: given.top_k[0].fill_(8), "top_k", "a"),
        (lambda given: setattr(given, "top_k", None), "top_k", "a"),
        (lambda given: given.top_p[1].fill_(0.5), "top_p", "b"),
        (lambda given: given.repetition_penalties[0].fill_(1.5), "repetition_penalties", "a"),
        (lambda given: given.presence_penalties[2].fill_(0.0), "presence_penalties", "c"),
        (lambda given: given.generators.clear(), "seed of the generator", "a"),
        (lambda given: given.generators.update({1: given.generators.pop(0)}),
         "seed of the generator", "a"),
        (lambda given: given.logitsprocs.argmax_invariant[0].min_p[1].fill_(0.25), "min_p", "b"),
    ],
)  # fmt: skip
def test_a_row_of_the_older_runner_with_another_value_is_found(
    broken: Break, name: str, request_: str
) -> None:
    runner = older()
    assert wrong(list(sampling().older(runner, None))) == {}
    broken(runner.input_batch.sampling_metadata)
    assert wrong(list(sampling().older(runner, None))) == {name: request_}


def test_drafts_of_the_older_runner_are_found_where_they_are() -> None:
    mine = sampling((1, 0, 2))
    right = {
        "num_draft_tokens": [1, 0, 2],
        "cu_num_draft_tokens": torch.tensor([1, 1, 3]),
        "bonus_logits_indices": torch.tensor([1, 2, 5]),
        "target_logits_indices": torch.tensor([0, 3, 4]),
    }
    assert wrong(list(mine.drafts_of(Part(**right)))) == {}
    shifted = {**right, "target_logits_indices": torch.tensor([0, 2, 3])}
    assert wrong(list(mine.drafts_of(Part(**shifted)))) == {"target_logits_indices": "c"}
    # Three requests compute 2, 1 and 3 tokens.
    assert wrong(mine.logits_indices(torch.tensor([0, 1, 2, 3, 4, 5]))) == {}
    assert wrong(mine.logits_indices(torch.tensor([0, 1, 1, 3, 4, 5]))) == {"logits_indices": "b"}
    tokens = [row.tokens for row in mine.every()]
    assert [len(one) for one in tokens] == [4, 5, 5, 3, 4, 5]


def test_the_hidden_states_and_the_logits_of_each_row_are_found_where_they_are() -> None:
    hidden, logits = torch.rand(6, 4), torch.rand(6, VOCABULARY)
    sampler = Part(sampler=None, logits_processors=[])
    given = Part(all_greedy=True, logitsprocs=Part(all=[]))
    for broken in (False, True):
        mine = sampling((1, 0, 2))  # Three requests compute 2, 1 and 3 tokens.
        mine.hidden = row_sums(hidden)
        states = hidden.roll(1, 0) if broken else hidden
        assert wrong(mine.heads(states, logits)) == ({HIDDEN: "a"} if broken else {})
        targets = logits[[0, 3, 5 if broken else 4]]
        bonus = logits[[1, 1 if broken else 2, 5]]
        for owner, raw, request in ((sampler, targets, "c"), (Part(), bonus, "b")):
            values = [*mine.logits(owner, raw, raw, given, None)]
            found = wrong(one for one in values if one.name == LOGITS)
            assert found == ({LOGITS: request} if broken else {})
    mine.masked = {"a"}
    masked = torch.cat((logits[:1] - 1, logits[3:5]))
    assert wrong(mine.handed(masked, [0, 3, 4])) == {}


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("exact", [False, True])
def test_a_token_that_its_logits_do_not_allow_is_found(newer: bool, exact: bool) -> None:
    logits, given = torch.rand(6, VOCABULARY), Part(all_greedy=True, logitsprocs=Part(all=[]))
    likeliest = logits.argmax(1).tolist()
    for wrong_token in (False, True):
        mine = sampling((1, 0, 2))
        mine.exact = exact
        if newer:
            [*mine.logits(Part(logits_processors=[]), logits, logits, None, None)]
        else:
            sampler = Part(sampler=None)
            [*mine.logits(Part(), logits[[1, 2, 5]], logits[[1, 2, 5]], given, None)]
            [*mine.logits(sampler, logits[[0, 3, 4]], logits[[0, 3, 4]], given, None)]
        tokens = [[likeliest[0], likeliest[1]], [likeliest[2], -1], [likeliest[3], -1]]
        if wrong_token:
            tokens[1][0] = (likeliest[2] + 1) % VOCABULARY
        mine.made(Part(sampled_token_ids=torch.tensor(tokens)))
        assert wrong(mine.chosen()) == ({CHOSEN: "b"} if wrong_token and exact else {})


@pytest.mark.parametrize(
    ("dropped", "top_p", "token", "found"),
    [
        (False, 0.65, 1, False),
        (False, 0.55, 1, True),
        (True, 0.65, 1, False),  # Of the two that are left, the first one has two thirds.
        (True, 0.65, 2, True),
    ],
)
def test_a_token_is_allowed_if_others_were_dropped_before_it(
    dropped: bool, top_p: float, token: int, found: bool
) -> None:
    held = torch.tensor([[0.6, 0.3, 0.1]]).log()
    row = Sampled("a", AskedSampling(top_p=top_p), 2, [1, 2, 3])
    if dropped:
        held[0, 2] = -torch.inf
    mine = SampledBatch([row], [0], [2], 3)
    [*mine.logits(Part(logits_processors=[]), held, held, None, None, dropped=dropped)]
    mine.made(Part(sampled_token_ids=torch.tensor([[token]])))
    assert wrong(mine.chosen()) == ({CHOSEN: "a"} if found else {})


def test_the_log_likelihoods_of_sampled_tokens_are_those_before_any_parameter() -> None:
    hidden, logits = torch.rand(6, 4), torch.rand(6, VOCABULARY)
    mine = sampling((1, 0, 2))
    mine.hidden, mine.listed, mine.masked = row_sums(hidden), True, {"b"}
    right = logits.log_softmax(1)
    [*mine.heads(hidden, logits)]
    logits.zero_()  # The sampler changes them.
    tokens = torch.tensor([[4, 5], [6, -1], [7, -1]])
    names, firsts, _, likely = mine.made(Part(sampled_token_ids=tokens))
    assert (names, firsts) == (["a", "b", "c"], [4, 5, 3])
    assert likely == [[right[0, 4], right[1, 5]], [None], [right[3, 7]]]


def test_the_log_likelihoods_of_a_prompt_belong_to_the_token_after_each() -> None:
    rows = [Sampled(name, AskedSampling(), 9, [1] * end) for name, end in (("a", 4), ("b", 6))]
    mine = SampledBatch(rows, [0, 0], [2, 3], VOCABULARY)
    mine.prompted = {"b": [0, 1, 2, 3, 4, 5, 6]}  # Of which this forward computes the last but one.
    assert mine.prompts() == {("b", 4): (2, 4), ("b", 5): (3, 5), ("b", 6): (4, 6)}
    mine.prompted = {"b": [0, 1, 2, 3, 4]}
    assert mine.prompts() == {("b", 4): (2, 4)}


def test_log_likelihoods_of_a_prompt_that_are_too_few_or_of_others_are_found() -> None:
    of, known = {"a": Part(num_prompt_tokens=4)}, {"a": {1: -1.0, 3: -3.0}}

    def found(*values: float) -> dict[str, str]:
        given = Part(logprobs=torch.tensor(values)[:, None])
        return wrong(
            of_prompts([Part(request_id="a", new_prompt_logprobs_tensors=given)], of, known)
        )

    assert found(-1.0, -9.0, -3.0) == {}
    assert found(-1.0, -2.0, -2.0) == {OF_PROMPTS: "a"}
    assert found(-1.0, -3.0) == {COUNT_OF_PROMPTS: "a"}
    of["a"].num_prompt_tokens = 1
    assert found(-1.0) == {}  # The newer runner has one with drafts.


def test_the_scheduler_returns_log_likelihoods_of_the_last_tokens() -> None:
    given = Part(logprobs=torch.tensor([[-1.0, -0.5], [-2.0, -0.1]]))
    outputs = [
        Part(request_id="a", new_token_ids=[8, 9], new_logprobs=given),
        Part(request_id="b", new_token_ids=[8], new_logprobs=None),
        Part(request_id="gone", new_token_ids=[8], new_logprobs=given),
    ]
    of = {name: Part(all_token_ids=[1, 2, 3, 8, 9]) for name in "ab"}
    assert dict(likely_in(outputs, of)) == {"a": {3: -1.0, 4: -2.0}}


@pytest.mark.parametrize("ahead", [False, True])
def test_penalties_are_not_judged_if_the_older_runner_schedules_ahead(ahead: bool) -> None:
    sampler = Part(apply_penalties=print, apply_logits_processors=print, logits_processors=[])
    given = Part(all_greedy=False, logitsprocs=Part(all=[]))
    row, raw = penalised([1, 2, 3, 4])
    mine = SampledBatch([row], [0], [3], VOCABULARY, Account(ahead), scored=row_sums(raw))
    values = list(mine.logits(sampler, raw, raw, given, None))
    assert wrong(values) == ({} if ahead else {UNTOLD: "a"})
    assert untried(values) == ({"penalties and forbidden words": ["a"]} if ahead else {})
    result = raw.clone()
    result[0, [4, 5]] -= 1  # The request has token 4, and none 5.
    mine = SampledBatch([row], [0], [3], VOCABULARY, Account(ahead), scored=row_sums(raw))
    found = wrong(mine.logits(sampler, raw, result, given, None))
    assert found == ({OF_OTHERS: "a"} if ahead else {UNTOLD: "a"})


def test_the_newer_runner_draws_at_the_position_of_each_row() -> None:
    mine = sampling((1, 0, 2))
    given = {
        "pos": torch.tensor([3, 4, 4, 2, 3, 4]),
        "expanded_local_pos": torch.tensor([0, 1, 0, 0, 1, 2]),
    }
    assert wrong(mine.drawn(given, 6)) == {}
    given = {name: one.roll(1) for name, one in given.items()}
    assert wrong(mine.drawn(given, 6)) == {"pos": "a", "expanded_local_pos": "a"}
    mine.taken = 3
    given = {"pos": torch.tensor([2, 3, 4]), "expanded_local_pos": torch.tensor([0, 1, 1])}
    assert wrong(mine.drawn(given, 3)) == {"expanded_local_pos": "c"}


@pytest.mark.parametrize("runner", ["older", "newer"])
@pytest.mark.parametrize(
    ("counted", "added", "found"),
    [
        ([3, 4], (), {}),
        ([3, 3], (), {UNTOLD: "a"}),  # The last token again instead of the draft.
        ([3, 3], ("a",), {}),  # It was just added.
    ],
)
def test_the_drafts_before_a_row_are_penalised(
    runner: str, counted: list[int], added: tuple[str, ...], found: dict[str, str]
) -> None:
    row, raw = penalised([1, 2, 3, 4])
    result = raw.clone()
    for token in counted:
        result[0, token] -= 1
    mine = SampledBatch([row], [1], [2], VOCABULARY, Account(False), added)
    older = Part(all_greedy=False, logitsprocs=Part(all=[])) if runner == "older" else None
    if older is None:
        first = raw.clone()
        first[0, 3] -= 1
        raw, result = raw.repeat(2, 1), torch.cat((first, result))
    values = list(mine.logits(Part(logits_processors=[]), raw, result, older, None))
    assert wrong(values) == found


def penalised(tokens: list[int]) -> tuple[Sampled, torch.Tensor]:
    """Return a row with a penalty for each token after the first two, and logits."""
    return Sampled("a", AskedSampling(frequency_penalty=1.0), 2, tokens), torch.ones(1, VOCABULARY)


def untried(values: list[RowValues]) -> dict[str, list[str]]:
    """Return the requests in whose rows a value is not judged, by name."""
    return {one.name: list(one.requests) for one in values if one.untried is not None}


def newer(slots: list[int]) -> tuple[Part, Part]:
    """Return a newer runner, and a batch whose requests have these slots; b has slot 3."""

    def by_slot(a: float, b: float, c: float, otherwise: float) -> Part:
        held = buffer(otherwise, a, c, b)
        return Part(gpu=held, cpu=held)

    states = Part(
        temperature=by_slot(0.5, 0.0, 0.9, 1.0),
        top_k=by_slot(3, 8, 8, 8),
        top_p=by_slot(1.0, 1.0, 0.5, 1.0),
        min_p=by_slot(0.0, 0.0, 0.25, 0.0),
        seeds=by_slot(7, 9, 2, 0),
        add_request=print,
    )
    penalties = Part(
        repetition_penalty=by_slot(1.0, 1.5, 1.0, 1.0),
        frequency_penalty=by_slot(-1.0, 0.0, 0.0, 0.0),
        presence_penalty=by_slot(0.0, 0.0, 0.5, 0.0),
        add_request=print,
    )
    runner = Part(sampler=Part(sampling_states=states, penalties_state=penalties))
    mapping = torch.tensor(slots)
    indices = torch.tensor([0, 1, 2])
    return runner, Part(expanded_idx_mapping=mapping, idx_mapping=mapping, logits_indices=indices)


def test_a_row_of_the_newer_runner_with_another_slot_is_found() -> None:
    assert wrong(list(sampling().newer(*newer([1, 3, 2])))) == {}
    found = wrong(list(sampling().newer(*newer([1, 2, 2]))))
    assert set(found) == {
        "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "seeds"
    }  # fmt: skip
    assert set(found.values()) == {"b"}
    runner, batch = newer([1, 3, 2])
    runner.sampler.sampling_states.seeds.gpu[1] = 8
    assert wrong(list(sampling().newer(runner, batch))) == {"seeds": "a"}


def test_the_adapter_of_each_token_is_that_of_its_request() -> None:
    of = {
        "a": Part(lora_request=Part(lora_int_id=4)),
        "b": Part(lora_request=None),
        "c": Part(lora_request=Part(lora_int_id=2)),
    }
    wrapper = Part(token_lora_indices=torch.tensor([1, 1, -1, 0, 0, 0]))
    a = torch.zeros(3, 1, 4, 8)
    loras = {1: [torch.ones(4, 8), None], 2: [None, torch.ones(4, 8)]}
    cache = {2 * n: Part(loras={"qkv": Part(lora_a=one, lora_b=[])}) for n, one in loras.items()}
    manager = Part(
        lora_index_to_id=[2, 4, None],
        punica_wrapper_mapping={"model": wrapper},
        modules={"qkv": Part(lora_a_stacked=(a, a.clone()), lora_b_stacked=())},
        _registered_adapters=Part(cache=cache),
        activate_adapter=print,
    )
    runner = Part(lora_manager=Part(_adapter_manager=manager), _set_active_loras=print)
    counts, loaded = {"a": 2, "b": 1, "c": 2}, dict[Any, Any]()

    def judged() -> dict[str, str]:
        return wrong(list(adapters(runner, ["a", "b", "c"], of, counts, loaded)))

    assert judged() == {}
    wrapper.token_lora_indices[2] = 1  # As a row that was moved without its adapter.
    assert judged() == {"adapter": "b"}
    wrapper.token_lora_indices[:3] = torch.tensor([0, 0, -1])
    manager.lora_index_to_id[0], of["c"] = 4, of["b"]
    wrapper.token_lora_indices[3:] = -1
    assert judged() == {}
    loaded[0], a[0] = None, 1  # The next one is loaded over what an evicted one had.
    assert judged() == {"weights of an adapter": "a"}
    assert list(adapters(Part(), ["a"], of, counts, {})) == []


def test_adapters_with_other_weights_have_other_contents() -> None:
    layers = [Part(lora_a=torch.rand(4, 8), lora_b=[]) for _ in range(2)]
    one, other = (type("Adapter", (), {"loras": {"qkv": layer}})() for layer in layers)
    registered, known = Part(cache={2: one}), dict[Any, str]()
    runner = Part(lora_manager=Part(_adapter_manager=Part(_registered_adapters=registered)))
    asks = Part(lora_request=Part(lora_int_id=2))
    first = dict[int, int]()
    assert [content_of(runner, asks, known, first) for _ in range(2)] == ["2", "2"]
    registered.cache[2] = other  # Loaded again under its name.
    assert content_of(runner, asks, known, first) not in {"", "2"}
    assert content_of(runner, asks, {}, {}) == "2"
    assert content_of(Part(), asks, known, first) == ""
    assert content_of(runner, Part(lora_request=None), known, first) == ""


@pytest.mark.parametrize("apart", [False, True])
def test_a_token_that_the_scheduler_records_for_another_request_is_found(
    tmp_path: Path, apart: bool
) -> None:
    served = Served(tmp_path, apart=apart)
    asked = Part(
        temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0,
        frequency_penalty=0.0, presence_penalty=0.0, logit_bias=None, allowed_token_ids=None,
        bad_words_token_ids=None, min_tokens=0, all_stop_token_ids=(), seed=None,
    )  # fmt: skip
    mine = a_request(*PROMPT)
    mine.sampling_params, mine.num_prompt_tokens = asked, len(PROMPT)
    served.scheduler.requests["a"] = mine
    served.run(FIRST, TABLE, 0, PROMPT)
    sampling = served.engine.sampling
    assert sampling is not None
    made = Part(sampled_token_ids=torch.tensor([[16]]))
    served.engine.recording.sampled(*sampling.made(made))

    def recorded(scheduler: Any, said: Any) -> None:
        mine.all_token_ids.append(17)

    hooked(served.core.records, recorded, served.scheduler, FIRST)
    served.run(DECODE, TABLE, 6, [17])
    assert "wrong row" in served.found()
    served.engine.journal.end()
    served.core.journal.end()


@pytest.mark.parametrize("anew", [False, True])
def test_a_request_whose_random_stream_begins_anew_is_found(tmp_path: Path, anew: bool) -> None:
    served = Served(tmp_path)
    params = Part(
        temperature=0.5, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0,
        frequency_penalty=0.0, presence_penalty=0.0, logit_bias=None, allowed_token_ids=None,
        bad_words_token_ids=None, min_tokens=0, all_stop_token_ids=set(), seed=7,
    )  # fmt: skip
    served.scheduler.requests["a"] = Part(
        **vars(a_request(*PROMPT)), sampling_params=params, num_prompt_tokens=6
    )
    given = older().input_batch.sampling_metadata
    given.no_penalties, given.logitsprocs.argmax_invariant = True, []
    given.top_k, given.top_p = None, None
    vars(served.runner.input_batch).update(vars(older().input_batch), sampling_metadata=given)

    def sampled(*_: object) -> Part:
        assert served.engine.sampling is not None
        torch.empty(served.engine.sampling.vocabulary).exponential_(generator=given.generators[0])
        return Part(sampled_token_ids=torch.tensor([[16]]))

    for said, cached, tokens in ((FIRST, 0, PROMPT), (DECODE, 6, [16])):
        served.run(said, TABLE, cached, tokens)
        hooked(served.engine.sampled, sampled, served.runner)
        if anew:
            given.generators[0].manual_seed(7)
    assert served.found() == ({"wrong row"} if anew else set())
    served.journal.end()


def test_a_wrong_row_is_reported_with_how_its_request_came_there(tmp_path: Path) -> None:
    served = Served(tmp_path)
    params = Part(
        temperature=0.5, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0,
        frequency_penalty=0.0, presence_penalty=0.0, logit_bias=None, allowed_token_ids=None,
        bad_words_token_ids=None, min_tokens=0, all_stop_token_ids=set(), seed=None,
    )  # fmt: skip
    served.scheduler.requests["a"] = Part(
        **vars(a_request(*PROMPT)), sampling_params=params, num_prompt_tokens=6
    )
    given = older().input_batch.sampling_metadata
    given.no_penalties = True
    given.logitsprocs.argmax_invariant = []
    given.generators, given.top_k, given.top_p = {}, None, None
    batch = served.runner.input_batch
    vars(batch).update(vars(older().input_batch), sampling_metadata=given)
    given.temperature[0] = 0.9
    served.run(FIRST, TABLE, 0, PROMPT)
    served.sample(7)
    assert served.found() == {"wrong row"}
    (finding,) = (
        line for line in lines_in(served.journal.path.parent) if line["kind"] == "finding"
    )
    assert "it was added as row 0" in finding["text"]
    served.journal.end()
