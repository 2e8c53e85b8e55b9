"""Tests of the report: what stands in the record stands on the page, safely, and alone."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jinja2 import UndefinedError

from harness.campaigns import record as records
from harness.campaigns import regress
from harness.campaigns.case import load_case
from harness.campaigns.hunt import HuntResult
from harness.campaigns.task import Finding, Result, Status, Task
from harness.checks.property import Violation
from harness.checks.table import PROPERTIES
from harness.lockstep.timeline import TimelineEntry
from harness.schedules.schedule import Admit, Schedule
from properties.sample_records import (
    BUGS,
    HIDDEN,
    HOSTILE,
    LACKS_SWA,
    PULL,
    SAMPLES,
    Record,
    bug,
    explanation,
    finding,
    green,
    hostile,
    interrupted,
    many,
    played,
    red,
    swa_pad_finding,
    traffic_finding,
    warning_finding,
)
from reports.bit_patterns import compare, float_of
from reports.cards import STATUSES
from reports.page import render, write
from reports.texts import anchors, duration, linked
from reports.timeline import lay_out


class Page(HTMLParser):
    """A page taken apart: ids, attributes with their tags, text outside style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: Counter[str] = Counter()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an empty tag of a drawing."""
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        """Note that a tag ends. Fails the test if another is open."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note a text."""
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        """What a reader sees, white space folded."""
        return " ".join(" ".join(self.words).split())

    def hrefs(self) -> list[str]:
        """Return where links lead."""
        return [value for tag, name, value in self.attributes if (tag, name) == ("a", "href")]


def drawings(text: str) -> list[str]:
    """Return the time lines of a page, their legends apart."""
    return re.findall(r'<svg class="timeline"[^>]* role="img".*?</svg>', text, re.DOTALL)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_tag_is_closed_and_every_id_is_used_once(name: str) -> None:
    page = Page(render(SAMPLES[name]()))
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert not any(re.search(r"\s", each) for each in page.ids)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_link_within_the_page_has_a_target(name: str) -> None:
    page = Page(render(SAMPLES[name]()))
    inner = [href[1:] for href in page.hrefs() if href.startswith("#")]
    labels = [
        each
        for _, key, value in page.attributes
        if key in ("aria-labelledby", "data-copy")
        for each in value.split()
    ]
    assert len(inner) > 20
    assert {*inner, *labels} <= set(page.ids)


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_is_loaded_from_elsewhere(name: str) -> None:
    text = render(SAMPLES[name]())
    page = Page(text)
    loading = {"src", "srcset", "poster", "action", "formaction", "xlink:href", "background"}
    assert not [each for each in page.attributes if each[1] in loading]
    outside = {(tag, key) for tag, key, value in page.attributes if "://" in value}
    assert outside <= {("a", "href")}
    assert ("link", "href", "data:,") in page.attributes
    assert page.tags["link"] == 1
    style = text[text.index("<style>") : text.index("</style>")]
    assert "@import" not in style
    assert set(re.findall(r"url\(([^)]*)\)", style)) == {"#hatch", "#grid"}
    assert "default-src 'none'" in text


@pytest.mark.parametrize(
    ("name", "word"), [("green", "Green"), ("red", "Red"), ("interrupted", "Interrupted")]
)
def test_the_verdict_comes_first_in_words(name: str, word: str) -> None:
    record = SAMPLES[name]()
    text = Page(render(record)).text
    assert text.index(f"{word} {record['message']}") < text.index("Environment")


def test_an_interrupted_run_says_that_it_was_cut_short() -> None:
    message = "The run was cut short. What stands here is what was found until then."
    assert message in Page(render(interrupted())).text
    assert message not in Page(render(green())).text


def test_a_green_page_asks_for_no_attention() -> None:
    assert "Needs attention" not in Page(render(green())).text


def test_a_red_page_lists_what_is_wrong_before_anything_else() -> None:
    text = Page(render(red())).text
    attention = text[text.index("Needs attention") : text.index("Seed 0")]
    for message in (
        "(generated): violates kv_parity",
        "swa_int64@decode (generated): missed",
        "req_pool_pad@decode (generated): wrong property",
        "loc_memo_warning.before_window@decode (generated): harmed after all",
        "loc_memo_warning.entry+before_window@decode (generated): vacuous",
        "no padded replay, so it proves nothing",
        "Never reached: pool full",
    ):
        assert message in attention


@pytest.mark.parametrize("name", SAMPLES)
def test_every_hunt_has_a_row_and_a_card_with_its_status(name: str) -> None:
    record = SAMPLES[name]()
    page = Page(render(record))
    for each in record["bugs"]:
        assert page.text.count(" ".join(f"{each['bug']}@{each['runner']}".split())) >= 2
        assert page.text.count(each["status"]) >= 2
    assert sum(each.startswith("bug-") and each.endswith("-title") for each in page.ids) == len(
        record["bugs"]
    )


def test_the_matrix_tells_expected_from_seen() -> None:
    record = red()
    record["bugs"] = [
        bug("swa_pad", "caught", seen=["kv_parity", "write_frame"]),
        bug("swa_int64", "missed", detected_by="index_contract"),
    ]
    text = render(record)
    assert [each[0] for each in marks_of(text, "swa_pad")] == [
        "none",
        "caught",
        "also",
        *["none"] * 10,
    ]
    assert [each[0] for each in marks_of(text, "swa_int64")] == [
        *["none"] * 6,
        "missed",
        *["none"] * 6,
    ]


def marks_of(text: str, name: str) -> list[tuple[str, str]]:
    """Return the marks of a row of the matrix of bugs and properties."""
    section = text[text.index('<section id="bugs">') :]
    row = section[section.index(f'<th scope="row" class="mono">{name}</th>') :]
    return _marks(row[: row.index("</tr>")])


def test_the_matrix_counts_the_hunts_that_saw_a_bug() -> None:
    record = red()
    record["bugs"] = [
        bug("swa_pad", "caught", seen=["kv_parity", "write_frame"]),
        bug("swa_pad", "caught", "target_verify"),
        bug("swa_pad", "unaffected", "piecewise", detected_by=None, unaffected="nobody reads them"),
    ]
    text = render(record)
    assert marks_of(text, "swa_pad")[1:3] == [("caught", "●2"), ("also", "○1")]
    assert marks_of(text, "swa_pad@decode")[1:3] == [("caught", "●1"), ("also", "○1")]
    assert marks_of(text, "swa_pad@target_verify")[1:3] == [("caught", "●1"), ("none", "·")]
    assert {kind for kind, _ in marks_of(text, "swa_pad@piecewise")} == {"none"}


def test_a_bug_that_one_of_its_hunts_missed_is_missed_in_the_matrix() -> None:
    record = red()
    record["bugs"] = [bug("swa_pad", "caught"), bug("swa_pad", "missed", "target_verify")]
    assert marks_of(render(record), "swa_pad")[1] == ("missed", "✕1")


class Cell(NamedTuple):
    """One bug on one runner, as the page shows it; `href` is "" where nothing is linked."""

    mark: tuple[str, str]
    message: str
    href: str


def section_of_runners(record: Record) -> str:
    """Return the markup of the section "Bugs and runners"."""
    found = re.search(r'<section id="runners">.*?</section>', render(record), re.DOTALL)
    assert found is not None
    return found[0]


def columns_of_runners(record: Record) -> list[str]:
    """Return the runners that the section has a column for."""
    heads = re.findall(r'<th scope="col" class="property">(.*?)</th>', section_of_runners(record))
    return [unescape(each) for each in heads]


def rows_of_runners(record: Record) -> dict[str, list[Cell]]:
    """Return the cells of each bug, by the bug's name."""
    section = section_of_runners(record)
    rows = re.findall(r'<tr><th scope="row" class="mono">(.*?)</th>(.*?)</tr>', section, re.DOTALL)
    assert len({name for name, _ in rows}) == len(rows)
    return {unescape(name): [_cell(each) for each in _data(row)] for name, row in rows}


def _data(row: str) -> list[str]:
    return re.findall(r'<td class="cell">(.*?)</td>', row, re.DOTALL)


def _cell(markup: str) -> Cell:
    (message,) = re.findall(r'<span class="unseen">(.*?)</span>', markup, re.DOTALL)
    links = re.findall(r'<a href="(.*?)" title="(.*?)">', markup, re.DOTALL)
    assert all(title == message for _, title in links)
    return Cell(_marks(markup)[0], unescape(message), links[0][0] if links else "")


def _marks(markup: str) -> list[tuple[str, str]]:
    return re.findall(r'<span class="mark mark-(\w+)" aria-hidden="true">([^<]+)</span>', markup)


def cell_of(record: Record, name: str, runner: str) -> Cell:
    """Return the cell of a bug and a runner."""
    return rows_of_runners(record)[name][columns_of_runners(record).index(runner)]


def card_titles(record: Record) -> dict[str, str]:
    """Return the title of each card, by the link that leads to it."""
    found = r'<details class="card" id="(.*?)".*?<h3 .*?>(.*?)</h3>'
    cards = re.findall(found, render(record), re.DOTALL)
    return {f"#{anchor}": unescape(re.sub("<.*?>", "", title)) for anchor, title in cards}


@pytest.mark.parametrize("name", SAMPLES)
def test_each_bug_that_was_tried_has_one_cell_for_each_runner(name: str) -> None:
    record = SAMPLES[name]()
    runners = columns_of_runners(record)
    assert runners == list(dict.fromkeys(pair["runner"] for pair in record["pairs"]))
    rows = rows_of_runners(record)
    assert list(rows) == list(dict.fromkeys(each["bug"] for each in record["bugs"]))
    assert all(len(cells) == len(runners) for cells in rows.values())


@pytest.mark.parametrize("name", SAMPLES)
def test_each_pair_that_was_tried_leads_to_a_card_of_its_own(name: str) -> None:
    record = SAMPLES[name]()
    titles = card_titles(record)
    under_test = {(each["bug"], each["runner"]) for each in record["bugs"]}
    for bug_name, cells in rows_of_runners(record).items():
        for runner, cell in zip(columns_of_runners(record), cells, strict=True):
            if (bug_name, runner) in under_test:
                assert titles[cell.href] == f"{bug_name}@{runner}"
            else:
                assert cell.href == ""


def test_a_cell_says_that_the_bug_was_caught() -> None:
    cell = cell_of(green(), "swa_pad", "decode")
    message = "caught after 6/2 schedules (generated/traffic)"
    assert cell == (("caught", "6/2"), message, "#bug-swa_pad-decode-generated")


def test_a_cell_says_why_a_bug_that_was_tried_cannot_harm_the_runner() -> None:
    cell = cell_of(green(), "loc_memo_warning.entry", "decode")
    assert cell.mark[1] == "○"
    assert cell.message == f"tried, cannot harm it: {HIDDEN}"
    assert cell.href == "#bug-loc_memo_warning.entry-decode-generated"


def test_a_cell_says_what_the_runner_lacks() -> None:
    cell = cell_of(green(), "swa_pad", "cpu_graph")
    assert cell == (("none", "–"), f"cannot harm it: {LACKS_SWA}", "")


@pytest.mark.parametrize(
    ("name", "runner"), [("swa_pad", "target_verify"), ("loc_memo_capture", "cpu_graph")]
)
def test_a_cell_says_that_nobody_asked_for_it(name: str, runner: str) -> None:
    """Of a harmful bug as of one that cannot harm the runner: the runner lacks nothing."""
    cell = cell_of(green(), name, runner)
    assert cell.mark == ("none", "·")
    assert cell.message.startswith("not asked for")
    assert cell.href == ""


@pytest.mark.parametrize("status", [each for each, (sound, _) in STATUSES.items() if not sound])
def test_a_cell_is_red_if_any_of_its_hunts_did_not_end_well(status: str) -> None:
    record = green()
    record["bugs"][1] |= {"status": status}
    message = f"{status}: {STATUSES[status][1]}"
    red_cell = (("missed", "✕"), message, "#bug-swa_pad-decode-traffic")
    assert cell_of(record, "swa_pad", "decode") == red_cell
    assert cell_of(record, "loc_memo_capture", "decode").mark == ("caught", "5")


def test_a_cell_is_red_for_a_bug_that_harmed_after_all() -> None:
    cell = cell_of(red(), "loc_memo_warning.before_window", "decode")
    assert cell.mark == ("missed", "✕")
    assert cell.message.startswith("harmed after all: ")


def test_hunts_of_one_bug_on_two_runners_have_cells_of_their_own() -> None:
    record = green()
    unaffected = BUGS["swa_pad"]["piecewise"]
    record["bugs"] += [
        bug("swa_pad", "missed", "target_verify"),
        bug("swa_pad", "unaffected", "piecewise", detected_by=None, unaffected=unaffected),
    ]
    cells = rows_of_runners(record)["swa_pad"]
    assert [cell.mark[1] for cell in cells] == ["6/2", "✕", "–", "○"]
    assert [cell.href for cell in cells] == [
        "#bug-swa_pad-decode-generated",
        "#bug-swa_pad-target_verify-generated",
        "",
        "#bug-swa_pad-piecewise-generated",
    ]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_legend_has_every_mark_of_the_bugs_and_runners(name: str) -> None:
    record = SAMPLES[name]()
    (legend,) = re.findall(r'<ul class="legend">.*?</ul>', section_of_runners(record), re.DOTALL)
    shown = {cell.mark for cells in rows_of_runners(record).values() for cell in cells}
    caught = {mark for mark in shown if mark[0] == "caught"}  # Each with counts of its own.
    assert {kind for kind, _ in shown} <= {kind for kind, _ in _marks(legend)}
    assert shown - caught <= set(_marks(legend))


@pytest.mark.parametrize("name", SAMPLES)
def test_every_reason_why_a_bug_cannot_harm_a_runner_is_listed(name: str) -> None:
    record = SAMPLES[name]()
    section = section_of_runners(record)
    listed = re.findall(r'<dt class="mono">(.*?)</dt><dd>(.*?)</dd>', section, re.DOTALL)
    assert [(unescape(title), unescape(reason)) for title, reason in listed] == [
        (f"{pair['bug']}@{pair['runner']}", pair["unaffected"])
        for pair in record["pairs"]
        if pair["unaffected"] is not None
    ]
    assert len(listed) > 5


def dead_links(page: Page) -> set[str]:
    """Return the links within a page that lead nowhere."""
    return {href for href in page.hrefs() if href.startswith("#")} - {f"#{e}" for e in page.ids}


def test_a_page_without_bugs_has_no_link_to_their_runners() -> None:
    page = Page(render(green() | {"bugs": []}))
    assert "runners" not in page.ids
    assert dead_links(page) == set()


def test_a_finding_without_violations_is_shown_and_said_to_be_empty() -> None:
    record = red()
    for each in (record["bugs"][0], record["bugs"][-2], record["clean"][4]):
        each["finding"] = finding([], [played(0, "admit", [0], mode="extend")])
    record["bugs"][0]["status"] = "not reproduced"
    page = Page(render(record))
    assert page.text.count("Nothing was violated when it was played again.") == 3
    assert "swa_pad@decode (generated): not reproduced" in page.text
    assert dead_links(page) == set()


def test_a_hunt_that_failed_tells_its_error() -> None:
    record = red()
    record["bugs"][5] |= {"status": "failed", "error": f"RuntimeError: {HOSTILE}"}
    assert " ".join(f"RuntimeError: {HOSTILE}".split()) in Page(render(record)).text


@pytest.mark.parametrize(
    ("status", "error"),
    [("warned at capture", None), ("failed", "RuntimeError: gone"), ("vacuous", None)],
)
def test_a_clean_trial_without_a_finding_may_still_need_attention(
    status: str, error: str | None
) -> None:
    record = green() | {"verdict": "red"}
    record["clean"][3] |= {"status": status, "error": error}
    text = Page(render(record)).text
    attention = text[text.index("Needs attention") : text.index("Seed 0")]
    assert status in attention
    assert (error or "") in attention


def real_result(task: Task, status: Status, violations: tuple[Violation, ...]) -> Result:
    """Return a result of a task that found something."""
    timeline_entry = TimelineEntry(0, "admit", "extend", None, None, (0,), 0, (), 1)
    schedule = Schedule((Admit(1, 16),), seed=0)
    message = tuple(each.to_json() for each in violations)
    hunt_result = HuntResult(schedules=1, steps=1, replays=1, padded_replays=1, schedule=schedule)
    return Result(
        task, status, hunt_result, Finding(schedule, message, (asdict(timeline_entry),)), 0, 1.0
    )


def real(folder: Path, violations: tuple[Violation, ...]) -> Record:
    """Return the record that the harness itself makes of a run of one bug on one runner."""
    run = regress.Run(regress.RunConfig("cpu", hunts=(("swa_pad", "decode"),)))
    for task in regress.plan(run.settings):
        status = Status.RED if task.bug is None else Status.CAUGHT
        run.results.append(real_result(task, status, violations))
    records.write(regress.record(run, folder, "cases"), folder / "run.json")
    return records.load(folder / "run.json")


def shape(value: Any) -> Any:
    """Return the keys of a record and, by key, of what its lists and mappings hold."""
    if isinstance(value, Mapping):
        return {key: shape(each) for key, each in value.items() if key not in BY_NAME}
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return [shape(value[0])]
    return None


BY_NAME = ("events", "engine_runners", "properties", "where", "steps", "explanation")
"""Parts of a record whose keys are names of something, or which have many shapes."""


def test_the_records_made_here_are_shaped_like_a_real_one(tmp_path: Path) -> None:
    made, recorded = green(), real(tmp_path, (Violation("kv_parity", 0, "message", {}),))
    made["clean"][0]["finding"] = swa_pad_finding()
    assert shape(made) == shape(recorded)
    assert BY_NAME[1] in made.keys() & recorded.keys()
    assert list(PROPERTIES) == list(PROPERTIES) == list(recorded["properties"])


@pytest.mark.parametrize("violations", [(), (Violation("kv_parity", 0, "message", {}),)])
def test_a_real_record_can_be_shown(tmp_path: Path, violations: tuple[Violation, ...]) -> None:
    record = real(tmp_path, violations)
    page = Page(render(record))
    assert page.open == []
    assert cell_of(record, "swa_pad", "decode").mark == ("caught", "1/1")
    assert len(rows_of_runners(record)["swa_pad"]) == len(record["engine_runners"])


def test_every_status_of_a_hunt_has_its_words() -> None:
    of_clean_trials_alone = {Status.GREEN, Status.RED, Status.CAPTURE_WARNED}
    assert STATUSES.keys() == {str(each) for each in Status} - {*map(str, of_clean_trials_alone)}


def test_threads_become_links_and_nothing_else_does() -> None:
    page = Page(render(green()))
    outside = {href for href in page.hrefs() if not href.startswith("#")}
    assert outside == {f"{PULL}{number}" for number in (23552, 24743, 25824, 26152)}
    assert "sgl-project/sglang#23552 , mended by sgl-project/sglang#24743" in page.text
    assert linked("javascript:alert(1)")[0].href == ""


def test_hostile_texts_are_shown_and_do_nothing() -> None:
    text = render(hostile())
    page = Page(text)
    assert page.tags["script"] == 1
    assert "alert" not in text[text.index("<script>") : text.index("</script>")]
    assert not [each for each in page.attributes if each[1].startswith("on")]
    assert all(href.startswith(("#", "https://")) for href in page.hrefs())
    shown = " ".join(HOSTILE.split())
    assert page.text.count(shown) >= 60


@pytest.mark.parametrize("name", SAMPLES)
def test_a_time_line_draws_each_live_and_each_padded_row(name: str) -> None:
    record = SAMPLES[name]()
    hunts = [*record["clean"], *record["bugs"]]
    found = [each["finding"] for each in hunts if each["finding"] is not None]
    drawn = drawings(render(record))
    assert len(drawn) == len(found) > 0
    for drawing, each in zip(drawn, found, strict=True):
        steps = each["timeline"]
        replays = [step for step in steps if step["bucket"] is not None]
        eager = [step for step in steps if step["bucket"] is None]
        assert drawing.count('class="live"') == sum(len(step["live"]) for step in replays)
        assert drawing.count('class="eager"') == sum(len(step["live"]) for step in eager)
        assert drawing.count('class="padded"') == sum(step["padded"] for step in steps)
        assert drawing.count('class="edge"') == len(replays)
        assert drawing.count('class="parked"') == sum(len(step["parked"]) for step in steps)
        assert drawing.count('class="band"') == sum(bool(step["violated"]) for step in steps)


def test_a_time_line_stays_within_its_frame_and_names_what_is_violated() -> None:
    for steps in (
        swa_pad_finding()["timeline"],
        traffic_finding()["timeline"],
        warning_finding()["timeline"],
    ):
        line = lay_out(steps, 240)
        assert line is not None
        assert all(column.x + 32 <= line.width for column in line.columns)
        assert all(cell.y + 20 <= line.height for column in line.columns for cell in column.cells)
        assert all(0 < mark.x <= line.width and mark.y < line.height for mark in line.marks)
        assert [mark.text for mark in line.marks] == steps[-1]["violated"]
        assert f"step {steps[-1]['place']}" in line.message


def test_the_bucket_edge_lies_below_the_last_row_of_the_bucket() -> None:
    line = lay_out(swa_pad_finding()["timeline"], 240)
    assert line is not None
    last = line.columns[-1]
    assert last.edge is not None
    assert last.cells[1].y < last.edge <= last.cells[1].y + 24
    assert line.columns[0].edge is None


def test_the_edge_of_a_bucket_of_tokens_lies_within_the_drawing() -> None:
    """Live rows are requests, padded ones tokens: together they are fewer than the bucket."""
    step = played(0, "admit", [0], mode="extend", runner="piecewise", bucket=24, padded=3)
    line = lay_out([step | {"tokens": 21}], 240)
    assert line is not None
    (column,) = line.columns
    assert column.edge is not None
    assert column.cells[-1].y < column.edge <= column.cells[-1].y + 24


def test_a_long_time_line_keeps_its_end_and_says_what_it_leaves_out() -> None:
    steps = [played(place, "decode", [0, 1], bucket=8, padded=6) for place in range(100)]
    line = lay_out(steps, 240)
    assert line is not None
    assert line.columns[-1].place == 99
    assert line.omitted == 100 - len(line.columns) > 0
    record = green()
    record["bugs"][0]["finding"]["timeline"] = steps
    assert re.search(r"The first \d+ steps are not drawn", Page(render(record)).text)


def test_a_time_line_without_steps_is_said_to_be_empty() -> None:
    record = green()
    record["bugs"][0]["finding"]["timeline"] = []
    assert "No step was played." in Page(render(record)).text


def cases_on(text: str) -> list[Record]:
    """Return the case files that a page shows."""
    shown = re.findall(r'<pre id="[^"]*--case">(.*?)</pre>', text, re.DOTALL)
    return [json.loads(unescape(each)) for each in shown]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_case_on_the_page_holds_the_recorded_schedule_and_violations(name: str) -> None:
    record = SAMPLES[name]()
    found = [each for each in [*record["clean"], *record["bugs"]] if each["finding"] is not None]
    assert len(found) == len(cases_on(render(record))) > 0
    for hunt, case in zip(found, cases_on(render(record)), strict=True):
        assert case["trial"] == hunt["trial"]
        assert case["schedule"] == hunt["finding"]["schedule"]
        assert case["violations"] == hunt["finding"]["violations"]


def test_the_case_on_the_page_is_the_case_file(tmp_path: Path) -> None:
    record = real(tmp_path, (Violation("kv_parity", 0, "message", {"slot": 3}),))
    found = [each for each in [*record["clean"], *record["bugs"]] if each["finding"] is not None]
    for hunt, case in zip(found, cases_on(render(record)), strict=True):
        path = tmp_path / Path(hunt["finding"]["case_file"]).name
        assert case == json.loads(path.read_text())
        copied = tmp_path / "copied.json"
        copied.write_text(json.dumps(case))
        assert load_case(copied) == load_case(path)


def test_each_finding_tells_how_to_reproduce_it() -> None:
    text = Page(render(red())).text
    assert "paritybit replay reports/out/latest/cases/swa_pad-decode.json" in text
    assert "regress --source generated,traffic" in text


def test_differing_digits_are_marked() -> None:
    comparison = compare("kv_parity", {"eager_bits": "0xbda4e730", "graph_bits": "0xbf30e77e"})
    assert comparison is not None
    assert [(run.text, run.differs) for run in comparison.left.runs] == [
        ("0xb", False),
        ("da4", True),
        ("e7", False),
        ("30", True),
    ]
    assert (comparison.left.side, comparison.right.side) == ("eager", "graph")
    assert comparison.message == "8 of 32 bits differ"
    for explained in (False, True):
        text = _page_with_bits("0xbda4e730", "0xbf30e77e", explained)
        assert "<mark>da4</mark>e7<mark>30</mark>" in text


def _page_with_bits(eager: str, graph: str, explained: bool) -> str:
    record = green()
    found = record["bugs"][0]["finding"]
    bits = {"eager_bits": eager, "graph_bits": graph}
    found["violations"][0]["where"] |= bits
    found["explanation"] = explanation(difference=DIFFERENCE | bits) if explained else None
    return render(record)


DIFFERENCE = explanation()["difference"]


def test_the_lead_is_what_the_table_expects() -> None:
    text = Page(render(green())).text
    card = text[text.index("The memo is not cleared at the top") :]
    assert card.index("Step 1 violates kv_parity") < card.index("logits_parity , step 1")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x3f800000", "1"),
        ("0xbf800000", "-1"),
        ("0x80000000", "-0"),
        ("0x7fc00001", "nan"),
        ("0x3f80", "1"),
        ("0xff80", "-inf"),
        ("0x", ""),
        ("nothing", ""),
        ("0x3f", ""),
        ("0x+1234567", ""),
    ],
)
def test_bits_are_told_as_the_float_they_are(text: str, value: str) -> None:
    assert float_of(text) == value


def test_the_sides_of_a_comparison_are_named_after_the_property() -> None:
    where = {"eager_bits": "0x3f80", "graph_bits": "0x3f81"}
    comparison = compare("hermetic_replay", where)
    assert comparison is not None
    assert comparison.left.side == "just captured"
    assert compare("index_contract", {"breaches": []}) is None


def test_states_never_reached_are_marked() -> None:
    assert "never reached" not in Page(render(green())).text
    assert "pool full 0 never reached" in Page(render(red())).text


@pytest.mark.parametrize("name", SAMPLES)
def test_the_same_record_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    record = SAMPLES[name]()
    untouched = deepcopy(record)
    write(render(record), tmp_path / "first.html")
    write(render(json.loads(json.dumps(record))), tmp_path / "second.html")
    assert (tmp_path / "first.html").read_bytes() == (tmp_path / "second.html").read_bytes()
    assert record == untouched


def test_a_run_without_bugs_and_one_without_clean_trials_are_told_as_such() -> None:
    record = green() | {"bugs": []}
    assert "No bug was switched on in this run." in Page(render(record)).text
    record = green() | {"clean": []}
    text = Page(render(record)).text
    assert "there is no coverage to judge" in text
    assert "Needs attention" not in text
    record = green() | {"clean": [], "bugs": []}
    assert "Nothing was found, and no bug was sought." in Page(render(record)).text


@pytest.mark.parametrize(
    "key", sorted(green().keys() - {"engine_runners"})
)  # The page shows no line-up.
def test_a_record_that_lacks_something_is_refused(key: str) -> None:
    record = green()
    del record[key]
    with pytest.raises((LookupError, UndefinedError)):
        render(record)


@pytest.mark.parametrize("key", sorted(green()["bugs"][0].keys() - {"events"}))
def test_a_hunt_that_lacks_something_is_refused(key: str) -> None:
    record = green()
    del record["bugs"][0][key]
    with pytest.raises((LookupError, UndefinedError)):
        render(record)


def test_long_time_lines_share_the_room_of_a_page() -> None:
    record = red()
    steps = [
        played(place, "decode", [0, 1, 2, 3, 4], bucket=8, padded=3, parked=[5, 6, 7])
        for place in range(40)
    ]
    long = finding(swa_pad_finding()["violations"], steps)
    record["bugs"] = [bug("swa_pad", "caught", finding=long) for _ in range(40)]
    assert len(render(record).encode()) < 1_000_000


def test_a_page_as_long_as_a_whole_run_stays_below_five_megabytes() -> None:
    """A whole run has some 140 hunts and a hundred findings."""
    assert len(render(many(140)).encode()) < 5_000_000


def test_anchors_are_safe_and_different() -> None:
    names = ["bug-a+b-generated", "bug-a b-generated", "x.y"]
    assert list(anchors(names)) == ["bug-a-b-generated", "bug-a-b-generated--2", "x.y"]


def test_the_environment_says_which_code_ran() -> None:
    record = green()
    record["environment"] |= {"commit": "0123456789abcdef" * 2 + "01234567", "dirty": True}
    assert "commit 0123456789ab, with uncommitted changes" in Page(render(record)).text
    text = Page(render(red())).text
    assert "commit not recorded" in text
    assert "Triton not installed" in text


def test_lengths_of_time_are_written_for_people() -> None:
    assert [duration(each) for each in (0.04, 41.23, 341.2)] == ["0.0 s", "41.2 s", "5 min 41 s"]


def palette(text: str, start: str) -> dict[str, str]:
    """Return the colours of the first :root block after `start`."""
    block = text[text.index(":root", text.index(start)) :]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block[: block.index("}")]))


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as the accessibility guidelines define it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red_, green_, blue = (
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    )
    return 0.2126 * red_ + 0.7152 * green_ + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("start", ["<style>", "prefers-color-scheme: dark"])
def test_every_text_is_dark_or_light_enough_to_read(start: str) -> None:
    colours = palette(render(green()), start)
    texts = [
        *((ink, ground) for ink in ("ink", "soft", "link") for ground in ("paper", "ground")),
        *((tone, f"{tone}-tint") for tone in ("good", "bad", "warn")),
        *((tone, "paper") for tone in ("good", "bad", "warn")),
        *((ink, "bad-tint") for ink in ("ink", "soft")),
        ("live-ink", "live"),
    ]
    for ink, ground in texts:
        assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    for shape in ("hatch", "live"):
        assert contrast(colours[shape], colours["paper"]) >= 3
