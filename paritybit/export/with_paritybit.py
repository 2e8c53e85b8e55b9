"""Writes a test that serves a case with the sanitizer."""

import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any

TEST = '''\
"""{law} in {engine}, found by paritybit.

ENGINE is a folder with the engine's source, or a release. The folder of the test run by default.
"""

import json
import os
from unittest import TestCase

from paritybit.testing import check_case

CASE = json.loads({case})


class Test(TestCase):
    def test_{name}_does_not_appear(self):
        check_case(CASE, os.environ.get("ENGINE", "."))
'''


def with_paritybit(data: Mapping[str, Any]) -> str:
    """Return the test for the JSON data of a case."""
    law = str(data["key"]).partition(" | ")[0]
    text = TEST.format(
        law=plain(law).capitalize(),
        engine=plain(str(data["engine"])),
        name=re.sub(r"\W", "_", law, flags=re.ASCII),
        case=ascii(json.dumps(data)),
    )
    compile(text, "test.py", "exec", dont_inherit=True)
    return text


def plain(text: str) -> str:
    """Return text that is safe in a docstring: one short line of ASCII without quotes."""
    safe = re.sub(r"[^ -~]", " ", text).replace("\\", "/").replace('"', "'")
    return textwrap.shorten(safe, 180)
