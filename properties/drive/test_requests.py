"""Generated requests, and the player that hands them to a scheduler."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from itertools import combinations, islice, product
from typing import Any, ClassVar

import pytest

from paritybit.drive import ENGINES, script
from paritybit.drive.adapters import adapter
from paritybit.drive.engine import PlayedError, Player
from paritybit.drive.models import VOCABULARY
from paritybit.drive.requests import (
    AT_LEAST,
    FEW,
    KINDS,
    RETURNS,
    UNMASKED,
    Kind,
    Limits,
    edges,
    kinds_of,
    waves,
    with_extras,
    with_moves,
    with_priorities,
)
from paritybit.drive.script import MOST_SPACES, PRIORITIES, Part, Planned, Sampling, Wave
from paritybit.drive.sglang import serving as sglang
from paritybit.drive.sglang.settings import HOST_RATIOS, SglangServed
from paritybit.drive.transformers import serving as transformers
from paritybit.drive.transformers.settings import TransformersServed
from paritybit.drive.vllm import serving as vllm
from paritybit.drive.vllm.settings import VllmServed
from paritybit.watch.journal import Journal
from properties.drive.toy import LIMITS, Toy, said

SMALL = replace(LIMITS, page=1, chunk=32, pool=384, windows=160)
"""A context can be longer than the pool, and rows use more slots for windows than there are."""

ONE = (Part("one", 1),)

EXTRAS = "grammar", "processor", "likelihoods", "ignore_eos"


def played(waves_played: list[Wave], polls: int) -> list[str]:
    """Return the orders of a player in so many polls of an engine that ends all at once."""
    player, found = Player(iter(waves_played), Toy(), lambda: False, idle_polls=1), list[str]()
    for _ in range(polls):
        for order in player.poll():
            found += said([order])
            if isinstance(order, Planned):
                player.ended(order.name, [7] * order.tokens)
    return found


def test_the_same_seed_gives_the_same_requests() -> None:
    first, again, other = (list(islice(waves(seed, LIMITS), 12)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.parametrize("limits", [LIMITS, SMALL])
def test_rows_serve_all_kinds_between_them(limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row has the next seed, and may have time for no more than AT_LEAST waves."""
    count, served = len(set(kinds_of(limits))), set[int]()

    def kind(number: int) -> Kind:
        def made(*_: object) -> Iterator[Planned]:
            served.add(number)
            return iter(())

        return made

    kinds = [kind(number) for number in range(count)]
    monkeypatch.setattr("paritybit.drive.requests.kinds_of", lambda _: kinds)
    for seed in range(-(-count // AT_LEAST)):
        assert len(list(islice(waves(seed, limits), AT_LEAST))) == AT_LEAST
    assert served == set(range(count))


@pytest.mark.parametrize("limits", [LIMITS, SMALL, replace(LIMITS, chunk=512, windows=448)])
def test_requests_keep_to_the_limits(limits: Limits) -> None:
    """Where the context is longer than the pool, tokens may be asked for that the pool lacks."""
    for wave in islice(waves(1, limits), 4 * len(KINDS)):
        names = [planned.name for planned in wave.requests]
        assert len(set(names)) == len(names)
        for planned in wave.requests:
            assert planned.prompt
            assert 0 <= min(planned.ids()) <= max(planned.ids()) < VOCABULARY
            assert planned.length + planned.tokens < limits.context
            assert planned.length + 2 * limits.window < limits.pool
            assert planned.follows is None or planned.follows in names


def test_a_second_turn_continues_the_conversation() -> None:
    class Prompts(Toy):
        """Notes the lengths of prompts."""

        lengths: ClassVar[list[int]] = []

        def arrive(self, one: Planned, prompt: list[int]) -> Planned:
            self.lengths.append(len(prompt))
            return one

    engine = Prompts()
    turns = (Planned("a", (Part("a", 3),), 2), Planned("b", ONE, 2, arrives=1, follows="a"))
    engine.play(iter([Wave(turns)]), lambda: False)
    assert engine.lengths == [3, 6]


def test_a_long_run_keeps_nothing_of_earlier_waves() -> None:
    count = 2 * script.MOST_TEXTS
    given = [Wave((Planned(f"r{n}", (Part(f"text {n}", 2),), 1),)) for n in range(count)]
    player = Player(iter(given), Toy(), lambda: False, idle_polls=0)
    for number in range(count):
        assert said(player.poll()) == [f"r{number}"]
        player.ended(f"r{number}", [7])
        assert player.made == {f"r{number}": (7,)}
    assert script._tokens.cache_info().currsize <= script.MOST_TEXTS


def test_a_wave_begins_with_an_idle_engine_whose_cache_may_be_emptied() -> None:
    one, two = Wave((Planned("a", ONE, 1),), flush=True), Wave((Planned("b", ONE, 1),))
    assert played([one, two], polls=4) == ["a", "flush at the end", "b"]


@pytest.mark.parametrize("again", [False, True])
def test_a_player_that_is_to_stop_aborts_requests_and_ends(again: bool, lines: Journal) -> None:
    """A script of what was served then does so again at the same poll."""
    stops: list[bool] = []
    wave = Wave((Planned("a", ONE, 9), Planned("late", ONE, 9, arrives=50)))
    wave = replace(wave, left=1) if again else wave
    player = Player(iter([wave, wave]), Toy(), stop=lambda: bool(stops), idle_polls=1)
    assert said([*player.poll(), *player.poll()]) == ["a"]
    stops += [True] * (not again)
    assert [player.poll(), player.poll()] == [["abort a"], []]
    player.ended("a", [])
    assert player.poll() == []
    with pytest.raises(PlayedError):
        player.poll()
    written = [json.loads(line) for line in lines.path.read_text().splitlines()]
    assert [one["poll"] for one in written if one["kind"] == "leave"] == [1]


def test_a_request_is_aborted_at_its_poll() -> None:
    wave = Wave((Planned("a", ONE, 9, aborted=2),))
    player = Player(iter([wave]), Toy(), lambda: False, idle_polls=0)
    assert [said(player.poll()) for _ in range(3)] == [["a"], ["abort a"], []]


def test_an_engine_that_waits_for_copies_is_asked_for_a_flush_while_they_run() -> None:
    one, two = Wave((Planned("a", ONE, 1),), flush=True), Wave((Planned("b", ONE, 1),))
    engine = Toy(at_rest=lambda: False)
    engine.defers = True
    player = Player(iter([one, two]), engine, lambda: False, idle_polls=0)
    assert said(player.poll()) == ["a"]
    player.ended("a", [])
    assert [said(player.poll()) for _ in range(3)] == [["flush at the end"], [], []]
    player.flushed()
    assert said(player.poll()) == ["b"]


def test_a_turn_is_aborted_some_polls_after_the_one_before_it_has_ended() -> None:
    then = Planned("b", ONE, 9, arrives=1, aborted=3, follows="a")
    player = Player(iter([Wave((Planned("a", ONE, 9), then))]), Toy(), lambda: False, idle_polls=0)
    assert [said(player.poll()) for _ in range(4)] == [["a"], [], [], []]
    player.ended("a", [7])
    assert [said(player.poll()) for _ in range(4)] == [["b"], [], ["abort b"], []]


def test_requests_are_aborted_while_their_kv_moves_in_a_first_or_a_second_way() -> None:
    engine, ways = Toy(), dict[str, str]()
    engine.moves = lambda name: ways.get(name, "")  # type: ignore[method-assign]
    wave = Wave(tuple(Planned(name, ONE, 9, aborted=2, while_moving=True) for name in "abg"))
    player = Player(iter([wave]), engine, lambda: False, idle_polls=0)
    assert [said(player.poll()) for _ in range(3)] == [["a", "b", "g"], [], []]
    ways |= {"b": "fetched", "g": "fetched"}
    assert [said(player.poll()) for _ in range(3)] == [["abort g"], [], []]
    ways["b"] = "retracted"
    assert [said(player.poll()) for _ in range(2)] == [["abort b"], []]


@pytest.mark.parametrize("limits", [SMALL, replace(LIMITS, page=64)])
def test_prompts_have_each_length_at_which_the_behaviour_may_change(limits: Limits) -> None:
    for seed in range(3):
        found = list(islice(waves(seed, limits), 12 * len(KINDS)))
        parts = [one.prompt for wave in found for one in wave.requests]
        assert {*edges(limits)} <= {part[0].length for part in parts if len(part) == 1}
        assert {*edges(limits)} <= {part[0].length for part in parts if len(part) > 1}


@pytest.mark.parametrize("crowded", [False, True])
def test_sessions_go_on_branch_and_are_aborted_as_one_conversation(crowded: bool) -> None:
    served = SglangServed(sessions=True, crowded=crowded)
    waves_of, chains = [*islice(served.traffic(), 2 * len(KINDS))], 0
    branches, aborted, sizes = 0, 0, Counter[int]()
    for wave in waves_of:
        by_name = {one.name: one for one in wave.requests}
        sessions = [one for one in wave.requests if one.session is not None]
        asked = sum(one.length + one.tokens for one in sessions if one.follows is None)
        assert asked <= LIMITS.pool // 4
        sizes += Counter(Counter(one.session for one in sessions).values())
        for one in sessions:
            if one.follows is not None:
                before = by_name[one.follows]
                like = before.session, before.adapter, before.space
                assert (one.session, one.adapter, one.space) == like
        for odd in (0, 1):
            mine = [one for one in sessions if (one.session or 0) % 2 == odd]
            follows = [one.follows for one in mine if one.follows is not None]
            branches += (1 - odd) * (len(follows) - len({*follows}))
            chains += odd * (len(follows) == len({*follows}))
        for name in {one.session for one in sessions}:
            after = [one.follows for one in sessions if one.session == name]
            if (name or 0) % 2 == 0 and len(after) > 2:  # The first turn follows none.
                assert len({*after}) < len(after)
        aborted += sum(one.aborted is not None and one.follows is not None for one in sessions)
    assert branches > 3
    assert (chains == len(waves_of)) is not crowded
    assert aborted > 3
    assert max(sizes) >= 4


def test_priorities_are_drawn_and_kept_in_a_conversation() -> None:
    given = list(islice(waves(0, LIMITS), len(KINDS)))
    found = list(with_priorities(0, given, LIMITS))
    assert found == list(with_priorities(0, given, LIMITS))
    requests = [one for wave in found[1::2] for one in wave.requests]
    assert {one.priority for one in requests} == set(PRIORITIES)
    named = {one.name: one for one in requests}
    turns = [one for one in requests if one.follows is not None]
    assert turns and all(one.priority == named[one.follows or ""].priority for one in turns)
    assert [replace(one, priority=None) for one in requests] == [
        one for wave in given for one in wave.requests
    ]


@pytest.mark.parametrize("name", ("sglang", "vllm"))
def test_more_urgent_requests_fill_the_last_row_and_come_just_as_others_end(name: str) -> None:
    limits = adapter(name).settings().limits()
    rising = [*with_priorities(0, [Wave(), Wave()], limits)][::2]
    for wave, urgent in zip(rising, (1, -1), strict=True):
        turns = [one for one in wave.requests if one.follows is not None]
        first = [one for one in wave.requests if not one.arrives and one not in turns]
        later = [one for one in wave.requests if one.arrives]
        assert len(first) > len(later) > 0
        assert len(first) + len(later) == limits.rows
        ranks = [{(one.priority or 0) * urgent for one in some} for some in (first, later, turns)]
        assert max(ranks[0]) < min(ranks[1]) <= max(ranks[1]) < min(ranks[2])
        ends = [one.arrives + one.tokens for one in (*later, *reversed(first))]
        assert ends[-len(first) :] == sorted(ends)[: len(first)]
        assert {one.follows for one in turns} == {one.name for one in first}
        assert {one.arrives for one in turns} == {0}
        prompts = sum(one.length for one in (*first, *later))
        assert prompts + max(ends[-len(first) :]) * limits.rows // 2 < limits.pool
        assert limits.pool < prompts + sum(one.tokens for one in wave.requests)


def steps(wave: Wave) -> list[set[str]]:
    """Return the running requests at each poll of an engine that gives each a token per poll."""
    player = Player(iter([wave]), Toy(), lambda: False, idle_polls=0)
    left, found = dict[str, int](), list[set[str]]()
    tokens = {one.name: one.tokens for one in wave.requests}
    with suppress(PlayedError):
        while True:
            for order in player.poll():
                left |= {order.name: order.tokens} if isinstance(order, Planned) else {}
            found.append(set(left))
            left = {name: more - 1 for name, more in left.items() if more > 1}
            for name in found[-1] - left.keys():
                player.ended(name, [7] * tokens[name])
    return found


@pytest.mark.parametrize("name", ENGINES)
def test_each_engine_gets_batches_that_are_large_then_small_then_in_between(name: str) -> None:
    served = adapter(name).settings()
    rows = served.limits().rows
    kinds = len(kinds_of(served.limits()))
    found = set()
    for wave in islice(served.traffic(), kinds):
        sizes = [0, *(len(running) for running in steps(wave))]
        small = next(
            (at for at, size in enumerate(sizes) if size == 1 and max(sizes[:at]) >= rows - 1),
            len(sizes),
        )
        found |= set(sizes[small:])
    assert found & set(range(3, rows - 1)), "no batch between a small and a large one"


@pytest.mark.parametrize("name", ENGINES)
def test_each_engine_gets_batches_with_different_parameters_of_sampling(name: str) -> None:
    """Each parameter is given to one of two requests that run together, and rows are used again."""
    served, mixed, reused = adapter(name).settings(), set[str](), 0
    for wave in islice(served.traffic(), 4):
        sampling = {each.name: each.sampling or Sampling() for each in wave.requests}
        running = steps(wave)
        for names in running:
            for one in fields(Sampling):
                values = [getattr(sampling[each], one.name) for each in names]
                mixed |= {one.name} if any(value != values[0] for value in values) else set()
        reused += len(set().union(*running)) > served.limits().rows
    extras = {"grammar", "processor", "likelihoods", "hidden_states", "ignore_eos"}
    assert mixed >= {field.name for field in fields(Sampling)} - extras
    assert reused
    heats = {each.temperature for wave in islice(served.traffic(), 4) for each in wave.requests}
    assert len(heats) > 3


def test_requests_of_each_wave_have_likelihoods_and_some_share_a_grammar() -> None:
    """An engine that keeps what it compiles gives a second request a copy, and a third one."""
    shared = 0
    for seed in range(9):
        for wave in islice(with_extras(seed, waves(seed, LIMITS), EXTRAS), 3):
            asked = [one.sampling for one in wave.requests if one.sampling is not None]
            assert -1 in {one.likelihoods for one in asked} or len(wave.requests) < 9
            grammars = Counter(one.grammar for one in asked if one.grammar is not None)
            shared += max(grammars.values(), default=0) > 2
    assert shared > 9


@pytest.mark.parametrize("name", ENGINES)
def test_each_engine_gets_prompts_again(name: str) -> None:
    """Some come back at once and in full, and some after more tokens than the pool has."""
    served, again, old = adapter(name).settings(), 0, 0
    for wave in islice(served.traffic(), len(kinds_of(served.limits()))):
        since = dict[Part, int]()
        arrived, prompts = 0, list[tuple[Part, ...]]()
        for one in sorted(wave.requests, key=lambda each: each.arrives):
            again += one.prompt in prompts
            first = replace(one.prompt[0], length=1)
            old += arrived - since.get(first, arrived) > served.limits().pool
            arrived += one.length
            since[first] = arrived
            prompts.append(one.prompt)
    assert again > 5
    assert old > 2


def test_some_greedy_requests_go_on_with_one_that_asks_how_likely_their_tokens_are() -> None:
    served, checked = VllmServed(), 0
    for wave in islice(served.traffic(), 8):
        named = {one.name: one for one in wave.requests}
        for one in (each for each in wave.requests if each.name.startswith("check of")):
            first, asked = named[str(one.follows)], one.sampling
            assert first.temperature == 0 and {*(first.sampling or Sampling()).given()} <= UNMASKED
            assert asked is not None and asked.likelihoods is not None
            assert asked.likelihoods <= first.length and asked.likelihoods % 4
            assert (one.adapter, one.space) == (first.adapter, first.space)
            checked += 1
    assert checked > 9
    others = replace(served, actions=True), replace(served, quantised="fp8")
    for other in others:
        waves_of = islice(other.traffic(), 4)
        assert not any("check" in one.name for wave in waves_of for one in wave.requests)


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_requests_that_begin_alike_have_different_namespaces_of_the_cache(name: str) -> None:
    served, found = adapter(name).settings(), set[frozenset[int | None]]()
    for wave in islice(served.traffic(), 2 * len(kinds_of(served.limits()))):
        for pair in combinations(wave.requests, 2):
            if len({one.prompt[0].text for one in pair}) == 1:
                found.add(frozenset(one.space for one in pair))
    spaces = range(1, MOST_SPACES + 1)
    assert found >= {frozenset((None, space)) for space in spaces}
    assert found >= {frozenset((space,)) for space in spaces}
    assert len({*sglang.SPACES.values()}) == 1 + len(spaces)


@pytest.mark.parametrize(
    "served",
    [
        SglangServed(host_cache=True),
        SglangServed(host_cache=True, storage=True),
        SglangServed(host_cache=True, pool=384, windows=160, chunk=32),
        SglangServed(model="nemotron_h"),  # States are computed again, in other batches.
        VllmServed(model="nemotron_h"),
    ],
)
def test_texts_come_back_that_the_pool_no_longer_holds_but_the_host_does(
    served: SglangServed | VllmServed,
) -> None:
    found, given = set[object](), iter(served.requests())
    flush = served.model == "nemotron_h" or getattr(served, "storage", False)
    for number in range(4):
        first = next(given)
        pool = served.limits().pool
        if flush and not number:  # Files keep what a flush takes, however little it is.
            pool = int(FEW * pool) - 1
        texts = {one.prompt[0].text: one.prompt[0] for one in first.requests}
        assert [one.prompt[0] for one in first.requests] == sorted([*texts.values()] * 2, key=str)
        most = sum(one.tokens + one.length for one in first.requests[1::2])
        asked = sum(text.length for text in texts.values())
        assert pool < asked < most
        assert most < max(HOST_RATIOS) * served.limits().pool
        assert first.flush == flush
        turns = RETURNS if number or flush else 1
        for turn, back in enumerate(islice(given, turns)):
            assert {one.prompt[0].text for one in back.requests} == {*texts}
            assert back.flush == (flush or turn == turns - 1)
            before = ONE[0], 0
            for one in back.requests:
                text, *own = one.prompt
                whole = text == texts[text.text]
                found |= {"aborted" if one.aborted is not None else (whole, bool(own))}
                found |= {"at once"} if before == (text, one.arrives) else set()
                found |= {"another text"} if {*own} & {*texts.values()} else set()
                if text.text == before[0].text and one.arrives > before[1]:
                    found |= {"more of it later"} if text.length > before[0].length else set()
                    behind = text == before[0] and {*own} & {*texts.values()}
                    found |= {"another text later"} if behind else set()
                before = text, one.arrives
        next(given)
    later = {"more of it later", "another text later"}
    assert found == {
        "aborted",
        "at once",
        "another text",
        *later,
        *product((False, True), repeat=2),
    }


@pytest.mark.parametrize("seed", range(4))
def test_answers_outgrow_the_pool_of_an_engine_for_decode(seed: int) -> None:
    served = SglangServed(apart=True, seed=seed)
    sizes = [one.length + one.tokens for one in next(iter(served.requests())).requests]
    limits = served.limits()
    assert max(sizes) < limits.pool < sum(sizes[: limits.rows])
    same = [{*one.prompt} for one in next(iter(served.requests())).requests if len(one.prompt) > 1]
    assert len(same) == 2
    assert same[0] == same[1]


@pytest.mark.parametrize("page_size", [4, 16])
def test_prompts_fill_the_pool_beside_the_first_chunk_of_the_next(page_size: int) -> None:
    """A request is then interrupted within its prompt, and has more than a chunk left."""
    served = TransformersServed(offload=True, page_size=page_size)
    limits = served.limits()
    large = [one for one in next(iter(served.requests())).requests if "large" in one.name]
    assert len(large) > 2
    for one in large:
        first = limits.chunk - one.length % limits.chunk
        assert one.length + first + 2 * limits.page < limits.pool < one.length + one.tokens + first


def test_kv_that_moves_is_asked_for_in_haste_in_part_and_whole_and_left_soon() -> None:
    """Each text comes RETURNS times, often in part at first, with aborts and next turns."""
    limits, found = VllmServed().limits(), Counter[str]()
    usual = Wave((Planned("a", ONE, 1),))
    given = with_moves(5, iter(lambda: usual, None), limits)
    for number in range(4):
        moving = next(given)
        assert next(given) == usual
        firsts = [one for one in moving.requests if one.follows is None]
        turns = defaultdict[str, list[Planned]](list)
        for one in firsts:
            turns[one.name.rpartition(".")[0]].append(one)
            found["full"] += (one.length + one.tokens) % limits.page == 0
            found["page"] += one.prompt[0].length % limits.page == 0 and len(one.prompt) > 1
            found["aborted"] += one.aborted is not None
        found["firsts"] += len(firsts)
        found["next"] += len(moving.requests) - len(firsts)
        assert {*Counter(name.rpartition(".")[2] for name in turns).values()} == {
            RETURNS if number else 1
        }
        for part, *whole in turns.values():
            for one in whole:
                assert one.arrives > part.arrives
                found["whole"] += one.prompt[0].length > part.prompt[0].length
        last = max(one.arrives for one in firsts)
        assert sum(one.length for one in firsts) > limits.pool > 8 * last
    for what in ("full", "aborted", "next", "whole"):
        assert found[what] > found["firsts"] / 8, what
    assert found["page"] > found["firsts"] / 16


@pytest.mark.parametrize("name", ENGINES)
def test_each_engine_gets_aborts_old_prompts_after_a_flush_and_full_last_pages(name: str) -> None:
    """A request may be aborted while it waits, runs, or has ended, and then be continued."""
    served, before, full = adapter(name).settings(page_size=8), Wave(), set[bool]()
    aborts, old = set[int](), 0
    for wave in islice(served.traffic(), 2 * len(kinds_of(served.limits()))):
        old += before.flush and bool(
            {one.prompt for one in before.requests} & {one.prompt for one in wave.requests}
        )
        named = {one.name: one for one in wave.requests}
        followed = [named[one.follows] for one in wave.requests if one.follows is not None]
        full |= {(one.length + one.tokens) % 8 == 0 for one in followed}
        for one in wave.requests:
            if one.aborted is not None:
                late = one.aborted - one.arrives
                aborts.add(0 if late < 1 else 1 if late < one.tokens else 2)
                assert not any(other.startswith(one.name) for other in named if other != one.name)
        before = wave
    assert old > 2
    assert full == {False, True}
    assert aborts == {0, 1, 2}


@pytest.mark.parametrize("setting", ["overlap", "offload"])
def test_transformers_gets_no_aborts_where_they_end_the_engine(setting: str) -> None:
    given: dict[str, Any] = {setting: True}
    served = adapter("transformers").settings(**given)
    waves = islice(served.traffic(), 2 * len(kinds_of(served.limits())))
    aborted = [one for wave in waves for one in wave.requests if one.aborted is not None]
    assert all(one.while_moving for one in aborted)


@pytest.mark.parametrize(
    ("engine", "setting"),
    [
        *(("sglang", None), ("sglang", "host_cache"), ("transformers", "offload")),
        *(("vllm", None), ("vllm", "offload"), ("vllm", "apart")),
    ],
)
def test_requests_are_aborted_while_their_kv_moves_where_it_does(
    engine: str, setting: str | None
) -> None:
    given: dict[str, Any] = {} if setting is None else {setting: True}
    served = adapter(engine).settings(**given)
    requests = [one for wave in islice(served.traffic(), 12) for one in wave.requests]
    moving = [one for one in requests if one.while_moving]
    assert all(one.aborted == one.arrives for one in moving)
    assert (len(moving) > len(requests) / 10) is bool(given)


ALIKE = ("top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
"""Parameters of sampling with the same names in sglang and vLLM."""


def test_each_engine_gets_the_parameters_by_its_own_names() -> None:
    each = Sampling(5, 0.9, 0.1, 1.2, 0.5, 0.5, 2, {"30": 1.0}, 7)
    one = Planned("a", ONE, 2, temperature=0.5, sampling=each)
    assert sglang.sampling_of(one) == {
        **{name: getattr(each, name) for name in ALIKE},
        "min_new_tokens": 2, "logit_bias": {"30": 1.0}, "sampling_seed": 7,
    }  # fmt: skip
    alike = {name: getattr(each, name) for name in ALIKE} | {"min_tokens": 2, "seed": 7}
    assert vllm.sampling_of(one, VllmServed()) == each
    assert vllm.arguments_of(each, None) == alike | {"logit_bias": {30: 1.0}}
    assert vllm.sampling_of(one, VllmServed(speculative="eagle")) == replace(
        each, min_p=None, logit_bias=None
    )
    listed = replace(one, sampling=Sampling(likelihoods=0))
    for runner, kept in ((1, 0), (2, None)):  # The newer runner returns too many.
        served = VllmServed(runner=runner, speculative="eagle")
        assert vllm.sampling_of(listed, served).likelihoods == kept
    assert transformers.sampling_of(one) == {"temperature": 0.5, "top_k": 5, "top_p": 0.9}
    assert transformers.sampling_of(Planned("a", ONE, 2)) == {}
