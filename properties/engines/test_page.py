"""What the terminal and the page say of a trial beside its verdicts."""

import json
from html import unescape
from typing import Any

import pytest
from paritybit.harness.cli.engines.display import notes, property_table
from paritybit.harness.engines import record as engine_record
from paritybit.harness.engines.explained.record import read
from paritybit.harness.engines.faults import FAULTS
from paritybit.harness.lockstep.tracebacks import without_paths
from paritybit.harness.records.schema import EngineCounterexample
from paritybit.reports.engine_page import render
from rich.console import Console

from properties.support.reports.pages import words_of
from properties.support.reports.records import swa_pad_finding, trial


def leg(**changed: Any) -> dict[str, Any]:
    """Return a leg of the decode runner that violated one property and lacks another."""
    return {
        "runner": "decode",
        "preset": "gpt_oss",
        "page_size": 1,
        "arithmetic": "ours",
        "leg": "decode gpt_oss",
        "undecided": None,
        "schedules": 2,
        "steps": 9,
        "replays": 5,
        "padded": 3,
        "events": {},
        "properties": {"kv_parity": {"asked": 2, "violated": 1, "message": "step 6: slot 7"}},
        "unasked": {"batch_invariance": "the engine chooses the bucket"},
        "seconds": 1.0,
        **changed,
    }


FINDING = {
    "runner": "decode",
    "preset": "gpt_oss",
    "property": "kv_parity",
    "message": "step 6: slot 7",
    "faults": ["swa_pad"],
    "listed": None,
    "cause": "what was left is the cause",
}


def record(*legs: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a trial of some legs."""
    seen = {"observations": 3, "message": "seen"}
    answer = {
        "faults": [{"fault": "swa_pad", "runner": "decode", "verdict": "present", **seen}],
        "legs": list(legs),
        "padding": [],
        "policies": [],
        "findings": [FINDING],
        "undecided": [{"leg": "piecewise mimo", "runner": "piecewise", "reason": "a part moved"}],
        "lacking": [{"runner": "frozen_kv_mtp", "reason": "nothing is called so"}],
        "notes": ["a note"],
        "interrupted": False,
        "stubs": ["transformers"],
        "emulated": ["the graph <b>"],
        "assumed_off": [],
        "modules": [],
        "seconds": 1.0,
    }
    return engine_record.make("sglang 1", "cpu", "paritybit", [("swa_pad", None)], answer)


TEXTS = {
    "cannot import name 'x' from 'y' (/home/someone/.engines/y/a.py)": (
        "cannot import name 'x' from 'y' (a.py)"
    ),
    "no module in ../../home/someone/tree": "no module in tree",
    "see file:///home/someone/log.txt, or /root/log": "see log.txt, or log",
    'File "/usr/lib/python3.11/a.py", line 3': 'File "a.py", line 3',
    "https://github.com/owner/name/pull/3": "https://github.com/owner/name/pull/3",
    "3/4 of reports/out, and/or n/a; ../out": "3/4 of reports/out, and/or n/a; ../out",
}
"""Texts, and what a record holds of them."""


@pytest.mark.parametrize("text", TEXTS)
def test_neither_record_nor_page_names_a_path_of_the_machine(text: str) -> None:
    assert without_paths({"key": [text]}) == {"key": [TEXTS[text]]}
    made = record(leg(undecided=text))
    assert made["answer"]["legs"][0]["undecided"] == TEXTS[text]
    assert "home/someone" not in render(made)


def test_the_page_says_what_was_not_the_engine_s() -> None:
    made = record()
    page = render(made)
    assert all(
        words in page for words in ("transformers", "nothing is called so", "the graph &lt;b")
    )
    assert "<b>" not in page
    assert set(made["faults"]) == set(FAULTS)


def test_the_page_and_the_terminal_show_findings_and_what_is_undecided_in_words() -> None:
    made = record()
    for text in (render(made), "\n".join(notes(made))):
        for words in ("step 6: slot 7", "what was left is the cause", "a part moved", "a note"):
            assert words in text
    head = render(made).split("<section", 2)[1]
    assert "a part moved" in head


def test_the_page_says_that_a_trial_was_cut_short_and_which_leg_is_undecided() -> None:
    """A leg's own row too: that none of its schedules violates anything is no verdict."""
    made = record(leg(undecided="it broke"))
    assert "The run was interrupted." not in render(made)
    made["answer"]["interrupted"] = True
    assert "The run was interrupted." in render(made)
    assert (
        "undecided: it broke"
        in words_of(render(made)).partition("Properties: violating schedules")[2]
    )


def test_the_page_and_the_terminal_say_what_was_not_asked_and_why() -> None:
    made = record(leg())
    page, said = render(made), "\n".join(notes(made))
    for text in (page, said):
        assert "batch_invariance" in text
        assert "the engine chooses the bucket" in text


def test_legs_that_lack_the_same_for_one_reason_are_named_together() -> None:
    other = leg(runner="cpu_graph", preset="mimo")
    (group,) = record(leg(), other)["unasked"]
    assert group["properties"] == ["batch_invariance"]
    assert len(group["legs"]) == 2


def test_the_terminal_says_in_how_many_schedules_a_property_was_violated() -> None:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(property_table(record(leg(), leg(leg="decode gpt_oss, its own kernels"))))
    own, apart = (line.split() for line in capture.get().splitlines() if "kv_parity" in line)
    assert own[:4] == ["decode", "gpt_oss", "kv_parity", "1/2"]
    assert " ".join(apart[:5]) == "decode gpt_oss, its own kernels"


def test_the_page_has_one_verdict_on_a_fault_class_of_a_runner() -> None:
    """Of two legs of one runner: the one that shows it decides."""
    made = record()
    made["answer"]["faults"][:0] = [{**made["answer"]["faults"][0], "verdict": "absent"}]
    rows = words_of(render(made)).partition("Fault classes")[2]
    assert "swa_pad decode present 6 seen" in rows
    assert "absent" not in rows


def test_replays_of_all_legs_are_counted_together() -> None:
    made = record(leg(), leg(runner="piecewise", replays=4, padded=3))
    assert notes(made)[0].startswith("9 replays (6 padded)")
    assert "9 replays, 6 of them padded" in render(made)


def test_the_page_shows_each_counterexample_as_a_run_s_page_does() -> None:
    """Its time line, who left which element of which static input, whose slot that is."""
    found = swa_pad_finding()
    assert found.explanation is not None
    made = EngineCounterexample(trial(), found, '{"format": "a case <file>"}')
    page = words_of(render(record(), [made]))
    assert all(sentence.partition(" ")[2] in page for sentence in found.explanation.proof)
    assert "kv_parity on decode" in page
    assert "paritybit replay reports/out/20251122T091500Z/cases/swa_pad-decode.json" in page
    assert "paritybit replay /dev/stdin <<'EOF'" in unescape(page)
    markup = render(record(), [made])
    assert 'class="timeline"' in markup
    assert "culprit" in markup.split("<main>")[1].split("How to read the drawings")[1]
    assert "a case &lt;file&gt;" in markup


def test_a_counterexample_outlives_its_record() -> None:
    made = EngineCounterexample(trial(), swa_pad_finding(), "{}")
    kept = engine_record.make("sglang 1", "cpu", "paritybit", (), record()["answer"], [made])
    assert read(json.loads(json.dumps(kept))) == (made,)
