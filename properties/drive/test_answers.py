"""Answers are as requests asked: number of tokens, grammar, processor, log-likelihoods."""

from collections.abc import Collection
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.drive.answers import (
    END_OF_TEXT,
    NUMBER,
    Answer,
    Late,
    Likely,
    strings_of,
    text_of,
)
from paritybit.drive.requests import AT_LEAST
from paritybit.drive.script import Sampling
from paritybit.drive.sglang import serving
from paritybit.drive.sglang.answers import Processor, SglangGrammar
from paritybit.drive.sglang.settings import SglangServed
from paritybit.testing.replays import InMemory
from paritybit.watch import journal

PROMPT = [7, 8, 9]

LISTS = [
    f"{part}_{kind}_logprobs_{of}"
    for part in ("input", "output")
    for kind in ("token", "top", "token_ids")
    for of in ("idx", "val")
]
"""The attributes of sglang's output with log-likelihoods."""


def wrong(
    tokens: list[int],
    likely: tuple[int, ...] = (),
    cut: bool = False,
    stops: tuple[int, ...] = (END_OF_TEXT,),
    drafted: Collection[int] = (),
    text: str | None = None,
    reason: str | int | None = None,
    kept: bool = False,
    strings: Collection[str] = (),
    **asked: Any,
) -> int:
    """Return how many things are wrong with an answer of at most four tokens."""
    answer = Answer(PROMPT, 4, Sampling(**asked), stops, [*strings], kept, tokens, text, reason)
    answer.ranked, answer.drafted = [Likely(token, None) for token in likely], drafted
    return len(list(answer.wrong(cut=cut)))


@pytest.mark.parametrize(
    ("asked", "tokens", "found"),
    [
        ({}, [4, 5, 6, 7], 0),
        ({}, [4, 5, 6], 1),
        ({"cut": True}, [4, 5, 6], 0),
        ({}, [4, 5, 6, 7, 8], 1),
        ({}, [4, END_OF_TEXT], 0),
        ({"min_tokens": 3}, [4, END_OF_TEXT], 1),
        ({"stops": (5,)}, [4, 5], 0),
        ({"stops": (5,)}, [4, 5, 6, 7], 1),
        # In binary: 100 101 110 111.
        ({"strings": ["1001"], "min_tokens": 2}, [4, 5, 6, 7], 0),
        ({"strings": ["1001"], "min_tokens": 1}, [4, 5], 0),
        ({"strings": ["1001"], "min_tokens": 1}, [4, 5, 6, 7], 1),
        ({"strings": ["1001"], "reason": "1001", "text": ""}, [4, 5], 0),
        ({"strings": ["1001"], "reason": "1001", "text": "1001", "kept": True}, [4, 5], 0),
        ({"strings": ["1001"], "reason": "1001", "text": "100"}, [4, 5], 1),
        ({"strings": ["1001", "01"], "reason": "01", "text": "10"}, [4, 5], 0),
        ({"strings": ["0101110"], "reason": "0101110", "text": "10"}, [4, 5, 6], 0),
        ({"strings": ["0101110"], "reason": NUMBER, "text": "100101110"}, [4, 5, 6], 1),
        ({"stops": (5,), "reason": 5, "text": "100"}, [4, 5], 0),
        ({"stops": (5,), "reason": 5, "text": "100101", "kept": True}, [4, 5], 0),
        ({"stops": (5,), "reason": 5, "text": "100101"}, [4, 5], 1),
        ({"stops": (5,), "reason": END_OF_TEXT, "text": "100"}, [4, 5], 1),
        ({"reason": NUMBER, "text": "100101110111"}, [4, 5, 6, 7], 0),
        ({"reason": NUMBER, "text": "100101110"}, [4, 5, 6, 7], 1),
        ({"stops": (7,), "reason": NUMBER, "text": "100101110111"}, [4, 5, 6, 7], 0),
        ({"stops": (7,), "reason": 7, "text": "100101110"}, [4, 5, 6, 7], 0),
        ({"reason": "abort", "text": "100101110111"}, [4, 5, 6, 7], 1),
        ({"allowed_token_ids": (4, 5)}, [4, 5, 4, 4], 0),
        ({"allowed_token_ids": (4, 5)}, [4, 6, 4, 4], 1),
        ({"allowed_token_ids": (4, 5), "drafted": {1}}, [4, 6, 4, 4], 0),
        ({"bad_words": ((5, 4),)}, [4, 5, 6, 4], 0),
        ({"bad_words": ((5, 4),)}, [4, 5, 4, 4], 1),
        ({"grammar": 1}, [5, 10, 4, 9], 0),
        ({"grammar": 1}, [5, 10, 14, 4], 1),
        ({"grammar": 1}, [9, 10, 4, 9], 1),
        ({"processor": 1}, [4, 5, 22, 7], 0),
        ({"processor": 1}, [4, 5, 8, 7], 1),
        ({"likelihoods": 1, "likely": (8, 9, 4, 5, 6, 7)}, [4, 5, 6, 7], 0),
        ({"likelihoods": 1, "likely": (7, 8, 4, 5, 6, 7)}, [4, 5, 6, 7], 1),
        ({"likelihoods": -1, "likely": (4, 5, 6, 7)}, [4, 5, 6, 7], 0),
        ({"likelihoods": -1, "likely": (4, 5, 6, 6)}, [4, 5, 6, 7], 1),
        ({"likelihoods": -1, "cut": True}, [4, 5], 0),
        ({"likelihoods": -1, "likely": (4,), "cut": True}, [4, 5], 1),
    ],
)
def test_an_answer_is_what_its_request_asks(
    asked: dict[str, Any], tokens: list[int], found: int
) -> None:
    assert wrong(tokens, **asked) == found


@pytest.mark.parametrize(
    ("ranked", "found"),
    [
        (Likely(7, None), 0),
        (Likely(7, -1.0, {5: -0.5, 7: -1.0}, {9: -2.0}), 0),
        (Likely(7, -1.0, {5: -0.5, 7: -1.0}, {9: -2.0}, best=True), 1),
        (Likely(7, -0.9, {5: -0.5, 7: -1.0}, {9: -2.0}), 1),
        (Likely(7, -1.0, {5: -0.5, 7: -1.0}, {9: -0.9}), 1),
        (Likely(9, -1.5, {5: -0.5, 7: -1.0}, {9: -2.0}), 1),
        (Likely(7, -1.0, {5: -0.5, 7: -1.0}, {8: -2.0}), 1),
        (Likely(7, -1.0, {7: -1.0}, {9: -2.0}), 1),
        (Likely(7, -0.6, {5: -0.5, 6: -1.0}, {9: -2.0}), 1),
        (Likely(7, -torch.inf, {5: -0.5, 6: -0.6}, {9: -torch.inf}), 0),
    ],
)
def test_log_likelihoods_of_a_place_agree(ranked: Likely, found: int) -> None:
    assert len(list(ranked.wrong(2, [9, 9]))) == found


@pytest.mark.parametrize(("last", "shared"), [(False, False), (False, True), (True, True)])
def test_what_was_delivered_does_not_change(last: bool, shared: bool) -> None:
    made, answer = [4], Answer(PROMPT, 2, tokens=[4, 5])
    answer.deliver(made, [-1.0])
    made = made if shared else [*made]
    made.append(5)
    if not last:
        answer.deliver(made, [-1.0, -2.0])
    assert [*answer.wrong()] == ["the engine changed what it had delivered"] * shared


@pytest.mark.parametrize(("recorded", "right"), [([4, 5, 6], True), ([4, 6], False), ([4], False)])
def test_an_answer_has_the_tokens_that_the_scheduler_recorded(
    recorded: list[int], right: bool
) -> None:
    answer = Answer(PROMPT, 2, tokens=[4, 5], recorded=recorded)
    wrong = "its tokens are not those that the scheduler recorded"
    assert [*answer.wrong()] == [wrong] * (not right)


def test_sglang_returns_each_log_likelihood() -> None:
    inputs = [7, 8], [None, -3.0], [None, [5]], [None, [-1.0]], [None, [9]], [None, [-2.0]]
    outputs: tuple[list[Any], ...] = [4], [-1.0], [], [], [[9]], [[-2.0]]
    lists = {name: [[], of] for name, of in zip(LISTS, (*inputs, *outputs), strict=True)}
    answer = Answer([7, 8], 1, greedy=True)
    serving.hear(answer, SimpleNamespace(**{"output_ids": None, **lists}), 1)
    assert answer.ranked == [
        Likely(7, None),
        Likely(8, -3.0, {5: -1.0}, {9: -2.0}),
        Likely(4, -1.0, {}, {9: -2.0}, best=True),
    ]


def test_the_last_token_is_told_from_the_one_that_sglang_calls_it() -> None:
    lists: dict[str, Any] = dict.fromkeys(LISTS)
    lists |= dict(zip(LISTS, ([[0, 0, 0]], [[-5.0, -3.0, -4.0]]), strict=False))
    answer = Answer([7, 0, 255, 8], 1, Sampling(likelihoods=1))
    serving.hear(answer, SimpleNamespace(**{"output_ids": None, **lists}), 0)
    assert [(one.token, one.value) for one in answer.ranked] == [(0, -5.0), (255, -3.0), (0, -4.0)]


def test_a_grammar_and_a_processor_together_leave_tokens() -> None:
    for number in range(4):
        grammar, logits = SglangGrammar(str(number)), torch.zeros(2, 256)
        mask = grammar.allocate_vocab_mask(256, 2, "cpu")
        grammar.fill_vocab_mask(mask, 1)
        grammar.apply_vocab_mask(logits, mask)
        Processor()(logits[1:], [{"class": 3}])
        left = logits[1].isfinite().nonzero().flatten().tolist()
        assert left == list(range(12 + number, 256, 16))
        assert bool(logits[0].isfinite().all())


def test_a_grammar_is_there_after_some_polls_whatever_a_thread_would_take() -> None:
    assert Late("grammar").done()
    late = Late("grammar", polls=2)
    assert [late.done() for _ in range(4)] == [False, False, True, True]
    assert late.result() == "grammar"


def test_a_token_that_a_grammar_does_not_allow_is_a_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = InMemory(Path())
    monkeypatch.setattr(journal, "of_process", lambda: found)
    grammar = SglangGrammar("1")
    grammar.accept_token(5)
    grammar.accept_token(10)
    assert vars(grammar)["current_token"] == 10  # The engine looks for it in resumed requests.
    with pytest.raises(ValueError, match="token 14 is not allowed as number 2"):
        grammar.accept_token(14)
    assert [one.text for one in found.found] == [
        "a grammar is not applied: token 14 is not allowed as number 2"
    ]


def test_some_requests_of_the_first_waves_have_what_the_engine_can_give() -> None:
    kinds = {"grammar", "processor", "likelihoods", "hidden_states", "ignore_eos"}
    plain, drafts = SglangServed(), SglangServed("gpt_oss", speculative="standalone", topk=2)
    for served, seed in product((plain, drafts), range(4)):
        mine = replace(served, seed=seed)
        traffic = mine.traffic()
        waves = [wave for wave, _ in zip(traffic, range(AT_LEAST), strict=False)]
        asked = [one.sampling.given() for wave in waves for one in wave.requests if one.sampling]
        assert {*chain(*asked)} & kinds == {*mine.extras}


def test_stop_strings_span_tokens() -> None:
    strings = strings_of(Sampling(stop_token_ids=(101, 7, 250, 33)))
    assert len(strings) == 5
    assert not any(one in text_of([token]) for one in strings for token in range(256))
    assert text_of([4, END_OF_TEXT, 5 + 16]) == "100101"


def test_sglang_answers_no_request_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, found = list[str](), InMemory(Path())
    monkeypatch.setattr(journal, "of_process", lambda: found)
    engine = serving.Sglang(SglangServed())
    engine.player = SimpleNamespace(ended=lambda name, tokens: ended.append(name))  # type: ignore[assignment]
    engine._answers = {"a": Answer([5], 2), "b": Answer([5], 2)}

    def hear(name: str, tokens: list[int], reason: str | None) -> list[str]:
        why = None if reason is None else {"type": reason}
        lists = dict.fromkeys(LISTS)
        counts = {"prompt_tokens": [1], "completion_tokens": [len(tokens)]}
        output = {"rids": [name], "output_ids": [tokens], "finished_reasons": [why], **lists}
        output.update(counts)
        engine._hear(SimpleNamespace(**output))
        return [one.text for one in found.found]

    assert hear("a", [4, 4], "length") == hear("b", [4], "abort") == []
    assert hear("b", [], None) == []  # The engine had begun a batch with it.
    assert hear("a", [4], None) == ["request a goes on after it has ended"]
    assert ended == ["a", "b"]
