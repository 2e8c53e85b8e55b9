"""KV that another process computed: what its ledger knows comes with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paritybit.watch.facts import At, Copy, Forward
from properties.support.watching import Scene, row

TOKENS = [5, 6, 7, 8]
THERE, HERE = [3, 4, 5, 6], [13, 10, 11, 12]
NOWHERE = At(torch.empty(0, dtype=torch.int64), "peer")


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Scene]:
    """A watcher of another process, which has computed the tokens of a request."""
    (tmp_path / "other").mkdir()
    made = Scene(tmp_path / "other")
    made.forward("z", [1], 0, [9])
    made.forward("a", TOKENS, 0, THERE)
    yield made
    made.close()


def begin(scene: Scene, slots: list[int]) -> None:
    """Begin a transfer to some slots."""
    copies = [Copy(group.name, NOWHERE, At(torch.tensor(slots))) for group in scene.groups]
    scene.watcher.begin_copies("transfer", copies)


def move(scene: Scene, other: Scene, source: list[int], target: list[int]) -> None:
    """Move bytes of slots from another process."""
    for mine, theirs in zip(scene.groups, other.groups, strict=True):
        tensors = zip(mine.layers[0].tensors, theirs.layers[0].tensors, strict=True)
        for to, given in tensors:
            to[target] = given[source]


def receive(scene: Scene, other: Scene, source: list[int], target: list[int]) -> None:
    """Tell the watcher what another one knows of slots."""
    for group in scene.groups:
        known, about = other.watcher.described(group.name, torch.tensor(source))
        scene.watcher.received(group.name, torch.tensor(target), known, about)


FAULTS = {
    "none": (THERE, THERE, [*TOKENS, 9], []),
    "wrong bytes": ([4, 4, 5, 6], THERE, [*TOKENS, 9], ["corrupted read"]),
    "another request": ([9, 4, 5, 6], [9, 4, 5, 6], [*TOKENS, 9], ["wrong owner"]),
    "other tokens": (THERE, THERE, [5, 6, 7, 9, 9], ["wrong owner"] * 2),
    "not sent": (THERE, THERE[:3], [*TOKENS, 9], ["uninitialised read"] * 2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_received_is_that_of_the_same_tokens(
    scene: Scene, other: Scene, fault: str
) -> None:
    moved, told, tokens, found = FAULTS[fault]
    scene.forward("b", [1, 2], 0, [20, 21])
    begin(scene, HERE)
    move(scene, other, moved, HERE)
    scene.watcher.end_copies("transfer")
    receive(scene, other, told, HERE[: len(told)])
    scene.forward("a", tokens, 4, [*HERE, 14])
    assert scene.checks() == found


def test_the_first_transfer_may_come_before_the_first_forward(scene: Scene, other: Scene) -> None:
    move(scene, other, THERE, HERE)
    receive(scene, other, THERE, HERE)
    scene.forward("a", [*TOKENS, 9], 4, [*HERE, 14])
    assert scene.checks() == []
    assert scene.counts()["copied_reads"] > 0


def test_tokens_are_not_compared_if_only_one_cache_was_emptied(scene: Scene, other: Scene) -> None:
    scene.watcher.emptied()
    begin(scene, HERE)
    move(scene, other, THERE, HERE)
    scene.watcher.end_copies("transfer")
    receive(scene, other, THERE, HERE)
    scene.forward("a", [*TOKENS, 9], 4, [*HERE, 14])
    assert scene.checks() == []


@pytest.mark.parametrize("over", [False, True])
def test_bytes_may_arrive_during_a_forward_until_the_transfer_ends(
    scene: Scene, other: Scene, over: bool
) -> None:
    begin(scene, HERE)
    if over:
        scene.watcher.end_copies("transfer")
    scene.watcher.begin(Forward("extend", (row("b", [1], 0, [20]),)))
    scene.write([20])
    move(scene, other, THERE, HERE)
    scene.watcher.end()
    assert scene.checks() == (["stray write"] * 2 if over else [])
