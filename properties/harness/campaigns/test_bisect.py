"""Several bugs at once, and which of them explain a failing schedule."""

import re
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from paritybit.harness.campaigns.bisect import BugSet, ddmin, likeliest_runner, smallest
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case, load_case, write_case
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.bugs.switching import broken_subject, common_scheme
from paritybit.subjects.contracts import Policy
from paritybit.subjects.toggles import LocationScheme

from paritybit.__main__ import main
from properties.support.harness.command_line import FINDING, MALFORMED, OK
from properties.support.places import CORPUS

PAIR = "loc_memo_warning.entry+before_window"
SITES = ("loc_memo_warning.entry", "loc_memo_warning.before_window")
"""Two sites of the memo, each masked by the other: only without both does it warn."""

TOGGLES = ("a", "b", "c", "d", "e")
SUBSETS = [
    frozenset(subset) for size in range(len(TOGGLES) + 1) for subset in combinations(TOGGLES, size)
]
ALL = frozenset(TOGGLES)
ANY_SETS = st.sets(st.sampled_from(SUBSETS)).map(lambda sets: sets | {ALL})
"""Which sets fail: any, so that a toggle may also hide what another does."""


@given(ANY_SETS)
@example({ALL, frozenset("ab"), frozenset("c")})  # Delta debugging alone ends with two of them.
def test_the_smallest_set_fails_and_no_smaller_one_does(failing: set[frozenset[str]]) -> None:
    found = smallest(TOGGLES, lambda subset: frozenset(subset) in failing)
    assert frozenset(found) in failing
    assert len(found) == min(map(len, failing))


def test_delta_debugging_asks_for_few_of_many_sets() -> None:
    """Of sixteen toggles, of which one pair explains."""
    bug_set = tuple("abcdefghijklmnop")
    asked: list[BugSet] = []

    def fails(subset: BugSet) -> bool:
        asked.append(subset)
        return {"c", "n"} <= set(subset)

    assert ddmin(bug_set, fails) == ("c", "n")
    assert len(set(asked)) < 60


def test_bugs_of_one_row_are_both_there() -> None:
    """One changes its policy, the other its dtype; only the second is all runners'."""
    pair = [BUGS["swa_pad"], BUGS["swa_int64"]]
    subject = broken_subject(pair, "decode", LocationScheme.PRESET)
    (row,) = (row for row in subject.contract if row.name == "out_cache_loc_swa")
    assert (row.policy, row.dtype) == (Policy.KEEP, torch.int64)
    assert subject.shared == {"out_cache_loc_swa": {"dtype": torch.int64}}
    assert subject == broken_subject(reversed(pair), "decode", LocationScheme.PRESET)


def test_sites_that_bugs_leave_out_add_up() -> None:
    both = broken_subject([BUGS[name] for name in SITES], "decode", LocationScheme.MEMO)
    assert both == broken_subject([BUGS[PAIR]], "decode", LocationScheme.MEMO)


def test_bugs_are_switched_on_with_a_scheme_that_all_lived_in() -> None:
    assert common_scheme([BUGS["req_pool_pad"]]) is LocationScheme.MEMO
    assert common_scheme([BUGS["req_pool_pad"], BUGS["swa_pad"]]) is LocationScheme.PRESET
    trial = TrialConfig().with_bug("req_pool_pad", "swa_pad")
    assert (trial.bugs, trial.scheme) == (("swa_pad", "req_pool_pad"), LocationScheme.PRESET)
    with pytest.raises(ValueError, match="with different location schemes cannot be combined"):
        TrialConfig().with_bug("swa_pad", "loc_memo_capture")


def test_a_trial_of_several_bugs_has_no_one_bug() -> None:
    assert TrialConfig().bug is None
    assert TrialConfig().with_bug("swa_pad").bug == "swa_pad"
    with pytest.raises(ValueError, match="several bugs: swa_pad, swa_int64"):
        _ = TrialConfig().with_bug("swa_int64", "swa_pad").bug


def test_a_runner_is_chosen_that_most_of_the_bugs_affect() -> None:
    assert likeliest_runner(["swa_pad"]) == "decode"
    assert likeliest_runner(["loc_memo_warning.after_window"]) == "cpu_graph"
    assert likeliest_runner(["swa_pad", "spec_page_table_untranslated"]) == "target_verify"


SHOWS = re.compile(r"^(violated|passed) +([^:]+): (.*)$", re.M)


def test_a_pair_that_masks_each_other_is_found_among_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each set is played once; the case of the smallest replays."""
    bugs = ",".join(["req_pool_pad", *SITES, "loc_memo_capture"])
    case, out = CORPUS / f"{PAIR}@cpu_graph.json", tmp_path / "smallest.json"
    assert main(["bisect", bugs, "--case", str(case), "--out", str(out)]) == FINDING
    message = capsys.readouterr().out
    shown = SHOWS.findall(message)
    assert f"smallest set: {' + '.join(SITES)}\n" in message
    assert len({bug_set for _, bug_set, _ in shown}) == len(shown)
    verdicts = {bug_set: (verdict, seen) for verdict, bug_set, seen in shown}
    assert verdicts["no bug"] == ("passed", "nothing")
    assert verdicts[" + ".join(SITES)] == ("violated", "log_hygiene")
    assert all(verdicts[site] == ("passed", "nothing") for site in SITES)
    assert load_case(out).trial.bugs == SITES
    assert main(["replay", str(out)]) == FINDING


def test_without_a_case_one_is_hunted_of_the_property_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bugs = "loc_memo_warning,req_pool_pad"
    words = ["bisect", bugs, "--runner", "cpu_graph", "--device", "cpu"]
    assert main([*words, "--property", "hermetic_replay"]) == FINDING
    message = capsys.readouterr().out
    assert message.startswith("hermetic_replay on cpu_graph, ")
    assert "smallest set: req_pool_pad\n" in message


def test_what_is_clean_with_all_of_them_on_needs_no_explanation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hunted, or of a case: one that seeks what does not show, one that seeks nothing."""
    clean = "no property is violated with all bugs switched on, so there is nothing to explain\n"
    hunted = ["bisect", "loc_memo_capture", "--runner", "cpu_graph", "--device", "cpu"]
    assert main([*hunted, "--examples", "2"]) == OK
    assert capsys.readouterr().out == clean
    case = CORPUS / f"{PAIR}@cpu_graph.json"
    assert main(["bisect", "loc_memo_capture", "--case", str(case)]) == OK
    sought = (
        "log_hygiene is not violated with all bugs switched on, so there is nothing to explain\n"
    )
    assert capsys.readouterr().out.endswith(sought)
    plain = tmp_path / "case.json"
    write_case(Case(TrialConfig("cpu_graph"), load_case(case).schedule, None, 0, ()), plain)
    assert main(["bisect", "loc_memo_capture", "--case", str(plain)]) == OK
    assert capsys.readouterr().out == clean


def test_what_fails_without_any_bug_is_explained_by_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault of the build itself: the sites are missing whatever is switched on."""
    broken = broken_subject([BUGS[PAIR]], "cpu_graph", LocationScheme.MEMO)
    monkeypatch.setattr("paritybit.subjects.bugs.switching.clean_subject", lambda *_: broken)
    case = CORPUS / f"{PAIR}@cpu_graph.json"
    assert main(["bisect", "req_pool_pad", "--case", str(case)]) == FINDING
    assert "smallest set: no bug\n" in capsys.readouterr().out


REFUSED = {
    "an unknown bug": (["nonsense"], "unknown bug 'nonsense'; the nearest names are "),
    "an unknown property": (
        ["swa_pad", "--property", "x"],
        "unknown property 'x'; the nearest names are ",
    ),
    "an unknown runner": (["swa_pad", "--runner", "x"], "unknown runner 'x'; valid: "),
    "bugs of different schemes": (
        ["swa_pad,loc_memo_capture"],
        "bugs with different location schemes",
    ),
    "a bug that the runner cannot have": (["swa_pad", "--runner", "eagle_draft"], "does not exist"),
    "a bug of another scheme than the case": (
        ["swa_pad", "--case", str(CORPUS / "req_pool_pad@decode.json")],
        "bug swa_pad does not exist in location scheme memo of decode",
    ),
    "no bug": ([], "at least one bug"),
    "bugs that are nothing": ([","], "contains no name"),
    "a runner beside the case's": (
        ["swa_pad", "--runner", "decode", "--case", str(CORPUS / "swa_pad@decode.json")],
        "a case already names its runner",
    ),
    "a case that is not there": (["swa_pad", "--case", "none.json"], "none.json cannot be read"),
    "a case that cannot be written": (["swa_pad", "--out", str(CORPUS)], "cannot be written"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_bisected_is_refused_in_one_sentence(
    message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, sentence = REFUSED[message]
    assert main(["bisect", *words]) == MALFORMED
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"paritybit: [^\n]+\n", captured.err)
    assert sentence in captured.err
