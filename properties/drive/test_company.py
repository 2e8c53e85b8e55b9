"""Requests in company and alone: what differs is found, and noise is told from it."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from paritybit.drive.company import CHECK, Comparison, Likely
from paritybit.drive.directing import compare, least
from paritybit.drive.operating.actions import WHOLE
from paritybit.drive.player import Orders, PlayedError, Player
from paritybit.drive.requests import COMPARED
from paritybit.drive.script import Part, Planned, Wave
from paritybit.drive.sglang.settings import Served
from paritybit.drive.stand_ins import attention
from paritybit.launch.known import Known
from paritybit.launch.schema import finding_of
from paritybit.watch.journal import Journal, count, read
from paritybit.watch.settings import VARIABLE, Settings

STEPS = 6


@dataclass
class Toy:
    """An engine whose likelihoods vary by `noise` with how many are served at once.

    `wrong` says by how much one request is off for one that shares its first text with another.
    With `known`, it is off only where a prefill reads one key more.
    """

    noise: float = 0.0
    wrong: float = 0.0
    known: bool = False
    gap: float = 0.5
    likely: dict[str, list[Likely]] | None = field(default=None)

    def play(self, given: Iterator[Wave], stop: Callable[[], bool]) -> Player:
        """Serve each request at once."""
        player = Player(given, Orders(lambda *arrived: arrived, str, list), stop)
        texts: set[str] = set()
        assert self.likely is not None
        try:
            while True:
                arrived = [order for order in player.poll() if isinstance(order, tuple)]
                for one, _ in arrived:
                    name, text = one.name, one.prompt[0].text
                    off = self.wrong if text in texts else 0.0
                    if self.known and attention.fewer_keys:
                        off = 0.0
                    texts.add(text)
                    self.likely[name] = self.steps(name, off, len(arrived) + player.open)
                    player.ended(name, [step[0][0] for step in self.likely[name]])
        except PlayedError:
            return player

    def steps(self, name: str, off: float, batch: int) -> list[Likely]:
        """Return the likeliest tokens: 1, and 2 by `gap` less likely. `off` makes 2 likelier."""
        chance = random.Random(f"{name} {batch}")
        found: list[Likely] = []
        for _ in range(STEPS):
            one, two = -1.0 + self.noise * chance.random(), -1.0 - self.gap + off
            found.append(sorted([(1, one), (2, two)], key=lambda token: -token[1]))
        return found


SHARED = Wave(tuple(Planned(name, (Part("common", 3),), STEPS) for name in ("a", "b")))


def findings(engine: Toy, wave: Wave, lines: Journal) -> tuple[int, dict[str, int]]:
    """Return how many differences are found, and the counts."""
    Comparison(engine, lambda waves: waves).judge(wave, lambda: False)
    return sum(lines.findings.values()), lines.counts


def test_what_a_request_gets_in_company_alone_is_a_finding(lines: Journal) -> None:
    found, counts = findings(Toy(noise=1e-5, wrong=1.0), SHARED, lines)
    assert found == 1
    assert counts[f"tried: {CHECK}"] == 2
    assert "request b gets token 2 at step 0 in company, and 1 alone" in lines.path.read_text()


@pytest.mark.parametrize(
    "engine",
    [Toy(noise=1e-5), Toy(noise=1e-3, wrong=2e-4, gap=1e-4)],
    ids=["nothing differs", "no more than noise"],
)
def test_what_is_right_or_noise_is_no_finding(engine: Toy, lines: Journal) -> None:
    found, counts = findings(engine, SHARED, lines)
    assert found == 0
    assert counts[f"tried: {CHECK}"] >= 2


@pytest.mark.parametrize("known", [True, False])
def test_what_one_key_more_explains_is_known_everywhere(known: bool, lines: Journal) -> None:
    findings(Toy(wrong=1.0, known=known), SHARED, lines)
    entries = [json.loads(line) for line in lines.path.read_text().splitlines()]
    found = [finding_of(entry) for entry in entries if entry["kind"] == "finding"]
    assert [Known().where(one) is not None for one in found] == [known]


class Broken(Toy):
    """An engine that fails: in its own file, or in a file of nobody's."""

    file = "/engine/sglang/srt/managers/scheduler.py"

    def play(self, given: Iterator[Wave], stop: Callable[[], bool]) -> Player:
        """Serve a forward, then raise."""
        next(given)
        count(**{"forwards": 2, "forwards: decode": 2})
        exec(compile("raise ValueError('no room')", self.file, "exec"))
        raise AssertionError


@pytest.mark.parametrize("own", [True, False])
def test_an_error_in_a_fork_is_judged_and_named(
    own: bool, lines: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, Settings(str(lines.path.parent)).text())
    engine = Broken()
    engine.file = engine.file if own else "/someone/script.py"
    findings(engine, SHARED, lines)
    (said,) = lines.said
    assert "a wave could not be served: ValueError: no room" in said
    journals = [path for path in lines.path.parent.glob("*.jsonl") if path != lines.path]
    found = [line for path in journals for line in read(path) if line["kind"] == "finding"]
    assert [one["check"] for one in found] == ["engine error"] * own


def test_what_is_aborted_or_drawn_at_random_is_not_compared(lines: Journal) -> None:
    requests = (
        Planned("a", (Part("common", 3),), STEPS, aborted=2),
        Planned("b", (Part("common", 3),), STEPS, temperature=1.0),
        Planned("b+", (Part("more", 3),), STEPS, follows="b"),
    )
    found, counts = findings(Toy(wrong=1.0), Wave(requests), lines)
    assert found == 0
    assert counts[f"tried: {CHECK}"] == 0


def test_noise_is_measured_in_each_wave_and_hides_what_is_no_larger(lines: Journal) -> None:
    comparison = Comparison(Toy(noise=1e-5), lambda waves: waves)
    comparison.judge(SHARED, lambda: False)
    assert 0 < comparison.noise <= 1e-5
    company: dict[str, list[Likely]] = {"a": [[(2, -0.7), (1, -0.8)]]}
    for gap, found in ((1.9, False), (2.1, True)):
        alone: dict[str, list[Likely]] = {"a": [[(1, 0.0), (2, -gap * comparison.noise)]]}
        assert (comparison.beyond("a", 0, company, alone) is not None) == found


@pytest.mark.parametrize(
    ("served", "tried"),
    [(Served(), COMPARED), (Served(host_cache=True), 0)],
    ids=["forks", "threads"],
)
def test_each_run_compares_some_requests_where_a_fork_can_serve_them(
    served: Served, tried: int, lines: Journal
) -> None:
    compare(Toy(noise=1e-5), served, lambda: False)
    assert lines.counts == {f"tried: {CHECK} (gemma4)": tried}
    entries = [json.loads(line) for line in lines.path.read_text().splitlines()]
    scripts = [entry["settings"]["alone"] for entry in entries if entry["kind"] == "script"]
    assert scripts == ([True] if tried else [])


def test_a_comparison_ends_when_it_is_to_stop_and_compares_nothing(lines: Journal) -> None:
    Comparison(Toy(wrong=1.0), lambda waves: waves).judge(SHARED, lambda: True)
    assert not lines.counts.get(f"tried: {CHECK}") and not lines.findings


def test_a_row_counts_as_cut_short_until_it_is_whole(lines: Journal) -> None:
    given = least(iter([SHARED] * 3), 2, lambda: True)
    assert lines.counts == {WHOLE: 0}
    assert len(list(given)) == 2
    assert lines.counts == {WHOLE: 1}
