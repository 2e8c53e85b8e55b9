"""Request scripts and jobs as data, the search for a smaller script, and forks."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from paritybit.harness.schedules.passes import shrunk
from torch import distributed

from paritybit.drive import ENGINES
from paritybit.drive.adapters import Environment, adapter
from paritybit.drive.forks import ForkFailedError, in_fork
from paritybit.drive.job import Job, command
from paritybit.drive.job import read as read_job
from paritybit.drive.requests import waves
from paritybit.drive.run import shrink
from paritybit.drive.script import (
    Action,
    Part,
    Planned,
    Sampling,
    Script,
    Wave,
    read,
    require_sense,
)
from paritybit.drive.sglang.settings import SglangServed
from paritybit.drive.shrink import PASSES, Waves
from paritybit.watch import journal
from paritybit.watch.journal import Finding, Journal
from properties.drive.toy import LIMITS, Toy

ONE = Planned("a", (Part("a", 1),), 2)


def drawn(seed: int, count: int) -> Waves:
    return tuple(islice(waves(seed, LIMITS), count))


@pytest.mark.parametrize("name", ENGINES)
def test_generated_requests_survive_json(name: str) -> None:
    served = adapter(name).settings(actions=True, priorities=True)
    script = Script(served.scope(), tuple(islice(served.traffic(), 6)))
    assert msgspec.json.decode(msgspec.json.encode(script), type=Script) == script
    assert type(served).of(script.settings) == served


HOSTILE = {
    "half of a surrogate pair as a name": Wave((replace(ONE, name="\ud800"),)),
    "half of a surrogate pair as a text": Wave((replace(ONE, prompt=(Part("\ud800", 1),)),)),
    "an unknown action": Wave(actions=(Action("shut down"),)),
    "an action before the wave": Wave(actions=(Action("flush", -1),)),
    "an action that never ends": Wave(actions=(Action("pause", 0, 10**9),)),
    "an unknown adapter": Wave((replace(ONE, adapter=9),)),
    "no top_k": Wave((replace(ONE, sampling=Sampling(top_k=0)),)),
    "no top_p": Wave((replace(ONE, sampling=Sampling(top_p=0.0)),)),
    "more than all tokens": Wave((replace(ONE, sampling=Sampling(min_tokens=3)),)),
    "a token that no model has": Wave((replace(ONE, sampling=Sampling(logit_bias={"300": 1.0})),)),
    "an endless bias": Wave((replace(ONE, sampling=Sampling(logit_bias={"30": 1e3})),)),
    "two requests with one name": Wave((ONE, ONE)),
    "a request that follows none": Wave((replace(ONE, follows="b"),)),
    "an empty prompt": Wave((replace(ONE, prompt=()),)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_script_is_refused(case: str) -> None:
    with pytest.raises(ValueError, match="wave"):
        require_sense(Script({}, (HOSTILE[case],)))


def test_a_job_is_written_to_a_file_that_its_process_reads(tmp_path: Path) -> None:
    served = SglangServed(page_size=16, speculative="eagle", model="gpt_oss")
    job = Job(served.scope(), drawn(1, 1), shrink="a key", best="best.json", seconds=3.0)
    engine = Environment("sglang 0", tmp_path, (tmp_path,))
    words, variables = command(adapter("sglang"), engine, job, tmp_path)
    assert words[1:4] == ["-m", "paritybit.drive", "sglang"]
    assert read_job(Path(words[4])) == job
    assert variables["TRITON_INTERPRET"] == "1"
    with pytest.raises(ValueError, match="model"):
        command(
            adapter("sglang"),
            engine,
            replace(job, settings={**job.settings, "model": "b"}),
            tmp_path,
        )


def lengths(waves_given: Waves) -> list[int]:
    """Return the lengths of the parts of prompts that other requests share."""
    parts = [part for wave in waves_given for one in wave.requests for part in one.prompt]
    return [part.length for part in parts if part.text.endswith("common")]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), least=st.integers(1, 30), many=st.integers(1, 3))
def test_no_single_step_makes_a_result_smaller(seed: int, least: int, many: int) -> None:
    def fails(candidate: Waves) -> bool:
        return sum(length >= least for length in lengths(candidate)) >= many

    given_waves = drawn(seed, 4)
    assume(fails(given_waves))  # The first waves of some seeds share too little.
    found = shrunk(given_waves, PASSES, fails)
    assert fails(found)
    assert lengths(found) == [least] * many
    for proposals in PASSES:
        assert not any(fails(one) for one in proposals(found) if one != found)


class Finds(Toy):
    """An engine that finds something when a request follows one with a prompt of 3 or more."""

    before = 0

    def step(self, arrived: Sequence[Planned]) -> None:
        """End each request, and look at the one before it."""
        for one in arrived:
            if self.before >= 3:
                lines = journal.of_process()
                assert lines is not None
                lines.finding(Finding("toy", "found", "toy | -", 1))
            self.before = one.length
        super().step(arrived)


def shrinks(engine: Toy, waves_given: Waves, best: Path, *, alone: bool = False) -> bool:
    served = SglangServed(alone=alone)
    job = Job(served.scope(), waves_given, shrink="toy | -", best=str(best), seconds=60.0)
    return shrink(engine, served, job)


@pytest.mark.parametrize("alone", [False, True])
def test_a_started_engine_shrinks_a_script_in_forks(
    lines: Journal, tmp_path: Path, alone: bool
) -> None:
    """Also if the finding is from the first wave, whose requests are served alone, too."""
    best = tmp_path / "best.json"
    assert shrinks(Finds(), drawn(2, 2), best, alone=alone)
    (wave,) = read(best).waves
    assert [one.length for one in wave.requests] == [3, 1]
    assert lines.findings == {}
    best.unlink()
    assert not shrinks(Finds(), (), best)
    assert not best.exists()


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
    with pytest.raises(ForkFailedError, match=why):
        in_fork(work, seconds)


@pytest.mark.usefixtures("lines")
def test_a_fork_returns_a_result_and_waits_at_no_barrier() -> None:
    for result in ([1, "a"], None, "x" * 300_000):
        assert in_fork(lambda result=result: result, 60.0) == result  # type: ignore[misc]
    assert in_fork(lambda: [distributed.barrier()], 60.0) == [None]
