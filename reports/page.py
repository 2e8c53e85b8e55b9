"""Renders HTML pages from one or two run records.

A page is self-contained: it loads no script, style, font or image from elsewhere.
"""

from base64 import b64encode
from functools import cache
from hashlib import sha256

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from paritybit.harness.explain.facts import Explanation
from paritybit.harness.records.schema import FORMAT, VERSION, Record
from paritybit.reports.compared.kinds import KINDS, tone
from paritybit.reports.compared.previous import Previous
from paritybit.reports.compared.runs import Comparison
from paritybit.reports.drawings.picture import lay_out
from paritybit.reports.glossary import GLOSSARY
from paritybit.reports.pasting import file_name, opening, pastable
from paritybit.reports.review import review
from paritybit.reports.texts import duration


def render(record: Record, previous: Previous | None = None) -> str:
    """Return the page of a record. `previous` is the run before it. Equal input, equal page."""
    page = environment().get_template("page.html.j2")
    return page.render(record=record, review=review(record), previous=previous)


def render_comparison(before: Record, after: Record, comparison: Comparison) -> str:
    """Return the page that compares two records."""
    page = environment().get_template("compare.html.j2")
    return page.render(before=before, after=after, comparison=comparison)


@cache
def environment() -> Environment:
    """Return the template environment. All inserted values are escaped."""
    environment = Environment(
        loader=PackageLoader("paritybit.reports", package_path="templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["number"] = lambda value: f"{int(value):,}"
    environment.filters["duration"] = duration
    environment.filters["here_document"] = lambda finding: opening(
        finding.reproduce, finding.case_file, finding.case
    )
    environment.filters["kind_tone"] = tone
    environment.globals["change_kinds"] = KINDS
    environment.globals["glossary"] = GLOSSARY
    environment.filters["pastable"] = pastable
    environment.filters["file_name"] = file_name
    environment.globals["record_format"] = f"{FORMAT}, version {VERSION}"
    script = environment.get_template("page.js.j2").render()
    digest = b64encode(sha256(script.encode()).digest()).decode()
    environment.globals["script"] = Markup(script)
    environment.globals["script_hash"] = Markup(f"sha256-{digest}")
    return environment


def draw(explanation: Explanation) -> str:
    """Return the picture of a stale index as a separate SVG file. Raises as `lay_out` does."""
    return environment().get_template("picture.svg.j2").render(p=lay_out(explanation))
