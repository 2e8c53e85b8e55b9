"""Reports for the authors of an engine: what they have, and what they may not have."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from paritybit.harness.cli.exit_codes import OK
from paritybit.harness.cli.issue import issues
from paritybit.harness.records.codec import encoded
from paritybit.reports.markdown import text as escaped

from paritybit.__main__ import main
from paritybit.drive.script import Part, Planned, Sampling, Script, Wave
from paritybit.launch.case import WatchCase
from paritybit.launch.schema import Cause, ExcerptLine, WatchRecord, Who
from paritybit.watch.checks import CHECKS
from properties.support.records import CONFIG, finding, shown, watched

SECRET = "sk-live-31337"

STOPS = (101, 102, 103)


def case_of(record: WatchRecord) -> WatchCase:
    """Return a case for the first finding of a record, with two requests that share a prefix."""
    sampled = Sampling(stop_token_ids=STOPS)
    requests = (
        Planned("a", (Part("common", 64), Part("one", 5)), 7),
        Planned("b", (Part("common", 64), Part("two", 6)), 8, sampling=sampled),
    )
    one = record.findings[0]
    script = Script({"model": "gemma4"}, (Wave(requests),))
    return WatchCase("sglang==1", CONFIG.name, script, 1, None, one.key, one.text, 4)


def only(record: WatchRecord, case: WatchCase | None = None) -> str:
    """Return the one report of a record."""
    cases = {} if case is None else {"finding-1.json": ("finding-1.json", case)}
    ((name, text),) = issues(record, cases)
    assert name == "issue-1.md"
    return text


def outside(text: str) -> list[str]:
    """Return the lines of a report that are outside of blocks of code."""
    lines, fence = list[str](), ""
    for line in text.splitlines():
        if fence:
            fence = "" if line == fence else fence
        elif line.startswith("```"):
            fence = line
        else:
            lines.append(line)
    assert not fence
    return lines


def test_a_report_has_the_law_the_line_the_requests_and_the_replay() -> None:
    record = shown()
    text = only(record, case_of(record))
    assert escaped(CHECKS["stray write"].invariant[1:]) in text.split("## What should happen")[1]
    assert "engine/runner.py:11" in text
    assert re.search(r"^>    11 ", text, re.MULTILINE)
    assert "paritybit replay cases/finding-1.json --engine sglang==1" in text
    assert "| 0 | b | 0 | 64 of text common + 6 of text two | 8 |" in text
    assert "stop\\_token\\_ids 3 entries" in text
    assert not [token for token in STOPS if str(token) in text]


def test_a_known_cause_gets_no_report() -> None:
    assert len(shown().findings) == 2
    assert len(list(issues(shown(), {}))) == 1


def test_a_report_of_a_users_command_has_no_token_no_name_and_no_word_of_it() -> None:
    one = replace(
        finding(""),
        check="stale input",
        text=f"input_ids[3] is 31337 and not -4242, request {SECRET} at position 12",
        origin=f"cached by request {SECRET}",
        writer=Who(SECRET, 12, 3),
        reader=Who(SECRET, 12, 3),
        freed=Who(SECRET, None, 3, "engine/pool.py:7"),
        cause=Cause("its value in forward 31337, of request " + SECRET, "input_ids"),
    )
    served = replace(CONFIG, settings={"model_path": (SECRET,), "page_size": ("64",)})
    record = replace(
        watched([one]), engine=None, command=f"paritybit watch -- serve {SECRET}", configs=(served,)
    )
    text = only(record)
    assert not [word for word in (SECRET, "31337", "4242") if word in text]
    assert "input\\_ids" in text
    assert "engine/pool.py:7" in text


FENCE = "`" * 5


@pytest.mark.parametrize(
    "bad", [f"{FENCE}\n# x", "</details><script>", "a | b\n|---|", "![](http://x)"]
)
def test_no_text_of_a_record_leaves_its_place(bad: str) -> None:
    first, *others = shown().findings
    hostile = replace(
        first,
        text=bad,
        origin=bad,
        excerpt=(ExcerptLine(11, bad),),
        cause=Cause(bad, None, "engine/runner.py:11"),
        writer=Who(bad, 1, 1),
    )
    config = replace(CONFIG, settings={"option": (bad,)}, stand_ins={bad: bad})
    record = replace(shown(), findings=(hostile, *others), command=bad, configs=(config,))
    text = only(record)
    plain = only(replace(record, findings=shown().findings, command="", configs=shown().configs))
    heads = [line for line in outside(text) if re.match(r"#+ ", line)]
    assert len(heads) == len([line for line in outside(plain) if re.match(r"#+ ", line)])
    assert not [
        line for line in outside(text) if re.search(r"(?<!\\)[<`]|^\|---\|$|(?<!\\)!\[", line)
    ]


def test_the_command_writes_each_report_and_prints_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "watch.json").write_text(encoded(shown()))
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases/finding-1.json").write_text(encoded(case_of(shown())))
    assert main(["report", str(tmp_path), "--issue"]) == OK
    assert capsys.readouterr().out.split() == [str(tmp_path / "issue-1.md")]
    assert (tmp_path / "issue-1.md").read_text() == only(shown(), case_of(shown()))


def test_a_report_has_the_requests_of_the_case_that_shrink_wrote(tmp_path: Path) -> None:
    (tmp_path / "watch.json").write_text(encoded(shown()))
    (tmp_path / "cases").mkdir()
    case = case_of(shown())
    script = Script(case.script.settings, (Wave(case.script.waves[0].requests[:1]),))
    for name, one in (("finding-1", case), ("finding-1-small", replace(case, script=script))):
        (tmp_path / f"cases/{name}.json").write_text(encoded(one))
    assert main(["report", str(tmp_path), "--issue"]) == OK
    text = (tmp_path / "issue-1.md").read_text()
    assert "1 request in 1 wave" in text
    assert "paritybit replay cases/finding-1-small.json" in text


def test_a_case_outside_of_the_folder_is_not_read(tmp_path: Path) -> None:
    first, *others = shown().findings
    outer = tmp_path / "secret.json"
    outer.write_text(SECRET)
    record = replace(shown(), findings=(replace(first, case=str(outer)), *others))
    run = tmp_path / "run"
    run.mkdir()
    (run / "watch.json").write_text(encoded(record))
    assert main(["report", str(run), "--issue"]) == OK
    assert SECRET not in (run / "issue-1.md").read_text()


def test_a_run_without_a_new_finding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "watch.json").write_text(encoded(watched([])))
    assert main(["report", str(tmp_path), "--issue"]) == 2
