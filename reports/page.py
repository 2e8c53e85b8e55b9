"""Renders the HTML page of a report.

A page is self-contained: it loads no script, style, font or image from elsewhere.
"""

from base64 import b64encode
from functools import cache
from hashlib import sha256

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from paritybit.reports.model import Report


def render(report: Report) -> str:
    """Return the page of a report. Equal reports give equal pages."""
    return environment().get_template("page.html.j2").render(report=report)


def breakable(text: str) -> Markup:
    """Return an escaped text in which a line may end after each slash, such as in a path."""
    return Markup("/<wbr>").join(map(escape, text.split("/")))


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
    environment.filters["breakable"] = breakable
    script = environment.get_template("page.js.j2").render()
    digest = b64encode(sha256(script.encode()).digest()).decode()
    environment.globals["script"] = Markup(script)
    environment.globals["script_hash"] = Markup(f"sha256-{digest}")
    return environment
