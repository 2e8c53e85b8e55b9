"""The line of source that fills a static input."""

from pathlib import Path

import pytest

from paritybit.connectors.sglang import sources

SOURCE = """
class Runner:
    def __init__(self):
        self.created.copy_(0)

    def replay_prepare(self, batch, registry):
        self.copied[:3].copy_(batch.copied)
        dsts = [
            self.listed[:3],
            self.listed_too,
        ]
        dsts.append(self.appended[:, :3])
        self.assigned[:3] = batch.assigned
        kernel[(3,)](self.passed, batch)
        filled = self.filled_elsewhere
        kernel[(3,)](
            filled,
            self.copied,
        )

def build():
    return [
        GraphSlot(
            "declared",
            axis="tokens",
        ),
        GraphSlot("declared_too"),
    ]
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("copied", 7),
        ("listed", 9),
        ("listed_too", 10),
        ("appended", 12),
        ("assigned", 13),
        ("declared", 24),
        ("declared_too", 27),
        ("passed", 14),
        ("filled_elsewhere", 17),
        ("created", None),
    ],
)
def test_the_line_that_fills_an_input(tmp_path: Path, name: str, line: int | None) -> None:
    file = tmp_path / "runner.py"
    file.write_text(SOURCE)
    assert sources.fills(str(file)).get(name) == line


def test_a_source_is_named_from_the_engine_on() -> None:
    assert sources.source_of("copied_here", Filled) == f"{Path(__file__).name}:{HERE}"
    assert sources.source_of("nowhere", Filled) is None
    assert sources.shown("/x/sglang/srt/runner.py") == "sglang/srt/runner.py"


class Filled:
    """A class that fills a buffer, in a file that can be read."""

    def fill(self, value: object) -> None:
        """Fill it."""
        self.copied_here.copy_(value)  # type: ignore[attr-defined]


HERE = next(
    number
    for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
    if "self.copied_here.copy_" in text
)
