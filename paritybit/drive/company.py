"""Compares the tokens of a request in company with its tokens alone, in a freshly started engine.

Law: a request gets the same tokens, independent of the other requests and of the cache. Arithmetic
depends on the batch, so two tokens with nearly the same likelihood may change places. How much
likelihoods vary is measured with bystanders that share nothing with a request.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paritybit.drive.engine import Engine, EngineFailedError, LikelyStep, judge_failure
from paritybit.drive.forks import ForkFailedError, in_fork
from paritybit.drive.script import Part, Planned, Wave
from paritybit.drive.stand_ins import attention
from paritybit.watch import journal
from paritybit.watch.journal import Finding
from paritybit.watch.settings import TRIED

CHECK = "company"

LONGEST_PLAY = 120.0
"""The most seconds of a wave."""

BYSTANDERS = tuple(
    Planned(f"bystander {length}", (Part(f"bystander {length}", length),), 24)
    for length in (37, 5, 90, 17, 64, 2, 30)
)


class StoppedError(Exception):
    """The time was over, so requests may have ended early."""


@dataclass
class Comparison:
    """Compares the requests of waves.

    `noted` writes the waves that it yields to the journal, which counts requests as `counted`.
    `noise` is the largest measured variation of log-likelihoods. `tried` counts compared requests,
    and `measured` measurements in this wave.
    """

    engine: Engine
    noted: Callable[[Iterator[Wave]], Iterator[Wave]]
    counted: str = f"{TRIED}{CHECK}"
    noise: float = 0.0
    tried: int = 0
    measured: int = 0
    stop: Callable[[], bool] = lambda: False

    def judge(self, wave: Wave, stop: Callable[[], bool]) -> None:
        """Serve a wave, then each of its requests alone, and write differences to the journal."""
        lines = journal.of_process()
        if lines is None:
            return
        self.stop, self.measured = stop, 0
        try:
            company = self.served(wave)
            for one in wave.requests:
                before = self.tried
                text = self.difference(one, chain_of(wave, one), company)
                lines.count(**{self.counted: self.tried - before})
                if text is not None:
                    lines.finding(Finding(CHECK, text, f"{CHECK} | - | not known", 0))
        except StoppedError:
            return
        except ForkFailedError as error:
            lines.undecided(f"{CHECK}: a wave could not be served: {error}")

    def difference(
        self,
        one: Planned,
        chain: Sequence[Planned],
        company: dict[str, list[LikelyStep]],
    ) -> str | None:
        """Describe the first step at which a request differs by more than the noise."""
        if any(one.aborted is not None or one.temperature or one.sampling for one in chain):
            return None
        alone = self.served(Wave(tuple(chain)))[one.name]
        self.tried += 1
        step = differs(company[one.name], alone)
        if step is None and self.measured:
            return None
        beside = self.served(Wave((*chain, *BYSTANDERS)))[one.name]
        if differs(beside, alone) is not None:
            return None
        self.measured += 1
        self.noise = max(self.noise, variation(beside, alone))
        if step is None:
            return None
        there, here = company[one.name][step].likely, alone[step].likely
        least = min(value for _, value in here)
        gap = here[0][1] - dict(here).get(there[0][0], least)
        if gap <= 2 * self.noise:
            return None
        return (
            f"request {one.name} gets token {there[0][0]} at step {step} in company, and "
            f"{here[0][0]} alone; their likelihoods differ by {gap:.2g}, and by at most "
            f"{self.noise:.1g} with the batch"
        )

    def served(self, wave: Wave) -> dict[str, list[LikelyStep]]:
        """Serve a wave in a fork, and return the steps of each request.

        Raises ForkFailedError if the engine fails, and StoppedError if it was to stop.
        """

        def work() -> Any:
            # Else, answers depend on chunks and trees of drafts: sgl-project/sglang#32087, #39287.
            attention.as_decoding = True
            self.engine.likely = {}
            try:
                self.engine.play(self.noted(iter((wave,))), self.stop)
            except (Exception, EngineFailedError) as error:
                judge_failure(error)
                raise
            return self.engine.likely

        found: dict[str, Any] = in_fork(work, LONGEST_PLAY)  # As JSON.
        if self.stop():
            raise StoppedError
        return {name: [LikelyStep(*step) for step in steps] for name, steps in found.items()}


def chain_of(wave: Wave, one: Planned) -> tuple[Planned, ...]:
    """Return a request, preceded by the requests whose conversation it continues."""
    named = {request.name: request for request in wave.requests}
    chain = [one]
    while chain[0].follows is not None:
        chain.insert(0, named[chain[0].follows])
    return tuple(chain)


def differs(company: Sequence[LikelyStep], alone: Sequence[LikelyStep]) -> int | None:
    """Return the first step at which the likeliest tokens differ, or None."""
    pairs = enumerate(comparable(company, alone))
    return next((step for step, (one, two) in pairs if one.likely[0][0] != two.likely[0][0]), None)


def variation(beside: Sequence[LikelyStep], alone: Sequence[LikelyStep]) -> float:
    """Return the largest difference of a token's log-likelihoods."""
    return max(
        abs(value - dict(here.likely)[token])
        for there, here in comparable(beside, alone)
        for token, value in there.likely
        if token in dict(here.likely)
    )


def comparable(
    one: Sequence[LikelyStep], other: Sequence[LikelyStep]
) -> Iterator[tuple[LikelyStep, LikelyStep]]:
    """Yield the steps that follow the same tokens. A draft may be forced in one of the runs."""
    for pair in zip(one, other, strict=False):
        yield pair
        if pair[0].taken != pair[1].taken:
            return
