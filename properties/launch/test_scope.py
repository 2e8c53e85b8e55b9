"""What a run says that it did not try, and which of its verdicts come first."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import combinations

import pytest

from paritybit.drive.operating.actions import WHOLE
from paritybit.drive.script import Part, Planned, Wave
from paritybit.drive.sglang.settings import SglangServed
from paritybit.launch.record import WatchOptions, make
from paritybit.launch.scope import STATES, not_tried
from paritybit.launch.tally import Tally
from paritybit.launch.verdict import (
    NEEDED,
    NO_ENGINE,
    NOT_READY,
    NOT_SERVED,
    ConfigOutcome,
    open_questions,
    scope_of,
)

REACHED = dict.fromkeys(STATES, 1)


def test_what_was_switched_off_is_named() -> None:
    counts = {**REACHED, "skipped_forwards": 1200, "unresolved_reads": 3}
    found = [one.what for one in not_tried(counts, ["leak"], {"overlap": "no time"})]
    assert found == [
        "configuration overlap",
        "check: leak",
        "1,200 forward passes",
        "3 owners of reads",
    ]


def test_a_check_that_compared_nothing_is_named() -> None:
    configs = [
        config("1", {**ENOUGH, "tried: leak": 0, "tried: company (gemma4)": 0}),
        config("64", {**ENOUGH, "tried: leak": 0, "tried: company (gemma4)": 3}),
    ]
    found = [one for one in make(WatchOptions("watch"), configs).not_tried if "check" in one.what]
    assert [(one.what, one.why) for one in found] == [("check: leak", "it compared nothing")]


def test_a_configuration_that_ended_before_its_floor_is_named_and_leaves_a_verdict() -> None:
    short = config("64", {**ENOUGH, "replays": 0, WHOLE: 0})
    record = make(WatchOptions("watch"), [config("1", {**ENOUGH, WHOLE: 1}), short])
    assert record.verdict == "no finding"
    assert any(one.what == "configuration 64" for one in record.not_tried)


def test_pairs_of_settings_that_were_served_are_counted() -> None:
    rows = [("a", "b", "c"), ("a", "b2", "c"), ("a2", "b2", "c2"), ("a", "b", "c2")]
    pairs = frozenset(frozenset(pair) for row in rows for pair in combinations(row, 2))
    configs = [replace(config(f"row {n}", ENOUGH), values=row) for n, row in enumerate(rows)]
    configs[2] = replace(configs[2], tally=config("row 2", {}).tally)  # It served nothing.
    made = make(WatchOptions("watch"), configs[:3], pairs=pairs)
    assert "5 of 10 pairs of settings" in made.message
    assert "5 of 10 pairs of settings" in [one.what for one in made.not_tried]


def test_trials_that_could_not_have_failed_are_named_with_their_reasons() -> None:
    reasons = {"nothing shows": 3, "it waits: for ranks": 1200}
    untried = {f"not tried: wrong read: {reason}": n for reason, n in reasons.items()}
    found = [(one.what, one.why) for one in not_tried({**REACHED, **untried})]
    assert found == [
        ("3 comparisons of wrong read", "nothing shows"),
        ("1,200 comparisons of wrong read", "it waits: for ranks"),
    ]
    (one,) = not_tried({**REACHED, "tried: wrong read": 0, **untried})
    assert (one.what, one.why) == ("check: wrong read", "nothing shows; it waits: for ranks")


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
        ({"state_reads": 0}, "no recurrent state was read"),
        ({}, None),
    ],
)
def test_a_run_without_what_its_engine_counts_has_no_verdict(
    counts: dict[str, int], why: str | None
) -> None:
    tally = Tally()
    enough = {"forwards": 1, "reads": 1, "replays": 1, **counts}
    tally.take("1", {"kind": "start"})
    tally.take("1", {"kind": "counts", "counts": enough})
    one = ConfigOutcome("n-gram", (), tally, 0, 1.0, log="n-gram.log")
    assert list(open_questions([one])) == ([] if why is None else [why])
    both = list(open_questions([one, config("other", dict.fromkeys(NEEDED, 1))]))
    assert both == ([] if why is None else [f"{why} in n-gram"])
    named = [one for one in ("draft", "state read") if one in scope_of(enough)]
    assert named == ["state read" if "state_reads" in counts else "draft"] * bool(counts)


ENOUGH = dict.fromkeys(NEEDED, 1)


def config(
    name: str, counts: Mapping[str, int], *, replays: bool = True, stopped: bool = False
) -> ConfigOutcome:
    """Return the outcome of a config that ended, with these counts."""
    tally = Tally()
    tally.take("1", {"kind": "start", "device": "cpu"})
    tally.take("1", {"kind": "scope", "settings": {"page_size": name}})
    tally.take("1", {"kind": "counts", "counts": dict(counts)})
    return ConfigOutcome(
        name, (), tally, 0, 1.0, replays=replays, stopped=stopped, log=f"{name}.log"
    )


@pytest.mark.parametrize("name", NEEDED)
def test_a_configuration_that_tested_too_little_leaves_the_run_undecided(name: str) -> None:
    configs = [config("1", ENOUGH), config("64", {**ENOUGH, name: 0})]
    record = make(WatchOptions("watch"), configs)
    assert (record.verdict, record.undecided) == ("undecided", (f"{NEEDED[name]} in 64",))
    assert any(
        one.what == "configuration 64" and one.why == NEEDED[name] for one in record.not_tried
    )


def test_a_run_without_an_engine_says_why() -> None:
    late = ConfigOutcome("late", (), Tally(), 0, 1.0, values=("page size 1",))
    given: list[list[ConfigOutcome]] = [[late], [late, replace(late, values=())], []]
    assert [next(open_questions(one)) for one in given] == [NOT_READY, NO_ENGINE, NOT_SERVED]


def test_a_configuration_may_do_without_graphs_but_not_all() -> None:
    eager = config("64", {**ENOUGH, "replays": 0}, replays=False)
    assert make(WatchOptions("watch"), [config("1", ENOUGH), eager]).verdict == "no finding"
    assert list(open_questions([eager])) == [NEEDED["replays"]]


def test_a_configuration_that_was_stopped_is_not_asked_for_more() -> None:
    configs = [config("1", ENOUGH), config("64", {}, stopped=True)]
    assert list(open_questions(configs)) == []


def test_the_script_of_a_finding_is_the_one_that_was_served_then() -> None:
    tally, settings = Tally(), SglangServed().scope()
    wave = asdict(Wave((Planned("a", (Part("a", 2),), 3),)))
    for alone in (True, False):
        tally.take("1", {"kind": "script", "settings": {**settings, "alone": alone}})
        tally.take("1", {"kind": "wave", "wave": wave})
        tally.take("1", {"kind": "finding", "key": f"alone {alone}", "check": "company"})
        tally.take("1", {"kind": "wave", "wave": wave})
        tally.take("1", {"kind": "leave", "poll": 7})
        tally.take("1", {"kind": "finding", "key": f"at the end {alone}", "check": "leak"})
    for alone in (True, False):
        script = tally.script(f"alone {alone}")
        assert script is not None
        assert script.settings["alone"] == alone
        assert [one.left for one in script.waves] == [None]
        script = tally.script(f"at the end {alone}")
        assert script is not None and [one.left for one in script.waves] == [None, 7]


@pytest.mark.parametrize(
    ("check", "values", "code", "open_"),
    [
        ("engine error", ("overlap",), 1, []),
        ("leak", ("overlap",), 1, ["overlap failed by itself with exit code 1 (see overlap.log)"]),
        (
            "engine error",
            ("overlap",),
            3,
            ["overlap failed by itself with exit code 3 (see overlap.log)"],
        ),
        ("engine error", (), 1, ["overlap failed by itself with exit code 1 (see overlap.log)"]),
    ],
)
def test_a_finding_says_why_the_engine_of_a_configuration_ended(
    check: str, values: tuple[str, ...], code: int, open_: list[str]
) -> None:
    ended = replace(config("overlap", {**ENOUGH, WHOLE: 0}), code=code, values=values)
    ended.tally.take("1", {"kind": "finding", "check": check, "text": "it stalls", "key": check})
    configs = [ended, config("1", ENOUGH)]
    assert list(open_questions(configs)) == open_
    reason = next(one.why for one in make(WatchOptions("watch"), configs).not_tried if one.configs)
    assert reason.startswith("the time was over" if open_ else "an error of the engine ended it")
