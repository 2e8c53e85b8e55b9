"""The example of docs/testing.md runs as it stands, and its report is the real one.

The examples for engines run as they stand in properties/export/test_releases.py.
"""

from pathlib import Path

import pytest

from properties.support.examples import TESTING, examples

STALE = "out_cache_loc = torch.zeros(4, dtype=torch.int64)"


def run(code: str, folder: Path) -> None:
    """Run the test of an example."""
    held: dict[str, object] = {}
    exec(compile(code, str(folder / "example.py"), "exec"), held)
    (test,) = (value for name, value in held.items() if name.startswith("test_"))
    assert callable(test)
    test()


def test_the_example_runs_as_it_stands(tmp_path: Path) -> None:
    run(examples()[0][1], tmp_path)


def test_the_report_on_the_page_is_the_one_of_a_stale_slot(tmp_path: Path) -> None:
    code = examples()[0][1]
    stale = code.replace(STALE, "out_cache_loc = torch.tensor([0, 0, 0, 7])")
    assert stale != code
    with pytest.raises(AssertionError) as raised:
        run(stale, tmp_path)
    assert str(raised.value) in TESTING.read_text(encoding="utf-8")
