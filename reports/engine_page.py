"""One HTML page from one record of an engine's trial, or from two, as the pages of runs are."""

from collections.abc import Mapping, Sequence
from typing import Any

from paritybit.harness.records.schema import EngineCounterexample
from paritybit.reports.cards import engine_cards
from paritybit.reports.compared.engines import Comparison
from paritybit.reports.compared.previous import Previous
from paritybit.reports.page import environment
from paritybit.reports.verdicts import of_faults

SIGNS = {"present": ("✗", "bad"), "absent": ("✓", "good"), "undecided": ("?", "warn")}
"""Sign and tone of a verdict."""


def render(
    record: Mapping[str, Any],
    counterexamples: Sequence[EngineCounterexample] = (),
    previous: Previous | None = None,
) -> str:
    """Return the page of a record, with its counterexamples, beside the trial before it.

    Raises LookupError or jinja2.UndefinedError for a record that lacks something.
    """
    sign, tone = SIGNS[record["verdict"]]
    answer = record["answer"]
    figures = {
        name: sum(leg[name] for leg in answer["legs"]) for name in ("replays", "padded", "steps")
    }
    page = environment().get_template("engine.html.j2")
    return page.render(
        record=record,
        answer=answer,
        faults=of_faults(answer),
        sign=sign,
        tone=tone,
        figures=figures,
        cards=tuple(engine_cards(counterexamples)),
        previous=previous,
    )


def render_comparison(
    before: Mapping[str, Any], after: Mapping[str, Any], comparison: Comparison
) -> str:
    """Return the page of two records side by side. Raises as `render` does."""
    page = environment().get_template("engine_compare.html.j2")
    return page.render(before=before, after=after, comparison=comparison)
