"""Two records of engines' trials side by side: what is new, worse, mended, or not known now."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.engines import record as engine_record
from paritybit.harness.records import record as records
from paritybit.reports.compared.engines import Comparison, compare_trials
from paritybit.reports.engine_page import render_comparison

from paritybit.__main__ import main
from properties.support.harness.command_line import CANNOT_RUN, FINDING, MALFORMED, OK
from properties.support.reports.engine_trials import Data, engine_trial, judged, leg
from properties.support.reports.engine_trials import engine_finding as finding
from properties.support.reports.records import SAMPLES

Edit = Callable[[Data], Any]


def edited(edit: Edit) -> Data:
    """Return the record, changed."""
    changed = copy.deepcopy(engine_trial())
    edit(changed)
    return changed


def compared(edit: Edit) -> Comparison:
    """Compare the record with itself, changed."""
    return compare_trials(engine_trial(), edited(edit))


def kinds(comparison: Comparison) -> dict[str, str]:
    """Return what became of findings, apart from those that are still there."""
    found = {f"{one.violated}@{one.runner}": one.kind for one in comparison.changes}
    return {name: kind for name, kind in found.items() if kind != "still there"}


def test_a_trial_does_not_differ_from_itself() -> None:
    comparison = compared(lambda data: None)
    assert kinds(comparison) == {}
    assert len(comparison.changes) == 2
    assert (comparison.legs, comparison.asked, comparison.faults) == ((), (), ())
    assert not comparison.alarming


FINDINGS: dict[str, tuple[Edit, dict[str, str], bool]] = {
    "new": (
        lambda data: data["answer"]["findings"].append(finding("kv_parity", runner="cpu_graph")),
        {"kv_parity@cpu_graph": "new"},
        True,
    ),
    "new, but listed": (
        lambda data: data["answer"]["findings"].append(finding("log_hygiene", listed="known")),
        {"log_hygiene@decode": "new"},
        False,
    ),
    "no longer listed": (
        lambda data: data["answer"]["findings"].append(finding("log_hygiene")),
        {"log_hygiene@decode": "new"},
        True,
    ),
    "gone": (
        lambda data: data["answer"]["findings"].pop(0),
        {"kv_parity@decode": "fixed"},
        False,
    ),
    "explained by no class any more": (
        lambda data: data["answer"]["findings"][0].update(faults=[]),
        {"kv_parity@decode": "worse"},
        True,
    ),
    "explained by another class too": (
        lambda data: data["answer"]["findings"][0].update(faults=["swa_pad", "req_pool_pad"]),
        {"kv_parity@decode": "worse"},
        True,
    ),
    "explained by a class now": (
        lambda data: data["answer"]["findings"][1].update(faults=["req_pool_pad"]),
        {},
        False,
    ),
    "seen elsewhere": (
        lambda data: data["answer"]["findings"][1].update(message="step 7: slot 9"),
        {},
        False,
    ),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_what_becomes_of_a_finding_is_told(name: str) -> None:
    edit, expected, alarming = FINDINGS[name]
    comparison = compared(edit)
    assert kinds(comparison) == expected
    assert comparison.alarming is alarming


def test_a_record_of_a_time_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = (tmp_path / name for name in ("before.json", "after.json"))
    engine_record.write(engine_trial(), before)
    engine_record.write(edited(lambda data: data["answer"].update(seconds="long")), after)
    assert main(["compare", str(before), str(after)]) == MALFORMED
    assert "not complete records" in capsys.readouterr().err


def open_leg(data: Data) -> None:
    """Let the decode runner's leg be undecided, and find nothing."""
    data["answer"]["legs"][0]["undecided"] = "a part has moved"
    entry = {"leg": "decode gpt_oss", "runner": "decode", "reason": "a part has moved"}
    data["answer"].update(findings=[], undecided=[entry])


def no_leg(data: Data) -> None:
    """Let the decode runner not be tried at all."""
    data["answer"]["legs"].pop(0)
    data["answer"].update(findings=[])


def no_runner(data: Data) -> None:
    """Let the engine lack the decode runner."""
    no_leg(data)
    data["answer"]["lacking"].append({"runner": "decode", "reason": "it is gone"})


@pytest.mark.parametrize(
    ("edit", "after"),
    [
        (open_leg, "undecided: a part has moved"),
        (no_leg, "not tried"),
        (no_runner, "the engine lacks this runner: it is gone"),
    ],
)
def test_a_leg_that_is_tried_no_longer_leaves_open_what_it_found(edit: Edit, after: str) -> None:
    """Nothing is worse, and nothing is mended: nobody knows."""
    comparison = compared(edit)
    (row,) = comparison.legs
    assert (row.name, row.before, row.after, row.lost) == ("decode gpt_oss", "tried", after, True)
    assert kinds(comparison) == {"kv_parity@decode": "gone", "read_frame@decode": "gone"}
    assert not comparison.alarming
    assert comparison.unsettled
    assert comparison.verdict == "No verdict"
    back = compare_trials(edited(edit), engine_trial())
    assert [row.lost for row in back.legs] == [False]
    assert back.alarming


def test_a_leg_of_a_runner_that_was_lacking_and_cannot_be_tried_now_is_open() -> None:
    entry = {"leg": "piecewise mimo", "runner": "piecewise", "reason": "a part has moved"}
    comparison = compared(lambda data: data["answer"]["undecided"].append(entry))
    (row,) = comparison.legs
    assert row.before == "the engine lacks this runner: nothing is called so"
    assert row.lost
    assert (comparison.alarming, comparison.unsettled) == (False, True)


def test_a_property_that_is_not_asked_any_more_does_not_make_a_finding_mended() -> None:
    def unasked(data: Data) -> None:
        data["answer"]["legs"][0]["unasked"]["kv_parity"] = "its KV is not seen"
        data["answer"]["findings"].pop(0)

    comparison = compared(unasked)
    (row,) = comparison.asked
    assert (row.name, row.before) == ("kv_parity on decode gpt_oss", "checked")
    assert (row.after, row.lost) == ("not checked: its KV is not seen", True)
    assert kinds(comparison) == {"kv_parity@decode": "gone"}
    assert (comparison.alarming, comparison.unsettled) == (False, True)
    back = compare_trials(edited(unasked), engine_trial())
    assert [row.lost for row in back.asked] == [False]


def test_a_finding_is_not_mended_while_a_leg_that_could_have_made_it_is_not_tried_again() -> None:
    """Two legs of one runner and model: the later trial could not play the one that found it."""
    own = leg(leg="decode gpt_oss, its own kernels")
    before = edited(lambda data: data["answer"]["legs"].append(own))
    after = edited(lambda data: data["answer"].update(findings=[]))
    gone = {"kv_parity@decode": "gone", "read_frame@decode": "gone"}
    assert kinds(compare_trials(before, after)) == gone
    after["answer"]["legs"].append({**own, "undecided": "a part has moved"})
    assert kinds(compare_trials(before, after)) == gone
    after["answer"]["legs"][-1] = own
    assert set(kinds(compare_trials(before, after)).values()) == {"fixed"}


@pytest.mark.parametrize("verdicts", [("present", "absent"), ("absent", "present")])
def test_a_fault_class_that_one_leg_of_a_runner_shows_is_worse(verdicts: tuple[str, str]) -> None:
    """Whatever the other leg of that runner, tried before it or after, says of it."""

    def shown_by_one(data: Data) -> None:
        data["answer"]["faults"] = [judged(verdict) for verdict in verdicts]

    (row,) = compared(shown_by_one).faults
    assert (row.before, row.after, row.worse) == ("absent", "present", True)


def test_what_is_judged_though_no_property_was_asked_for_it_can_be_mended() -> None:
    """As what the padding of an engine's inputs says, which a ledger tells."""
    before = edited(lambda data: data["answer"]["findings"].append(finding("batch_invariance")))
    assert kinds(compare_trials(before, engine_trial())) == {"batch_invariance@decode": "fixed"}


@pytest.mark.parametrize(
    ("before", "after", "worse", "lost"),
    [
        ("absent", "present", True, False),
        ("undecided", "present", True, False),
        ("absent", "undecided", False, True),
        ("present", "undecided", False, True),
        ("present", "absent", False, False),
        ("undecided", "absent", False, False),
    ],
)
def test_a_fault_class_that_is_present_now_is_worse_and_one_that_is_open_now_is_lost(
    before: str, after: str, worse: bool, lost: bool
) -> None:
    def verdict_of(verdict: str) -> Data:
        return edited(lambda data: data["answer"]["faults"][0].update(verdict=verdict))

    comparison = compare_trials(verdict_of(before), verdict_of(after))
    assert [(row.worse, row.lost) for row in comparison.faults] == [(worse, lost)]
    assert (comparison.alarming, comparison.unsettled) == (worse, lost)


def test_a_fault_class_that_is_not_asked_about_any_more_is_lost() -> None:
    comparison = compared(lambda data: data["answer"].update(faults=[]))
    assert [(row.after, row.lost) for row in comparison.faults] == [("not tried", True)]


def test_a_finding_of_one_more_leg_is_worse_though_another_had_it_before() -> None:
    """As of the leg with the engine's own kernels, which has the same runner and model."""

    def more(data: Data) -> None:
        data["answer"]["findings"].append(finding("read_frame"))

    assert kinds(compared(more)) == {"read_frame@decode": "worse"}
    assert kinds(compare_trials(edited(more), engine_trial())) == {}


def test_findings_are_ranked_by_gravity_and_what_is_listed_comes_after_what_counts() -> None:
    def more(data: Data) -> None:
        new = [
            finding("log_hygiene", runner="cpu_graph"),
            finding("logits_parity", runner="cpu_graph", listed="known"),
            finding("kv_parity", runner="cpu_graph"),
        ]
        data["answer"]["findings"] = [*new, data["answer"]["findings"][1]]

    changes = compared(more).changes
    assert [(one.kind, one.violated) for one in changes] == [
        ("new", "kv_parity"),
        ("new", "log_hygiene"),
        ("new", "logits_parity"),
        ("still there", "read_frame"),
        ("fixed", "kv_parity"),
    ]


def test_across_devices_what_is_seen_differs_and_is_no_finding() -> None:
    def on_a_gpu(data: Data) -> None:
        data["environment"].update(device="cuda", device_name="NVIDIA H200", commit="b" * 40)
        for one in data["answer"]["findings"]:
            one["message"] = "step 7: other bits"

    comparison = compared(on_a_gpu)
    assert kinds(comparison) == {}
    assert comparison.verdict == "No worse"
    assert comparison.names[1] == f"sglang 1, tested by {'b' * 12}, on NVIDIA H200"


def test_a_trial_that_was_cut_short_says_so() -> None:
    def cut(data: Data) -> None:
        data["answer"].update(interrupted=True)
        no_leg(data)

    comparison = compared(cut)
    assert comparison.message.endswith("the later run was interrupted")
    assert comparison.verdict == "No verdict"


def written(folder: Path, name: str, data: Data) -> str:
    """Write a record of a trial; return its path."""
    path = folder / name
    engine_record.write(data, path)
    return str(path)


def test_records_of_engines_are_compared_from_their_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "compare.html"
    before = written(tmp_path, "a.json", engine_trial())
    after = written(tmp_path, "b.json", edited(FINDINGS["new"][0]))
    assert main(["compare", before, before, "--page", str(page)]) == OK
    assert main(["compare", before, after, "--page", str(page)]) == FINDING
    said = capsys.readouterr().out
    told = "  kv_parity on cpu_graph, gpt_oss\n    before: nothing\n    after:  step 6: <slot 7>\n"
    assert f"run; in the earlier run it was right, undecided or not tested):\n{told}" in said
    assert "Worse: findings: 1 new, 2 still there\n" in said
    assert main(["compare", after, before, "--page", str(page)]) == OK
    lost = written(tmp_path, "c.json", edited(open_leg))
    assert main(["compare", before, lost, "--page", str(page)]) == CANNOT_RUN
    assert main(["compare", after, before, "--page", str(page)]) == OK
    html = page.read_text()
    assert "&lt;slot 7&gt;" in html
    assert "No worse" in html


def test_the_page_says_what_is_worse() -> None:
    before, after = engine_trial(), edited(open_leg)
    html = render_comparison(before, after, compare_trials(before, after))
    assert "undecided: a part has moved</td><td>no verdict now" in html
    assert '<h1 id="verdict-word">No verdict</h1>' in html
    after = edited(lambda data: data["answer"]["faults"][0].update(verdict="present"))
    html = render_comparison(before, after, compare_trials(before, after))
    assert "<td>present</td><td>worse" in html
    assert '<h1 id="verdict-word">Worse</h1>' in html


def test_the_record_of_an_engine_and_of_a_run_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = written(tmp_path, "engine.json", engine_trial())
    run = tmp_path / "run.json"
    records.write(next(iter(SAMPLES.values())), run)
    for pair in ([engine, str(run)], [str(run), engine]):
        assert main(["compare", *pair]) == MALFORMED
        error = capsys.readouterr().err
        assert "only one of them is from an engine" in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data.pop("answer"),
        lambda data: data["answer"].pop("legs"),
        lambda data: data["answer"].update(findings=[3]),
        lambda data: data["answer"]["legs"][0].pop("unasked"),
        lambda data: data.update(answer=None),
        lambda data: data.update(version=99),
    ],
)
def test_a_record_that_is_not_whole_is_refused_in_one_sentence(
    edit: Edit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "engine.json", engine_trial())
    data = json.loads(Path(path).read_text())
    edit(data)
    Path(path).write_text(json.dumps(data))
    assert main(["compare", path, path, "--page", str(tmp_path / "c.html")]) == MALFORMED
    error = capsys.readouterr().err
    assert "engine.json" in error
    assert error.count("\n") == 1
