"""The comparison of a request in company with the same request alone."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from paritybit.drive.company import CHECK, Comparison, differs, variation
from paritybit.drive.engine import LikelyStep
from paritybit.drive.operating.actions import WHOLE
from paritybit.drive.requests import AT_LEAST, COMPARED
from paritybit.drive.run import compare, least
from paritybit.drive.script import Part, Planned, Sampling, Wave
from paritybit.drive.sglang.settings import SglangServed
from paritybit.launch.journals import Journals
from paritybit.watch.journal import Journal, count
from paritybit.watch.settings import VARIABLE, Settings
from properties.drive.toy import Toy

STEPS = 6

SHARED = Wave(tuple(Planned(name, (Part("common", 3),), STEPS) for name in ("a", "b")))


class Talks(Toy):
    """An engine whose likelihoods vary by `noise` with the batch.

    A request that shares its first text with an earlier one is off by `wrong`. Token 2 is less
    likely than token 1 by `gap`.
    """

    def __init__(self, noise: float = 0.0, wrong: float = 0.0, *, gap: float = 0.5) -> None:
        super().__init__()
        self.noise, self.wrong, self.gap = noise, wrong, gap
        self.texts: set[str] = set()

    def step(self, arrived: Sequence[Planned]) -> None:
        """Serve each request at once."""
        assert self.likely is not None
        for one in arrived:
            text = one.prompt[0].text
            off = self.wrong if text in self.texts else 0.0
            self.texts.add(text)
            chance = random.Random(f"{one.name} {len(arrived) + self.player.open}")
            steps: list[LikelyStep] = []
            for _ in range(STEPS):
                pair = (1, -1.0 + self.noise * chance.random()), (2, -1.0 - self.gap + off)
                likely = sorted(pair, key=lambda token: -token[1])
                steps.append(LikelyStep(likely[0][0], likely))
            self.likely[one.name] = steps
        super().step(arrived)


def findings(engine: Toy, wave: Wave, lines: Journal) -> tuple[int, int]:
    """Return how many differences are found, and how many requests were compared."""
    Comparison(engine, lambda waves: waves).judge(wave, lambda: False)
    return sum(lines.findings.values()), lines.counts.get(f"tried: {CHECK}", 0)


def test_a_request_that_differs_in_company_is_a_finding(lines: Journal) -> None:
    assert findings(Talks(noise=1e-5, wrong=1.0), SHARED, lines) == (1, 2)
    assert "request b gets token 2 at step 0 in company, and 1 alone" in lines.path.read_text()


NO_DIFFERENCE = {
    "nothing differs": (Talks(noise=1e-5), SHARED.requests, 2),
    "no more than noise": (Talks(noise=1e-3, wrong=2e-4, gap=1e-4), SHARED.requests, 2),
    "aborted": (Talks(wrong=1.0), [Planned("a", (Part("common", 3),), STEPS, aborted=2)], 0),
    "random": (
        Talks(wrong=1.0),
        [
            Planned("b", (Part("common", 3),), STEPS, temperature=1.0),
            Planned("b+", (Part("more", 3),), STEPS, follows="b"),
        ],
        0,
    ),
    "penalties": (
        Talks(wrong=1.0),
        [Planned("a", (Part("common", 3),), STEPS, sampling=Sampling(min_tokens=1))],
        0,
    ),
}


@pytest.mark.parametrize("case", NO_DIFFERENCE)
def test_noise_and_requests_that_cannot_be_compared_are_no_finding(
    case: str, lines: Journal
) -> None:
    engine, requests, tried = NO_DIFFERENCE[case]
    found, compared = findings(engine, Wave(tuple(requests)), lines)
    assert found == 0
    assert compared >= tried if tried else compared == 0


def test_steps_after_another_draft_is_forced_are_not_compared() -> None:
    first, second = [(3, -1.0), (4, -2.0)], [(5, -1.0), (6, -2.0)]
    company = [LikelyStep(3, first), LikelyStep(5, second)]
    assert differs(company, [LikelyStep(3, first), LikelyStep(6, second[::-1])]) == 1
    forced = [LikelyStep(4, first), LikelyStep(6, second[::-1])]
    assert differs(company, forced) is None
    assert variation(company, forced) == 0


class Broken(Toy):
    """An engine that fails in `file`."""

    file = "/engine/sglang/srt/managers/scheduler.py"

    def play(self, waves: Iterator[Wave], stop: Callable[[], bool]) -> Any:
        """Serve a forward, then raise."""
        next(waves)
        count(**{"forwards": 2, "forwards: decode": 2})
        exec(compile("raise ValueError('no room')", self.file, "exec"))


@pytest.mark.parametrize("own", [True, False])
def test_an_error_in_a_fork_is_judged(
    own: bool, lines: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, Settings(str(lines.path.parent)).text())
    engine = Broken()
    engine.file = engine.file if own else "/someone/script.py"
    findings(engine, SHARED, lines)
    (said,) = lines.said
    assert "a wave could not be served: ValueError: no room" in said
    entries = Journals(lines.path.parent).entries()
    found = [one for process, one in entries if process not in lines.path.stem]
    found = [one for one in found if one["kind"] == "finding"]
    assert [one["check"] for one in found] == ["engine error"] * own


@pytest.mark.parametrize(
    ("served", "tried"), [(SglangServed(), COMPARED), (SglangServed(host_cache=True), 0)]
)
def test_each_run_compares_some_requests_if_a_fork_can_serve_them(
    served: SglangServed, tried: int, lines: Journal
) -> None:
    compare(Talks(noise=1e-5), served, lambda: False)
    assert lines.counts.get(f"tried: {CHECK} (gemma4)", 0) == tried


def test_a_row_counts_as_whole_after_some_waves(lines: Journal) -> None:
    waves = [replace(SHARED, brief=True), *[SHARED] * (AT_LEAST + 1)]
    given = least(iter(waves), lambda: True)
    assert lines.counts.get(WHOLE) is None
    assert len(list(given)) == 1 + AT_LEAST
    assert lines.counts == {WHOLE: 1}
