"""The example of docs/testing.md runs as it stands, and its report is the real one."""

import re
from pathlib import Path

import pytest

from properties.support.places import ROOT

PAGE = ROOT / "docs/testing.md"
STALE = "out_cache_loc = torch.zeros(4, dtype=torch.int64)"


def example() -> str:
    """Return the code of the page."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return str(code)


def run(code: str, folder: Path) -> None:
    """Run the test of an example."""
    held: dict[str, object] = {}
    exec(compile(code, str(folder / "example.py"), "exec"), held)
    (test,) = (value for name, value in held.items() if name.startswith("test_"))
    assert callable(test)
    test()


def test_the_example_runs_as_it_stands(tmp_path: Path) -> None:
    assert len(example().splitlines()) <= 40
    run(example(), tmp_path)


def test_the_report_on_the_page_is_the_one_of_a_stale_slot(tmp_path: Path) -> None:
    stale = example().replace(STALE, "out_cache_loc = torch.tensor([0, 0, 0, 7])")
    assert stale != example()
    with pytest.raises(AssertionError) as raised:
        run(stale, tmp_path)
    assert str(raised.value) in PAGE.read_text(encoding="utf-8")
