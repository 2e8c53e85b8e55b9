"""Request scripts: texts, files, and the search for a smaller one that still fails."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed

from paritybit.drive import script as script_module
from paritybit.drive.company import Likely
from paritybit.drive.directing import SLACK, shrink
from paritybit.drive.forks import ForkFailedError, in_fork
from paritybit.drive.limits import Limits
from paritybit.drive.player import Orders, PlayedError, Player
from paritybit.drive.requests import waves
from paritybit.drive.script import (
    MOST_TEXTS,
    Part,
    Planned,
    Script,
    Wave,
    read,
    require_sense,
)
from paritybit.drive.sglang.settings import Served
from paritybit.drive.shrink import PASSES, Waves, fewer_requests, shrunk
from paritybit.watch import journal
from paritybit.watch.journal import Finding, Journal

LIMITS = Limits(window=16, page=16, chunk=64, context=1536, pool=1536, rows=8)


def drawn(seed: int, count: int) -> Waves:
    return tuple(islice(waves(seed, LIMITS), count))


def test_a_text_has_the_same_tokens_whoever_uses_it() -> None:
    assert Part("a", 9).tokens()[:5] == Part("a", 5).tokens() != Part("b", 5).tokens()


def test_a_text_that_is_no_unicode_is_refused() -> None:
    """JSON can hold half of a surrogate pair, from which no token can be drawn."""
    half = "\ud800"
    for one in (Planned(half, (Part("a", 1),), 1), Planned("r", (Part(half, 1),), 1)):
        with pytest.raises(ValueError, match="must be valid Unicode"):
            require_sense(Script({}, (Wave((one,)),)))


def lengths(waves_given: Waves) -> list[int]:
    """Return how many tokens of a text that others have, too, each request has."""
    parts = [part for wave in waves_given for one in wave.requests for part in one.prompt]
    return [part.length for part in parts if part.text.endswith("common")]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), least=st.integers(1, 30), many=st.integers(1, 3))
def test_what_is_left_fails_and_no_single_step_makes_it_smaller(
    seed: int, least: int, many: int
) -> None:
    def fails(candidate: Waves) -> bool:
        return sum(length >= least for length in lengths(candidate)) >= many

    found = shrunk(drawn(seed, 4), fails, lambda: False)
    assert fails(found)
    assert lengths(found) == [least] * many
    for proposals in PASSES:
        assert not any(fails(one) for one in proposals(found) if one != found)


def plain(lengths_given: Sequence[int]) -> Waves:
    """Return a wave of requests with prompts of these lengths, which share nothing."""
    names = [f"r{number}" for number in range(len(lengths_given))]
    pairs = zip(names, lengths_given, strict=True)
    return (Wave(tuple(Planned(name, (Part(name, length),), 1) for name, length in pairs)),)


@settings(max_examples=25, deadline=None)
@given(one=st.integers(0, 6), apart=st.integers(2, 6))
def test_two_requests_that_only_go_together_are_left_out(one: int, apart: int) -> None:
    pair = {f"r{one}", f"r{one + apart}"}

    def fails(candidate: Waves) -> bool:
        names = {request.name for wave in candidate for request in wave.requests}
        return "r20" in names and len(names & pair) != 1

    ((left,),) = [wave.requests for wave in shrunk(plain([1] * 21), fails, lambda: False)]
    assert left.name == "r20"


@settings(max_examples=25, deadline=None)
@given(count=st.integers(3, 12), length=st.integers(2, 40))
def test_requests_that_fill_a_pool_together_become_one(count: int, length: int) -> None:
    full = count * (length + 1)

    def fails(candidate: Waves) -> bool:
        return sum(one.length + one.tokens for wave in candidate for one in wave.requests) >= full

    (wave,) = shrunk(plain([length] * count), fails, lambda: False)
    assert len(wave.requests) == 1


def test_a_search_ends_when_its_time_is_over() -> None:
    tried: list[Waves] = []

    def passes(proposal: Waves) -> bool:
        tried.append(proposal)
        return False

    given_waves = drawn(0, 4)
    assert shrunk(given_waves, passes, lambda: len(tried) >= 5) == given_waves
    assert len(tried) == 5


def test_no_proposal_has_a_request_that_follows_one_that_is_not_there() -> None:
    script = Script(Served().scope(), drawn(1, 1))
    for proposal in fewer_requests(script.waves):
        require_sense(replace(script, waves=tuple(proposal)))


class Toy:
    """An engine that finds something when a request follows one with a prompt of 3 or more."""

    likely: dict[str, list[Likely]] | None = None

    def play(self, given_waves: Iterator[Wave], stop: Callable[[], bool]) -> Player:
        """End each request at once."""
        orders = Orders(lambda *arrived: arrived, str, list)
        player = Player(given_waves, orders, stop)
        lines, before = journal.of_process(), 0
        assert lines is not None
        try:
            while True:
                for one, prompt in player.poll():
                    if before >= 3:
                        lines.finding(Finding("toy", "found", "toy | -", 1))
                    before = len(prompt)
                    player.ended(one.name, [7])
        except PlayedError:
            return player


def test_an_engine_that_has_started_shrinks_a_script_in_forks(
    lines: Journal, tmp_path: Path
) -> None:
    script = Script(Served().scope(), drawn(2, 2))
    best = tmp_path / "best.json"
    assert shrink(Toy(), Served(), script, "toy | -", best, seconds=60.0)
    (wave,) = read(best).waves
    assert [one.length for one in wave.requests] == [3, 1]
    assert lines.findings == {}
    best.unlink()
    assert not shrink(Toy(), Served(), replace(script, waves=()), "toy | -", best, seconds=60.0)
    assert not best.exists()


@pytest.mark.usefixtures("lines")
def test_a_proposal_without_the_finding_ends_after_twice_the_forwards(tmp_path: Path) -> None:
    class Slow(Toy):
        """Finds it in wave 2; without the wave with a flush, serves what is left for ever."""

        def play(self, given_waves: Iterator[Wave], stop: Callable[[], bool]) -> Player:
            lines = journal.of_process()
            assert lines is not None
            if any(wave.flush for wave in given_waves):
                lines.count(forwards=5)
                lines.finding(Finding("toy", "found", "toy | -", 1))
            try:
                while not stop() and lines.counts.get("forwards", 0) < 1000:
                    lines.count(forwards=1)
            except PlayedError:
                (tmp_path / "most").write_text(str(lines.counts["forwards"]))
            return Player(iter(()), Orders(lambda *arrived: arrived, str, list), stop)

    waves_given = (replace(plain([1])[0], flush=True), *plain([1]))
    script = Script(Served().scope(), waves_given)
    assert shrink(Slow(), Served(), script, "toy | -", tmp_path / "best.json", seconds=60.0)
    assert int((tmp_path / "most").read_text()) == 2 * 5 + SLACK + 1


WAYS_TO_FAIL: dict[str, tuple[Callable[[], Any], float, str]] = {
    "an error": (lambda: 1 / 0, 60.0, "ZeroDivisionError: division by zero"),
    "an error that no handler catches": (lambda: sys.exit(3), 60.0, "SystemExit: 3"),
    "no JSON": (lambda: 1j, 60.0, "TypeError: Object of type complex is not JSON serializable"),
    "a signal": (lambda: os.kill(os.getpid(), signal.SIGKILL), 60.0, "with exit code -9"),
    "too long": (lambda: time.sleep(60), 0.2, "it did not end within 0 s"),
}


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize("way", WAYS_TO_FAIL)
def test_a_fork_that_fails_says_why(way: str) -> None:
    work, seconds, why = WAYS_TO_FAIL[way]
    begun = time.monotonic()
    with pytest.raises(ForkFailedError, match=why):
        in_fork(work, seconds)
    assert time.monotonic() - begun < 30


@pytest.mark.usefixtures("lines")
def test_a_fork_returns_what_its_work_returns() -> None:
    assert in_fork(lambda: [1, "a"], 60.0) == [1, "a"]
    assert in_fork(lambda: None, 60.0) is None
    assert in_fork(lambda: "x" * 300_000, 60.0) == "x" * 300_000


def test_texts_of_earlier_waves_are_not_kept() -> None:
    for number in range(2 * MOST_TEXTS):
        Part(f"text {number}", 3).tokens()
    assert script_module._tokens.cache_info().currsize <= MOST_TEXTS


def test_a_fork_passes_barriers_for_which_it_has_no_threads() -> None:
    assert in_fork(lambda: [distributed.barrier()], 60.0) == [None]
