"""A rank that waits in a forward is noticed, with its line, until it goes on."""

import time
from pathlib import Path

import pytest

from paritybit.watch import journal, waits
from paritybit.watch.facts import Forward
from paritybit.watch.settings import Settings
from paritybit.watch.watcher import Watcher
from properties.support.watching import groups, lines_in, row


@pytest.mark.parametrize("rank", [{"tp": (1, 2)}, {}])
def test_a_rank_that_waits_is_noticed_until_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: dict[str, tuple[int, int]]
) -> None:
    monkeypatch.setattr(waits, "LONGEST", 0.1)
    monkeypatch.setattr(waits, "PAUSE", 0.01)
    lines, kv = journal.Journal(tmp_path / "process-0.jsonl"), groups()
    settings = Settings(str(tmp_path))
    watcher = Watcher(kv, engine="watch", release="1", journal=lines, rank=rank, settings=settings)

    def waiting() -> list[tuple[int | None, bool]]:
        found = [one for one in lines_in(tmp_path) if one["kind"] == "waits"]
        line = "in test_a_rank_that_waits_is_noticed_until_it_goes_on"
        return [(one.get("forward"), one.get("line", "").endswith(line)) for one in found]

    for seconds, found in ((0.0, []), (0.6, [(2, True)]), (0.0, [(2, True), (None, False)])):
        watcher.begin(Forward("decode", (row("a", [1], 0, [5]),)))
        time.sleep(seconds)
        assert waiting() == (found if rank else [])
        watcher.end()
    time.sleep(0.6)  # Between forwards, a rank may have nothing to do.
    assert len(waiting()) == 2 * len(rank)
    lines.end()
