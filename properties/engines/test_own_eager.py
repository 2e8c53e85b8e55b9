"""An engine's own eager mode: what it shows of releases, and what a leg of it says."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from paritybit.harness.engines.faults import Finding
from paritybit.harness.engines.legs import EAGERLY, OURS, OWN, Leg
from paritybit.harness.engines.worker import LegAnswer, LegTask, _Session
from paritybit.reference.batch import Mode
from paritybit.subjects.engines.shared.engine import OWN_EAGER, OthersEngine

from properties.support.releases import package_of, told_of

TRIED = (
    ("sglang", "0.5.11", "decode"),
    ("sglang", "0.5.23", "decode"),
    ("vllm", "0.17.0", "decode"),
    ("vllm", "0.33.0", "decode"),
    ("vllm", "0.33.0", "target_verify"),
    ("vllm", "0.17.0", "eagle_draft"),
    ("vllm", "0.33.0", "eagle_draft"),
)
"""Releases whose replays differ, and the newest ones: none of their eager modes does."""


@cache
def shown(engine: str, version: str, runner: str) -> Any:
    """Return what a release that lies here shows in its own eager mode."""
    package = package_of(version, engine)
    return told_of("properties.engines.played_eagerly", package, engine, runner)


@pytest.mark.parametrize(("engine", "version", "runner"), TRIED)
def test_a_release_in_its_own_eager_mode_has_the_reference_s_bits(
    engine: str, version: str, runner: str
) -> None:
    found = shown(engine, version, runner)
    assert found["none"]["violated"] == []
    assert found["none"]["steps"] > 4
    assert found["none"]["replays"] == 0
    assert "logits_parity" in found["changed"]["violated"]


class EagerLeg:
    """A leg that was played: how many of its steps were replayed, and what it found."""

    def __init__(self, steps: int, replays: int, found: list[Finding]) -> None:
        self.result = SimpleNamespace(steps=steps, replays=replays)
        self.found = found

    def play(self, *given: Any) -> None:
        """Have been played."""

    def findings(self) -> list[Finding]:
        """Return what was found."""
        return self.found

    def to_json(self) -> dict[str, Any]:
        """Return nothing of what was played."""
        return {}


def answered(leg: EagerLeg) -> LegAnswer:
    """Return what a session says of a leg in an engine's own eager mode."""
    session: Any = object.__new__(_Session)
    session.engine = session.trial = session.refused = None
    session.asked = set()
    session.task = SimpleNamespace(runner="decode", preset="gpt_oss")
    session.adapter = SimpleNamespace(own_eager=lambda *given: None)
    session.evidence = SimpleNamespace(judge=list)
    session.answer = LegAnswer("decode gpt_oss, its own eager mode", "decode", "gpt_oss")
    session._leg = lambda *given: leg
    session._own_eager()
    found: LegAnswer = session.answer
    return found


@pytest.mark.parametrize(
    ("arithmetic", "said"),
    [
        (OURS, "step 3 (decode): row 0"),
        (EAGERLY, "in the engine's own eager mode, step 3 (decode): row 0"),
        (OWN, "with its own kernels, step 3 (decode): row 0"),
    ],
)
def test_what_differs_says_by_whose_arithmetic_it_does(arithmetic: str, said: str) -> None:
    finding = Finding("decode", "gpt_oss", "logits_parity", "step 3 (decode): row 0")
    leg: Any = object.__new__(Leg)
    leg.arithmetic, leg.causes = arithmetic, {}
    leg.lockstep = SimpleNamespace(trial=SimpleNamespace(preset="gpt_oss"))
    leg.evidence = SimpleNamespace(findings=lambda preset: [finding])
    (found,) = answered(EagerLeg(11, 0, leg.findings())).findings
    assert found["message"] == said


@pytest.mark.parametrize(
    ("steps", "replays", "said"),
    [(0, 0, "played nothing"), (11, 1, "replayed a graph"), (11, 0, None)],
)
def test_an_eager_leg_that_shows_nothing_of_an_eager_mode_is_undecided(
    steps: int, replays: int, said: str | None
) -> None:
    undecided = answered(EagerLeg(steps, replays, [])).undecided
    assert (undecided is None) is (said is None)
    assert said is None or undecided == f"the engine's own eager mode {said}"


def test_an_eager_leg_is_called_so() -> None:
    task: Any = object.__new__(LegTask)
    vars(task).update(runner="decode", preset="gpt_oss", kind="own eager mode", seed=0)
    assert task.label == "decode gpt_oss, its own eager mode"


class NoKV:
    """Stands for KV that nobody reads or writes."""

    strayed: str | None = None

    def read_kv(self) -> None:
        """Do nothing."""

    def write_kv(self) -> None:
        """Do nothing."""


class AnyEngine(OthersEngine):
    """An engine without static buffers, whose drafts run eagerly beside what is on trial."""

    modes_without_graphs = frozenset({Mode.DRAFT})


@pytest.mark.parametrize("mode", [Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND])
def test_batches_of_a_runner_run_in_the_own_eager_mode_and_none_is_to_be_replayed(
    mode: Mode,
) -> None:
    replaying = AnyEngine("runner", mode, dict, NoKV(), {})
    assert replaying.runner_name(mode) == "runner"
    assert replaying.eager_modes == set()
    eager = AnyEngine("runner", mode, dict, NoKV(), OWN_EAGER)
    assert eager.runner_name(mode) is None
    assert eager.eager_modes == {mode, Mode.DRAFT}
