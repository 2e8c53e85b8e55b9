"""Tests of a run's page: what stands in the record stands on the page, safely, and alone."""

import json
import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from paritybit.harness.lockstep.config import LATER
from paritybit.harness.records.schema import Record
from paritybit.harness.records.typed_json import from_json, to_json
from paritybit.reports.drawings.bit_patterns import float_of
from paritybit.reports.page import render
from paritybit.reports.texts import anchors, linked

from properties.support.reports.pages import (
    card_of,
    folded,
    sample_markup,
    sample_page,
    text_of,
    timelines,
)
from properties.support.reports.records import (
    HOSTILE,
    PULL,
    SAMPLES,
    explanation,
    finding_of,
    findings,
    green,
    many,
    red,
    with_bug,
    with_clean,
    with_finding,
)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_tag_is_closed_and_every_id_is_used_once(name: str) -> None:
    page = sample_page(name)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert not any(re.search(r"\s", anchor) for anchor in page.ids)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_link_within_the_page_has_a_target(name: str) -> None:
    page = sample_page(name)
    labels = {
        label
        for _, key, value in page.attributes
        if key in ("aria-labelledby", "data-copy")
        for label in value.split()
    }
    assert sum(href.startswith("#") for href in page.hrefs) > 20
    assert page.dead_links == set()
    assert labels <= set(page.ids)


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_is_loaded_from_elsewhere(name: str) -> None:
    text, page = sample_markup(name), sample_page(name)
    loading = {"src", "srcset", "poster", "action", "formaction", "xlink:href", "background"}
    assert not [attribute for attribute in page.attributes if attribute[1] in loading]
    outside = {(tag, key) for tag, key, value in page.attributes if "://" in value}
    assert outside <= {("a", "href")}
    assert ("link", "href", "data:,") in page.attributes
    assert page.tags["link"] == 1
    style = text[text.index("<style>") : text.index("</style>")]
    assert "@import" not in style
    assert set(re.findall(r"url\(([^)]*)\)", style)) == {"#hatch", "#grid"}
    assert "default-src 'none'" in text


def test_a_green_page_asks_for_no_attention() -> None:
    assert "Needs attention" not in sample_page("green").text


def attention(text: str) -> str:
    """Return what a page says needs attention."""
    return text[text.index("Needs attention") : text.index("Seed 0")]


def first_screen(text: str) -> str:
    """Return what a page says above its figures."""
    return text[: text.index("clean trials passed")]


def test_a_red_page_says_what_failed_and_why_before_anything_else() -> None:
    page = sample_page("red")
    listed = first_screen(page.text)
    for message in (
        "red: decode: static inputs out_cache_loc_swa",
        "step 3 violates kv_parity",
        "But SWA slot 9 is request 1’s, which is parked and alive",
        "paritybit replay paritybit-out/20251122T091500Z/cases/swa_pad-decode.json",
        "missed: nothing was found (1 trial) what swa_int64@decode",
        "wrong property",
        "affected after all",
        "vacuous",
    ):
        assert message in listed
    wrong = attention(page.text)
    assert "no padded replay, so this proves nothing" in wrong
    assert "Never reached: pool full" in wrong
    assert page.dead_links == set()


@pytest.mark.parametrize("name", SAMPLES)
def test_every_hunt_has_a_row_and_a_card_with_its_status(name: str) -> None:
    record, page = SAMPLES[name], sample_page(name)
    for hunt in record.bugs:
        assert page.text.count(folded(f"{hunt.bug}@{hunt.runner}")) >= 2
        assert page.text.count(hunt.status) >= 2
    titles = [anchor for anchor in page.ids if re.fullmatch("bug-.*--title", anchor)]
    assert len(titles) == len(record.bugs)


def test_an_explainer_that_failed_is_shown_with_its_traceback_and_the_violations() -> None:
    text = sample_page("failed explainer").text
    assert "swa_pad@decode (generated): the explainer failed" in attention(text)
    card = card_of(SAMPLES["failed explainer"], "bug-swa_pad-decode-generated")
    assert "<strong>The explainer failed.</strong>" in card
    assert "ZeroDivisionError: division by zero" in card
    assert "in explanation" in card
    assert "violates" in card
    assert "Cause: " not in card
    assert "The explainer failed" not in sample_page("red").text


def test_a_hunt_that_failed_tells_its_error() -> None:
    record = with_bug(red(), 5, status="failed", error=f"RuntimeError: {HOSTILE}")
    assert folded(f"RuntimeError: {HOSTILE}") in text_of(record)


@pytest.mark.parametrize(
    ("status", "error"),
    [("warned at capture", None), ("failed", "RuntimeError: gone"), ("vacuous", None)],
)
def test_a_clean_trial_without_a_finding_may_still_need_attention(
    status: str, error: str | None
) -> None:
    record = with_clean(replace(green(), verdict="red"), 3, status=status, error=error)
    listed = attention(text_of(record))
    assert status in listed
    assert (error or "") in listed


def test_a_clean_trial_that_padded_nothing_needs_attention_however_often_it_replayed() -> None:
    record = with_clean(replace(green(), verdict="red"), 3, padded_replays=0)
    assert record.clean[3].replays > 0
    assert "no padded replay, so this proves nothing" in attention(text_of(record))


def test_threads_become_links_and_nothing_else_does() -> None:
    page = sample_page("green")
    outside = {href for href in page.hrefs if not href.startswith("#")}
    assert outside == {f"{PULL}{number}" for number in (23552, 24743, 25824, 26152)}
    assert "sgl-project/sglang#23552 , fixed by sgl-project/sglang#24743" in page.text
    for address in ("javascript:alert(1)", "javascript://alert(1)", "ftp://a.org/b", "://a.org"):
        assert [piece.href for piece in linked(address)] == [""], address


def test_hostile_texts_are_shown_and_do_nothing() -> None:
    text, page = sample_markup("hostile"), sample_page("hostile")
    assert page.tags["script"] == 1
    assert "alert" not in text[text.index("<script>") : text.index("</script>")]
    assert not [attribute for attribute in page.attributes if attribute[1].startswith("on")]
    assert all(href.startswith(("#", "https://")) for href in page.hrefs)
    assert page.text.count(folded(HOSTILE)) >= 60


def cases_on(text: str) -> list[dict[str, Any]]:
    """Return the case files that a page shows."""
    shown = re.findall(r'<span id="[^"]*--case">(.*?)</span>', text, re.DOTALL)
    return [json.loads(unescape(case)) for case in shown]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_case_on_the_page_holds_the_recorded_schedule_and_violations(name: str) -> None:
    record = SAMPLES[name]
    found = [hunt for hunt in (*record.clean, *record.bugs) if hunt.finding is not None]
    cases = cases_on(sample_markup(name))
    assert len(found) == len(cases) > 0
    for hunt, case in zip(found, cases, strict=True):
        assert hunt.finding is not None
        trial = to_json(hunt.trial)
        trial.pop("features")  # Only older records have it.
        # A case file leaves out what older ones lack.
        assert {name: trial.pop(name) for name in LATER} == to_json(dict(LATER))
        assert case["trial"] == trial
        assert case["schedule"] == to_json(hunt.finding.schedule)
        assert case["violations"] == to_json(hunt.finding.violations)


def test_each_finding_tells_how_to_reproduce_it() -> None:
    text = sample_page("red").text
    assert "paritybit replay paritybit-out/20251122T091500Z/cases/swa_pad-decode.json" in text
    assert "regress --source generated,traffic" in text


@pytest.mark.parametrize("explained", [False, True])
def test_differing_digits_are_marked_on_the_page(explained: bool) -> None:
    """Those of the explanation's difference, or else those of the violation."""
    bits = {"eager_bits": "0xbda4e730", "graph_bits": "0xbf30e77e"}
    told = explanation()
    assert told.difference is not None
    difference = replace(
        told.difference, eager_bits=bits["eager_bits"], graph_bits=bits["graph_bits"]
    )
    record = green()
    lead, *others = finding_of(record, 0).violations
    record = with_finding(
        record,
        0,
        violations=(replace(lead, where=lead.where | bits), *others),
        explanation=replace(told, difference=difference) if explained else None,
    )
    assert "<mark>da4</mark>e7<mark>30</mark>" in render(record)


def test_the_lead_is_what_the_table_expects() -> None:
    text = sample_page("green").text
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


def test_the_same_record_gives_the_same_bytes() -> None:
    """Read back from its file too."""
    record = red()
    again = from_json(Record, json.loads(json.dumps(to_json(record))), "the record")
    assert render(record) == render(again)


@pytest.mark.parametrize("status", ["failed", "vacuous", "device lost"])
def test_a_clean_trial_that_came_to_no_verdict_is_not_said_to_violate_nothing(status: str) -> None:
    """Whatever it played before an error ended it."""
    made = render(with_clean(green(), 0, status=status)).partition('<section id="clean">')[2]
    cells = re.findall(r"<td>(.*?)</td>", made.partition("</tr>")[2].partition("</tr>")[0])
    assert f'<strong class="bad">{status}</strong>' in cells
    assert "none" not in cells
    assert "<td>none</td>" in render(green())


def test_a_page_as_long_as_a_whole_run_stays_below_five_megabytes() -> None:
    """A whole run has some 140 hunts and a hundred findings."""
    record = many(140)
    page = render(record)
    assert len(timelines(page)) == len(findings(record)) > 100
    assert len(page.encode()) < 5_000_000


def test_anchors_are_safe_and_different() -> None:
    names = ["bug-a+b-generated", "bug-a b-generated", "x.y"]
    assert list(anchors(names)) == ["bug-a-b-generated", "bug-a-b-generated--2", "x.y"]
