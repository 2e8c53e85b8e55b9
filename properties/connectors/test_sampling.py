"""The logits that a request's parameters give, and what a report says of another request's."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from paritybit.connectors.sampling import (
    ALIKE,
    OTHERS,
    UNSEEN,
    UNTOLD,
    AskedSampling,
    Image,
    Recording,
    Sampled,
    Streams,
    chosen,
    embedded,
    handed_on,
    likely_of,
    logits_of,
    moves,
    row_sums,
)
from paritybit.watch.checks.wrong_row import judge
from paritybit.watch.facts import Row, RowValues
from paritybit.watch.observations import RowsGiven
from paritybit.watch.stacks import Stack

RAW = torch.tensor([2.0, -2.0, 1.0, 0.5, -1.0, 3.0])
PROMPT, OUTPUT = [0, 1], [2, 2, 4]
INF = torch.inf
DRAWS = 64


def row(asked: AskedSampling, name: str = "a", output: list[int] | None = None) -> Sampled:
    """Return a row of logits of a request."""
    return Sampled(name, asked, len(PROMPT), [*PROMPT, *(OUTPUT if output is None else output)])


def told(*values: RowValues, moves: Mapping[str, tuple[Stack, str]] | None = None) -> list[str]:
    """Return the texts of the findings about values of rows."""
    return [one.text for one in judge(RowsGiven(3, "decode", "sampler", values, moves or {}))]


@pytest.mark.parametrize(
    ("asked", "right"),
    [
        (AskedSampling(repetition_penalty=2.0), [1.0, -4.0, 0.5, 0.5, -2.0, 3.0]),
        (AskedSampling(frequency_penalty=0.5), [2.0, -2.0, 0.0, 0.5, -1.5, 3.0]),
        (AskedSampling(presence_penalty=0.5), [2.0, -2.0, 0.5, 0.5, -1.5, 3.0]),
        (AskedSampling(bias={3: 2.0}), [2.0, -2.0, 1.0, 2.5, -1.0, 3.0]),
        (AskedSampling(allowed=[1, 5]), [-INF, -2.0, -INF, -INF, -INF, 3.0]),
        (AskedSampling(forbidden=[[5], [2, 4, 0], [4, 4, 1]]), [-INF, -2.0, 1.0, 0.5, -1.0, -INF]),
        (AskedSampling(least=4, stops=[5, 99]), [2.0, -2.0, 1.0, 0.5, -1.0, -INF]),
        (AskedSampling(least=3, stops=[5]), RAW.tolist()),
        (AskedSampling(temperature=0.5), [4.0, -4.0, 2.0, 1.0, -2.0, 6.0]),
        (AskedSampling(temperature=0.0), RAW.tolist()),
    ],
)
def test_logits_follow_the_parameters(asked: AskedSampling, right: list[float]) -> None:
    assert row(asked).logits(RAW, heated=True).tolist() == right


@pytest.mark.parametrize("beyond", [len(RAW) + 1, -len(RAW) - 1])
def test_tokens_without_a_logit_change_nothing(beyond: int) -> None:
    asked = AskedSampling(
        bias={beyond: 1.0}, allowed=[*range(len(RAW)), beyond], repetition_penalty=2.0,
        frequency_penalty=1.0, forbidden=[[4, beyond]], least=9, stops=[beyond],
    )  # fmt: skip
    rows = [
        replace(row(asked, output=output), asked=asked) for output in (OUTPUT, [*OUTPUT, beyond])
    ]
    one, other = (each.logits(RAW, heated=False) for each in rows)
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    "other",
    [
        AskedSampling(repetition_penalty=1.5),
        AskedSampling(bias={3: -2.0}),
        AskedSampling(allowed=[0, 1, 2]),
        AskedSampling(least=4, stops=[5]),
        AskedSampling(temperature=0.5),
    ],
)
def test_a_row_with_the_parameters_of_another_request_is_found(other: AskedSampling) -> None:
    rows = [row(AskedSampling()), row(other, "b")]
    raw = torch.stack([RAW, RAW])
    right = torch.stack([one.logits(RAW, heated=True) for one in rows])
    assert told(*logits_of(rows, raw, right, heated=True)) == []
    (without,) = told(*logits_of(rows, raw, right[[0, 0]], heated=True))
    assert without.startswith(f"sampler: {UNTOLD} of request b (row 1)")
    assert without.endswith("it has what it would have without parameters")
    (taken,) = told(*logits_of(rows, raw, right[[1, 1]], heated=True))
    assert taken.startswith(f"sampler: {UNTOLD} of request a (row 0)")
    assert taken.endswith("it has the parameters of request b")


def test_the_tokens_of_another_request_are_found() -> None:
    rows = [row(AskedSampling(frequency_penalty=1.0)), row(AskedSampling(), "b", [3, 3])]
    raw = torch.stack([RAW, RAW])
    held = torch.stack(
        [row(AskedSampling(frequency_penalty=1.0), "a", [3, 3]).logits(RAW, heated=False), RAW]
    )
    (text,) = told(*logits_of(rows, raw, held))
    assert text.endswith("it has the penalties for the tokens of request b")


def test_a_count_of_tokens_that_is_wrong_is_not_blamed_on_another_request() -> None:
    rows = [
        row(AskedSampling(least=3, stops=[5])),
        row(AskedSampling(frequency_penalty=1.0), "b", [3]),
    ]
    raw = torch.stack([RAW, RAW])
    held = torch.stack([one.logits(RAW, heated=False) for one in rows])
    held[0, 5] = -INF
    (text,) = told(*logits_of(rows, raw, held))
    assert text.startswith(f"sampler: {UNTOLD} of request a (row 0)")
    assert "request b" not in text


def test_rows_that_are_not_sampled_or_whose_tokens_are_not_known_are_not_judged() -> None:
    unknown = replace(row(AskedSampling(frequency_penalty=1.0)), tokens=[0, 1, None])
    unused = replace(row(AskedSampling(frequency_penalty=1.0)), used=False)
    assert list(logits_of([unknown, unused], torch.stack([RAW, RAW]), torch.zeros(2, 6))) == []


def test_unlikely_tokens_may_be_dropped_and_rounding_is_no_fault() -> None:
    rows = [row(AskedSampling(top_k=2, temperature=0.5))]
    held = torch.tensor([[4.0, -INF, -INF, -INF, -INF, 6.00001]])
    assert told(*logits_of(rows, RAW[None], held, heated=True)) == []
    held[0, :2] = torch.tensor([-INF, -4.0])  # A token is gone, and a less likely one is kept.
    assert len(told(*logits_of(rows, RAW[None], held, heated=True))) == 1
    held[0, :2] = torch.tensor([2.0, -INF])
    assert len(told(*logits_of(rows, RAW[None], held, heated=True))) == 1


def test_a_finding_names_the_request_whose_value_a_row_has() -> None:
    right = torch.tensor([[0.0, 3.0], [-3.0, 0.0], [0.0, 0.0]])
    held = right[[0, 0, 2]] + 1e-6  # Rounded.
    (text,) = told(RowValues("logit_bias", ["a", "b", "c"], held, right, within=1e-4))
    assert "of request b (row 1)" in text
    assert text.endswith("; that is the value of request a")
    right[2] = right[0]  # It may be that of either.
    (text,) = told(RowValues("logit_bias", ["a", "b", "c"], right[[0, 0, 2]], right))
    assert "that is the value" not in text


def test_a_finding_names_the_request_that_had_the_row() -> None:
    before, now = {"left": 0, "stays": 1, "moved": 2}, {"new": 0, "stays": 1, "moved": 3}
    found = moves(before, now, None, "add_request", "condense")
    texts = {name: text for name, (_, text) in found.items()}
    assert texts == {
        "new": "it was added as row 0, and request left had row 0",
        "moved": "it had row 2 before",
    }


WHOSE = ["position 4 of request a", "position 5 of request a", "position 7 of request b"]


def test_a_row_that_is_handed_on_in_place_of_another_is_found() -> None:
    computed = torch.rand(3, 5, dtype=torch.bfloat16)
    names, places = ["a", "b"], [1, 2]

    def judged(given: torch.Tensor, *known: torch.Tensor | None) -> list[RowValues]:
        (sums,) = known or (row_sums(computed),)
        return [*handed_on("states", names, row_sums(given), places, sums, WHOSE)]

    assert told(*judged(computed[1:].float())) == []
    (text,) = told(*judged(computed[[1, 1]]))
    assert text.endswith(
        "states of request b (row 1) is 1, not 2; that is the value of request a; "
        "it is that of position 5 of request a"
    )
    (text,) = told(*judged(computed[[0, 2]]))
    assert text.endswith("of request a (row 0) is 0, not 1; it is that of position 4 of request a")
    (text,) = told(*judged(torch.stack([computed[1], computed[2] + 1])))
    assert text.endswith("of request b (row 1) is -1, not 2; no row of the forward has it")
    assert len(told(*judged(computed[:1]))) == 1  # It lacks a row.
    (unseen,) = judged(computed[1:], None)
    assert (unseen.untried, unseen.requests) == (UNSEEN, names)


def test_a_row_that_equals_another_gives_no_evidence() -> None:
    computed = torch.rand(3, 5)
    computed[0] = computed[1]
    given = computed[1:].clone()
    judged = [*handed_on("states", ["a", "b"], row_sums(given), [1, 2], row_sums(computed), WHOSE)]
    assert [(one.requests, one.untried) for one in judged] == [(["b"], None), (["a"], ALIKE)]
    given[0] = computed[2]
    judged = [*handed_on("states", ["a", "b"], row_sums(given), [1, 2], row_sums(computed), WHOSE)]
    assert len(told(judged[0])) == 1
    assert len(judged) == 1


def test_each_token_of_an_image_has_its_own_embedding() -> None:
    """The image of "a" is cut after its second token, and "b" has no part of an image here."""
    image, text, other = torch.rand(4, 5), torch.rand(1, 5), torch.rand(2, 7)
    rows = [Row("a", [], 3, 3, {}), Row("b", [], 5, 1, {})]
    images: dict[str, list[Image]] = {"a": [(1, 4, image), (5, 1, other)], "b": [(0, 4, image)]}

    def judged(*tokens: torch.Tensor) -> list[RowValues]:
        return [*embedded(torch.cat([*tokens, text, text]).bfloat16(), rows, images)]

    right, unknown = judged(image[2:])
    assert told(right) == []
    assert (right.requests, unknown.requests, unknown.untried) == (["a", "a"], ["a"], OTHERS)
    (found,) = told(judged(image[:2])[0])
    assert found.endswith("; it is that of token 0 of the image at position 1 of request a")


def recorded(name: str, *tokens: int, prompt: int = 4) -> list[str]:
    """Return what is found when a request, of three in a batch, has recorded these tokens."""
    recording = Recording()
    recording.sampled(["a", "b", "c"], [4, 9, 4], [[11], [21, 22], [31]])
    recording.sampled(["a"], [5], [[12]])
    recording.sampled(["a"], [5], [[13]])
    found = told(*recording.recorded({name: (prompt, tokens)}))
    assert not [*recording.recorded({name: (prompt, tokens)})], "each token is judged once"
    return found


def test_a_token_that_was_sampled_for_another_request_is_found() -> None:
    assert recorded("a", 31) == [
        "sampler: token recorded of request a (row 0) is 31, not 11; it was sampled for request c"
    ]
    assert recorded("b", 21, 23, prompt=9) == [
        "sampler: token recorded of request b (row 1) is 23, not 22"
    ]


@pytest.mark.parametrize("tokens", [(), (11,), (11, 12), (11, 13), (11, 13, 99)])
def test_a_token_that_was_sampled_for_its_request_is_right(tokens: tuple[int, ...]) -> None:
    assert recorded("a", *tokens) == []


def test_what_belongs_to_a_prompt_or_was_sampled_unseen_is_not_judged() -> None:
    assert recorded("b", 22, prompt=10) == []
    recording = Recording()
    recording.sampled(["a"], [4], [[11]])
    recording.unseen(["a", "b"])
    assert not [*recording.recorded({"a": (4, [12])})]
    recording.sampled(["a"], [None], [[11]])
    assert not recording.made


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        (AskedSampling(temperature=0.0), {5}),
        (AskedSampling(top_k=1), {5}),
        (AskedSampling(top_k=2), {0, 5}),
        (AskedSampling(top_p=0.6), {5}),
        (AskedSampling(top_p=0.7), {0, 5}),  # The likeliest has two thirds.
        (AskedSampling(min_p=0.2), {0, 5}),
        (AskedSampling(min_p=0.2, temperature=2.0), {0, 2, 3, 5}),
        (AskedSampling(), {0, 2, 3, 4, 5}),
    ],
)
def test_a_sampled_token_is_one_that_the_parameters_of_its_row_allow(
    asked: AskedSampling, allowed: set[int]
) -> None:
    logits = RAW.clone()
    logits[1] = -INF
    given = ["a", "b"], [asked, AskedSampling()], torch.stack((logits, -RAW))
    for token in range(-1, len(RAW) + 1):
        found = told(*chosen(*given, [token, 1]))
        assert bool(found) == (token not in allowed)
    nothing = ["a"], [asked], torch.full((1, len(RAW)), -INF)
    assert told(*chosen(*nothing, [len(RAW)])) == []
    assert likely_of(nothing[-1].nan_to_num(), [len(RAW)])  # No index out of bounds.
    (text,) = told(*chosen(*given, [1, 1]))
    assert text == (
        "sampler: token sampled of request a (row 0) is 1, not 5; that is the value of request b"
    )


def test_a_log_likelihood_that_is_recorded_for_another_token_is_found() -> None:
    likely = likely_of(torch.stack((RAW, -RAW)), [5, 1])
    assert likely == pytest.approx([-0.4765, -0.4219], abs=1e-3)

    def found(value: float) -> list[str]:
        recording = Recording()
        recording.sampled(["a", "b"], [4, 9], [[11], [21]], [[likely[0]], [None]])
        known = {"a": (4, [11]), "b": (9, [21])}
        return told(*recording.recorded(known, {"a": {4: value}, "b": {9: 3.0}}))

    assert found(likely[0] + 1e-4) == []
    (text,) = found(likely[0] - 0.1)
    assert "log-likelihood recorded of request a" in text


def sampled(
    streams: Streams, given: dict[str, torch.Generator], *more: str, unused: str = ""
) -> list[str]:
    """Return what is found when requests draw for their tokens, and some for one `more`."""
    found = told(*streams.begin({"a", "b", "c"}, given))
    for name in (*given, *more):
        torch.empty(DRAWS).exponential_(generator=given[name])
    values = streams.end(given, dict.fromkeys(given, 0), given.keys() - {unused})
    return found + told(*values)


def seeded(*names: str) -> dict[str, torch.Generator]:
    """Return a generator for each of some requests."""
    return {name: torch.Generator().manual_seed(len(name)) for name in names}


def test_a_request_with_a_seed_goes_on_to_draw_where_it_stopped() -> None:
    streams, given = Streams(), seeded("a", "b")
    assert sampled(streams, given) == []
    assert sampled(streams, {"b": given["b"]}) == []
    assert sampled(streams, given) == []
    (text,) = sampled(streams, given | seeded("a"))
    assert "state of the random stream of request a (row 0)" in text
    assert text.endswith("it draws from the start of its stream again")
    torch.rand(1, generator=given["b"])  # Something else draws in its place.
    assert "request b" in sampled(streams, {"b": given["b"]})[0]


def test_a_request_that_draws_more_numbers_than_usual_is_found() -> None:
    streams, given = Streams(), seeded("a", "b")
    assert sampled(streams, given) == []
    (text,) = sampled(streams, given, "b")
    numbers = 2 * DRAWS  # Each value takes two.
    assert text == (
        f"sampler: random numbers drawn of request b (row 1) is {2 * numbers}, not {numbers}; "
        "a request with as many drafts draws the other number"
    )


def test_all_requests_without_drafts_that_draw_too_many_numbers_are_found() -> None:
    streams, given = Streams(), seeded("a")
    streams.learn(DRAWS)
    assert sampled(streams, given) == []
    streams = Streams()
    streams.learn(DRAWS)
    assert f"is {4 * DRAWS}, not {2 * DRAWS}" in sampled(streams, seeded("a"), "a")[0]


def test_an_engine_takes_back_what_was_drawn_for_a_token_that_it_does_not_use() -> None:
    streams, given = Streams(), seeded("a", "b")
    assert sampled(streams, given, unused="a") == []
    (text,) = sampled(streams, given)
    assert "state of the random stream of request a" in text
    assert sampled(streams, given, unused="a") == []
    given["a"].manual_seed(1)
    for _ in range(2):
        torch.empty(DRAWS).exponential_(generator=given["a"])
    assert sampled(streams, given) == []


def test_a_stream_that_was_not_seen_is_not_judged() -> None:
    streams, given = Streams(), seeded("a", "b")
    assert sampled(streams, given) == []
    streams.unseen(["b"])
    assert sampled(streams, seeded("b")) == []
    assert not [*streams.begin({"b"}, {})]  # The first one has ended.
    assert sampled(streams, seeded("a")) == []
