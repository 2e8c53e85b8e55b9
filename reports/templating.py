"""The template environment of all pages.

A page is self-contained: it loads no script, style, font or image from elsewhere.
"""

from base64 import b64encode
from functools import cache
from hashlib import sha256

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from paritybit.reports.glossary import GLOSSARY
from paritybit.reports.texts import duration


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
    environment.globals["glossary"] = GLOSSARY
    script = environment.get_template("page.js.j2").render()
    digest = b64encode(sha256(script.encode()).digest()).decode()
    environment.globals["script"] = Markup(script)
    environment.globals["script_hash"] = Markup(f"sha256-{digest}")
    return environment
