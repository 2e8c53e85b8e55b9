"""A rank that waits in a forward is noticed, with its line, until it goes on."""

import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

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

    expected, long = list[tuple[int | None, bool]](), 0.6
    ends = (0.0, watcher.end), (long, watcher.end), (0.0, watcher.end), (long, watcher.abandon)
    for number, (seconds, end) in enumerate(ends, 1):
        watcher.begin(Forward("decode", (row("a", [1], 0, [5]),)))
        time.sleep(seconds)
        expected += [(number, True)] * bool(seconds and rank)
        assert waiting() == expected
        end()
        expected += [(None, False)] * bool(seconds and rank)
        assert waiting() == expected
    time.sleep(long)  # Between forwards, a rank may have nothing to do.
    assert waiting() == expected
    lines.end()


def test_what_a_forward_held_is_freed_after_its_rank_has_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "LONGEST", 0.1)
    monkeypatch.setattr(waits, "PAUSE", 0.01)
    lines, kv = journal.Journal(tmp_path / "process-0.jsonl"), groups()
    given: dict[str, Any] = {"journal": lines, "settings": Settings(str(tmp_path))}
    watcher = Watcher(kv, engine="watch", release="1", rank={"tp": (0, 2)}, **given)

    def forward() -> "weakref.ref[torch.Tensor]":
        held = torch.zeros(3)
        watcher.begin(Forward("decode", (row("a", [1], 0, [5]),)))
        time.sleep(0.4)
        watcher.end()
        return weakref.ref(held)

    left = forward()
    assert [one["kind"] for one in lines_in(tmp_path)].count("waits") == 2
    assert left() is None
    lines.end()
