"""The examples of docs/testing.md."""

import re

from properties.support.places import ROOT

TESTING = ROOT / "docs/testing.md"

IMPORTED = re.compile(r"^ +(?:from|import) (sglang|transformers|vllm)\b", re.MULTILINE)


def examples() -> list[tuple[str, str]]:
    """Return the code of each example, with the engine that it imports, if any."""
    text = TESTING.read_text(encoding="utf-8")
    found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    engines = [IMPORTED.search(code) for code in found]
    return [
        ("" if engine is None else engine[1], code)
        for engine, code in zip(engines, found, strict=True)
    ]
