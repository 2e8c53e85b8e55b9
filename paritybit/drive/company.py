"""Compares what a request gets in company with what it gets alone, in an engine just started.

Law: a request gets the same tokens, whoever is served with it and whatever is cached. Arithmetic
depends on the batch, so tokens that are nearly as likely may change places. How much likelihoods
vary is measured: a request is served with bystanders that it shares nothing with.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paritybit.drive.forks import in_fork
from paritybit.drive.player import Player
from paritybit.drive.script import Part, Planned, Wave
from paritybit.drive.stand_ins import attention
from paritybit.watch import journal
from paritybit.watch.journal import Finding

CHECK = "company"

ONE_KEY_MORE = "a prefill reads one key more than decoding"
"""The cause of what differs no more where prefills read as many keys as decoding does."""

LONGEST_PLAY = 120.0
"""Seconds that a wave may take."""

BYSTANDERS = tuple(
    Planned(f"bystander {length}", (Part(f"bystander {length}", length),), 24)
    for length in (37, 5, 90, 17, 64, 1, 30)
)
"""What a request is served with where it is measured how much the batch matters."""

Likely = Sequence[tuple[int, float]]
"""The likeliest next tokens, each with the logarithm of its likelihood, the likeliest first."""


class Plays(Protocol):
    """An engine that has started. `likely` has the likeliest tokens at each step of a request."""

    likely: dict[str, list[Likely]] | None

    def play(self, waves: Iterator[Wave], stop: Callable[[], bool]) -> Player:
        """Serve waves until `stop` says so or all are served, then until the engine is idle."""


@dataclass(frozen=True)
class Other:
    """A step at which a request got another token in company, and how much likelier it is alone."""

    request: str
    step: int
    company: int
    alone: int
    gap: float
    noise: float

    def __str__(self) -> str:
        return (
            f"request {self.request} gets token {self.company} at step {self.step} in company, "
            f"and {self.alone} alone; their likelihoods differ by {self.gap:.2g}, and by at most "
            f"{self.noise:.1g} with the batch"
        )


@dataclass
class Comparison:
    """Compares the requests of waves. `noted` yields waves and writes them to the journal."""

    engine: Plays
    noted: Callable[[Iterator[Wave]], Iterator[Wave]]
    noise: float = 0.0
    tried: int = 0
    measured: int = 0

    def judge(self, wave: Wave, stop: Callable[[], bool]) -> None:
        """Serve a wave, then each of its requests alone, and write what differs to the journal."""
        lines = journal.of_process()
        if lines is None:
            return
        self.measured = 0
        company, before = self.served(wave), self.tried
        if company is None:
            lines.undecided(f"{CHECK}: a wave could not be served in {LONGEST_PLAY:.0f} s")
            return
        for one in wave.requests:
            if stop():
                return
            other = self.other(one, chain_of(wave, one), company)
            lines.count(**{f"tried: {CHECK}": self.tried - before})
            before = self.tried
            if other is None:
                continue
            cause = {"what": ONE_KEY_MORE} if self.even(wave, one) else None
            key = f"{CHECK} | - | {ONE_KEY_MORE if cause else 'not known'}"
            lines.finding(Finding(CHECK, str(other), key, 0, cause=cause))

    def other(
        self,
        one: Planned,
        chain: Sequence[Planned],
        company: dict[str, list[Likely]],
        *,
        even: bool = False,
    ) -> Other | None:
        """Return the first step at which a request differs alone, by more than the noise."""
        if any(request.aborted is not None or request.temperature for request in chain):
            return None
        alone = self.served(Wave(tuple(chain)), even=even)
        if alone is None:
            return None
        self.tried += 1
        step = differs(company[one.name], alone[one.name])
        if step is None and self.measured:
            return None
        beside = self.served(Wave((*chain, *BYSTANDERS)), even=even)
        if beside is None or differs(beside[one.name], alone[one.name]) is not None:
            return None
        self.measured += 1
        self.noise = max(self.noise, variation(beside[one.name], alone[one.name]))
        return None if step is None else self.beyond(one.name, step, company, alone)

    def beyond(
        self,
        name: str,
        step: int,
        company: dict[str, list[Likely]],
        alone: dict[str, list[Likely]],
    ) -> Other | None:
        """Return what differs at a step, None where the noise explains it."""
        there, here = company[name][step], alone[name][step]
        least = min(value for _, value in here)
        gap = here[0][1] - dict(here).get(there[0][0], least)
        if gap <= 2 * self.noise:
            return None
        return Other(name, step, there[0][0], here[0][0], gap, self.noise)

    def even(self, wave: Wave, one: Planned) -> bool:
        """Whether nothing differs where prefills read as many keys as decoding does.

        Triton's prefill reads one key more, as reported in sgl-project/sglang#32087.
        """
        company = self.served(wave, even=True)
        return (
            company is not None and self.other(one, chain_of(wave, one), company, even=True) is None
        )

    def served(self, wave: Wave, *, even: bool = False) -> dict[str, list[Likely]] | None:
        """Return the likeliest tokens at each step of each request, served by a fork."""

        def work() -> Any:
            attention.fewer_keys = int(even)
            self.engine.likely = {}
            self.engine.play(self.noted(iter((wave,))), lambda: False)
            return self.engine.likely

        found: dict[str, list[Likely]] | None = in_fork(work, LONGEST_PLAY)
        return found


def chain_of(wave: Wave, one: Planned) -> tuple[Planned, ...]:
    """Return a request, after those of its wave whose conversation it goes on with."""
    named = {request.name: request for request in wave.requests}
    chain = [one]
    while chain[0].follows is not None:
        chain.insert(0, named[chain[0].follows])
    return tuple(chain)


def differs(company: Sequence[Likely], alone: Sequence[Likely]) -> int | None:
    """Return the first step at which another token is the likeliest, None where there is none."""
    pairs = zip(company, alone, strict=False)
    return next((step for step, (one, two) in enumerate(pairs) if one[0][0] != two[0][0]), None)


def variation(beside: Sequence[Likely], alone: Sequence[Likely]) -> float:
    """Return by how much the likelihood of a token differs at most."""
    return max(
        abs(value - dict(here)[token])
        for there, here in zip(beside, alone, strict=False)
        for token, value in there
        if token in dict(here)
    )
