"""Renders the HTML page of a record of `regress`."""

from paritybit.harness.records.schema import Record
from paritybit.reports.review import review
from paritybit.reports.templating import environment


def render(record: Record) -> str:
    """Return the page of a record. Equal records give equal pages."""
    page = environment().get_template("page.html.j2")
    return page.render(record=record, review=review(record))
