"""Issues about findings: one per engine and cause, opened or updated from records."""

from msgspec.structs import replace
from paritybit.harness.records.codec import encoded
from paritybit.reports.issue import by_cause, issue_of, rows_of, seen_in

from paritybit.drive.script import Script
from paritybit.launch.case import WatchCase
from properties.support.records import finding, shown, watched


def test_each_cause_that_is_not_known_has_one_issue_over_all_runs() -> None:
    first = replace(watched([finding("a"), finding("b")]), engine="sglang==1")
    second = replace(watched([finding("a", 5)]), engine="sglang==2")
    other = replace(watched([finding("a")]), engine="vllm==1")
    groups = by_cause(one for record in (first, second, other) for one in seen_in(record, {}))
    issues = [issue_of(key, found) for key, found in groups.items()]
    assert [issue.title for issue in issues] == ["sglang: a", "sglang: b", "vllm: a"]
    assert len({issue.key for issue in issues}) == 3
    assert [row.split(" | ")[0] for row in rows_of(issues[0].body)] == [
        "| sglang==1", "| sglang==2"
    ]  # fmt: skip
    (only,) = seen_in(shown(), {})
    assert only.cause.name == "out_cache_loc_swa"


def test_an_issue_keeps_the_rows_of_earlier_runs_and_replaces_its_own() -> None:
    def text(engine: str, number: int, before: str = "") -> str:
        record = replace(watched([finding("a", number)]), engine=engine)
        ((key, found),) = by_cause(seen_in(record, {})).items()
        return issue_of(key, found, before).body

    before = text("sglang==2", 5, text("sglang==1", 1))
    assert rows_of(text("sglang==1", 7, before)) == [
        "| sglang==1 | 7 × leak |  |", "| sglang==2 | 5 × leak |  |"
    ]  # fmt: skip
    assert text("sglang==2", 5, before.replace("\n", "\r\n")) == before


def test_an_issue_holds_the_lines_of_the_engine_and_a_case_that_is_not_long() -> None:
    case = WatchCase("sglang==1", "leg", Script({}, ()), 1, None, "key", "short", None)
    for held in (case, replace(case, text="x" * 30_000)):
        ((key, found),) = by_cause(seen_in(shown(), {"finding-1.json": held})).items()
        body = issue_of(key, found).body
        assert f"<!-- {key} -->" in body
        assert "   11      line = 11" in body
        assert (encoded(held) in body) == (held is case)
