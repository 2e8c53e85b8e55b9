"""A watcher over two small KV groups, and forwards that a test writes by hand."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paritybit.launch.journals import Journals
from paritybit.watch import journal
from paritybit.watch.facts import Forward, Group, Layer, Row
from paritybit.watch.settings import Settings
from paritybit.watch.watcher import Watcher

WINDOW = 4


def groups(slots: int = 64) -> list[Group]:
    """Return a group without a window and one with, of one layer each."""

    def layer(name: str) -> Layer:
        shape = (slots, 2, 4)
        return Layer(name, (torch.zeros(shape), torch.zeros(shape, dtype=torch.bfloat16)))

    return [Group("full", (layer("0"),)), Group("swa", (layer("1"),), window=WINDOW)]


def lines_in(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of the journals in a folder."""
    return [dict(entry) for _, entry in Journals(folder).entries()]


def call_at(lines: Sequence[str], call: Callable[[], object]) -> None:
    """Call a function from lines of the pretended engine, innermost first: `one.py:1 in move`."""
    for line in lines:
        place, _, name = line.partition(" in ")
        file, _, number = place.rpartition(":")
        scope: dict[str, Any] = {}
        source = "\n" * (int(number) - 1) + f"def {name}(call): call()"
        exec(compile(source, f"/e/pretended/{file}", "exec"), scope)
        call = partial(scope[name], call)
    call()


def skip(watcher: Watcher, forwards: int) -> None:
    """Let a watcher skip the next forwards."""
    due, left = watcher.due, iter(range(forwards))
    vars(watcher)["due"] = lambda *given: next(left, None) is None and due(*given)


class Scene:
    """A watcher, its journal, and a pretended engine that writes random KV."""

    def __init__(self, folder: Path, every: int = 1, checks: tuple[str, ...] | None = None) -> None:
        self.groups = groups()
        self.settings = settings = Settings(str(folder), checks, every)
        self.journal = journal.Journal(folder / "process-1.jsonl")
        self.watcher = Watcher(
            self.groups, engine="pretended", release="1", journal=self.journal, settings=settings
        )

    def freed(self, group: str, slots: Sequence[int], *lines: str) -> None:
        """Free slots of a group at lines of the engine, innermost first."""
        call_at(lines, partial(self.watcher.freed, group, torch.tensor(slots)))

    def allocated(self, group: str, slots: Sequence[int], *lines: str) -> None:
        """Allocate slots of a group at lines of the engine, innermost first."""
        call_at(lines, partial(self.watcher.allocated, group, torch.tensor(slots)))

    def write(self, slots: Sequence[int] | torch.Tensor, group: str | None = None) -> None:
        """Write other bytes to slots, of one group or of both."""
        where = torch.as_tensor(slots, dtype=torch.int64)
        where = where[where >= 0]
        for one in self.groups:
            if group in {None, one.name}:
                for tensor in one.layers[0].tensors:
                    tensor[where] = torch.randn(len(where), 2, 4).to(tensor.dtype)

    def forward(
        self,
        request: str,
        tokens: Sequence[int | None],
        cached: int,
        slots: Sequence[int] | Mapping[str, Sequence[int]],
        stray: Sequence[int] = (),
        space: str = "",
    ) -> None:
        """Watch a forward that computes a row's tokens from `cached` on, and writes `stray` too."""
        written = {group: mine[cached : len(tokens)] for group, mine in by_group(slots).items()}
        self.run(Forward("extend", (row(request, tokens, cached, slots, space),)), written, stray)

    def run(
        self,
        forward: Forward,
        *written: Sequence[int] | Mapping[str, Sequence[int]],
        ids: Sequence[int] = (),
        judged: Sequence[int] | None = None,
    ) -> None:
        """Watch a forward of these input ids that writes slots, of both groups or by group."""
        self.watcher.begin(forward)
        if ids:
            self.watcher.judge_tokens(torch.tensor(ids), judged=judged)
        for slots in written:
            for group, mine in by_group(slots).items():
                self.write(mine, group)
        self.watcher.end()

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Return the lines of a kind that the journal has so far."""
        self.journal.settle()
        self.journal.write_counts()
        return [line for line in lines_in(self.journal.path.parent) if line["kind"] == kind]

    def checks(self) -> list[str]:
        """Return the checks that found something, in order. Nothing may be undecided."""
        assert self.lines("undecided") == []
        return [line["check"] for line in self.lines("finding")]

    def counts(self) -> dict[str, int]:
        """Return the counts so far."""
        counts: dict[str, int] = self.lines("counts")[-1]["counts"]
        return counts

    def close(self) -> None:
        """Close the journal."""
        self.journal.end()


def by_group(slots: Sequence[int] | Mapping[str, Sequence[int]]) -> Mapping[str, Sequence[int]]:
    """Return slots per group; a plain list is for both."""
    return slots if isinstance(slots, Mapping) else {"full": slots, "swa": slots}


def row(
    request: str,
    tokens: Sequence[int | None],
    cached: int,
    slots: Sequence[int] | Mapping[str, Sequence[int]],
    space: str = "",
) -> Row:
    """Return a row that computes all of its tokens from `cached` on."""
    tensors = {group: torch.tensor(mine) for group, mine in by_group(slots).items()}
    return Row(request, tokens, cached, len(tokens) - cached, tensors, space)
