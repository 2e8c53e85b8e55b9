"""What a run says that it did not try, and which of its verdicts come first."""

from collections.abc import Mapping

import pytest

from paritybit.launch.record import Asked, make
from paritybit.launch.scope import AXES, STATES, Axis, not_tried
from paritybit.launch.tally import Tally
from paritybit.launch.verdict import NEEDED, Outcome, ending, open_questions, scope_of

ALL = {axis.name: list(axis.values) for axis in AXES}
REACHED = dict.fromkeys(STATES, 1)


def test_nothing_is_missing_where_all_was_tried() -> None:
    assert list(not_tried(ALL, REACHED)) == []


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.name)
def test_a_value_that_was_not_in_use_is_named_with_those_that_were(axis: Axis) -> None:
    name, values = axis.name, list(axis.values)
    (one,) = not_tried({**ALL, name: [*values[1:], "Other"]}, REACHED)
    assert axis.values[values[0]] in one.what
    assert "other" in one.why
    (unknown,) = not_tried({key: value for key, value in ALL.items() if key != name}, REACHED)
    assert unknown.why == "the engine does not state this setting"


@pytest.mark.parametrize("name", STATES)
def test_a_state_that_was_not_reached_is_named(name: str) -> None:
    (one,) = not_tried(ALL, {**REACHED, name: 0})
    assert (one.what, one.why) == STATES[name]


def test_what_was_switched_off_is_named() -> None:
    counts = {**REACHED, "skipped_forwards": 1200, "unresolved_reads": 3}
    found = [one.what for one in not_tried(ALL, counts, ["leak"], {"overlap": "no time"})]
    assert found == ["row overlap", "check: leak", "1,200 forward passes", "3 owners of reads"]


def test_a_kernel_is_not_tried_if_no_process_ran_it() -> None:
    tallies = Tally(), Tally()
    ran = {"engine.both": True, "engine.one": False, "engine.none": False}
    tallies[0].take("process-1", {"kind": "kernels", "ran": ran})
    tallies[0].take("process-2", {"kind": "kernels", "ran": {**ran, "engine.odd": 1}})
    tallies[1].take("process-3", {"kind": "kernels", "ran": {**ran, "engine.one": True}})
    outcomes = [Outcome(f"leg {n}", (), tally, 0, 1.0) for n, tally in enumerate(tallies)]
    found = [one for one in make(Asked("watch"), outcomes, None).not_tried if "kernels" in one.what]
    (idle,) = [one for one in found if "Triton" in one.what]
    assert idle.what == "1 Triton kernels, or functions of kernels"
    assert idle.why.endswith(": engine.none")


@pytest.mark.parametrize(
    ("code", "stopped", "words"),
    [
        (0, False, "ended"),
        (7, False, "failed by itself with exit code 7"),
        (-9, False, "was killed by SIGKILL"),
        (-64, False, "was killed by SIGRTMAX"),
        (-99, False, "was killed by signal 99"),
        (143, True, "was stopped"),
    ],
)
def test_how_a_command_ended(code: int, stopped: bool, words: str) -> None:
    outcome = Outcome("command", (), Tally(), code, 1.0, stopped=stopped)
    assert ending(outcome) == words
    asked = [reason for reason in open_questions([outcome]) if reason.startswith("the command")]
    assert bool(asked) == (code != 0 and not stopped)


def test_a_tally_adds_processes_up_and_survives_lines_of_other_types() -> None:
    tally = Tally()
    for process, number in (("1", 3), ("2", 4)):
        tally.take(process, {"kind": "counts", "counts": {"reads": 1}})
        tally.take(process, {"kind": "counts", "counts": {"reads": number, "x": "y"}})
        tally.take(process, {"kind": "finding", "key": "k", "check": "leak"})
    for kind in ("counts", "finding", "start", "scope", "stand_in", "undecided", "end", "else"):
        tally.take("3", {"kind": kind, "counts": [], "settings": 3, "key": {}, "slots": "x"})
    assert tally.counts() == {"reads": 7}
    assert tally.number("k") == 2


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ({"drafts": 3, "accepted_drafts": 1, "rejected_drafts": 2}, None),
        ({"drafts": 0, "accepted_drafts": 0, "rejected_drafts": 0}, "no draft was verified"),
        ({"drafts": 3, "accepted_drafts": 0, "rejected_drafts": 3}, "no draft was accepted"),
        ({"drafts": 3, "accepted_drafts": 3, "rejected_drafts": 0}, "no draft was rejected"),
        ({}, None),
    ],
)
def test_speculation_without_accepted_and_rejected_drafts_has_no_verdict(
    counts: dict[str, int], why: str | None
) -> None:
    tally = Tally()
    enough = {"forwards": 1, "reads": 1, "replays": 1, **counts}
    tally.take("1", {"kind": "start"})
    tally.take("1", {"kind": "counts", "counts": enough})
    one = Outcome("n-gram", (), tally, 0, 1.0, log="n-gram.log")
    assert list(open_questions([one])) == ([] if why is None else [why])
    both = list(open_questions([one, leg("other", dict.fromkeys(NEEDED, 1))]))
    assert both == ([] if why is None else [f"{why} in n-gram"])
    assert ("draft" in scope_of(enough)) == bool(counts)


def leg(
    name: str, counts: Mapping[str, int], *, replays: bool = True, stopped: bool = False
) -> Outcome:
    """Return the outcome of a leg that ended, with these counts."""
    tally = Tally()
    tally.take("1", {"kind": "start", "device": "cpu"})
    tally.take("1", {"kind": "scope", "settings": {"page_size": name}})
    tally.take("1", {"kind": "counts", "counts": dict(counts)})
    return Outcome(name, (), tally, 0, 1.0, replays=replays, stopped=stopped, log=f"{name}.log")


ENOUGH = dict.fromkeys(NEEDED, 1)


@pytest.mark.parametrize("name", NEEDED)
def test_a_leg_that_tested_too_little_leaves_the_run_undecided(name: str) -> None:
    legs = [leg("1", ENOUGH), leg("64", {**ENOUGH, name: 0})]
    record = make(Asked("watch"), legs, None)
    assert (record.verdict, record.undecided) == ("undecided", (f"{NEEDED[name]} in 64",))
    assert any(one.what == "row 64" and one.why == NEEDED[name] for one in record.not_tried)
    assert any(one.what == "page size: 64" for one in record.not_tried)


def test_a_leg_may_do_without_graphs_but_not_all_legs() -> None:
    eager = leg("64", {**ENOUGH, "replays": 0}, replays=False)
    assert make(Asked("watch"), [leg("1", ENOUGH), eager], None).verdict == "no finding"
    assert list(open_questions([eager])) == [NEEDED["replays"]]


def test_a_leg_that_was_stopped_is_not_asked_for_more() -> None:
    legs = [leg("1", ENOUGH), leg("64", {}, stopped=True)]
    assert list(open_questions(legs)) == []
