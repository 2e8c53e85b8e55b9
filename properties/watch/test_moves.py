"""Copies of KV that take time: what may happen to their places, and what the ledger then knows."""

from collections.abc import Callable
from functools import partial

import pytest
import torch

from paritybit.watch import between
from paritybit.watch.facts import FORWARDS, At, Copy, Forward, HostSlots
from properties.support.watching import Scene, call_at, row

TOKENS = [5, 6, 7, 8]
SLOTS = [3, 4, 5, 6]
HOST = [7, 2, 5]

OVER = pytest.mark.parametrize("over", [False, True])
"""Whether the engine has waited for the copy."""


def at(slots: list[int], pool: str = "") -> At:
    return At(torch.tensor(slots), pool)


def begin(
    scene: Scene,
    name: str,
    source: At,
    target: At,
    request: str = "",
    queue: str = "",
    after: str = "",
) -> None:
    """Begin a copy of both groups."""
    groups = (group.name for group in scene.groups)
    copies = [Copy(group, source, target, request, queue, (after,)) for group in groups]
    call_at([f"{name}.py:3 in start"], partial(scene.watcher.begin_copies, name, copies))


def store(scene: Scene, slots: list[int] = SLOTS[:3], name: str = "store") -> None:
    """Begin to copy slots to the host, whose bytes move at once."""
    begin(scene, name, at(slots), at(HOST, "host"), "a")
    for group in scene.groups:
        scene.watcher.moved(group.name, at(slots), at(HOST, "host"))


def load(scene: Scene, slots: list[int], places: list[int] = HOST, name: str = "load") -> None:
    """Begin to copy slots from the host, whose bytes are already there."""
    begin(scene, name, at(places, "host"), at(slots), "b")
    for group in scene.groups:
        scene.watcher.moved(group.name, at(places, "host"), at(slots))


def fill(scene: Scene, target: list[int], source: list[int] = SLOTS[:3]) -> None:
    """Copy the bytes of slots."""
    for group in scene.groups:
        for tensor in group.layers[0].tensors:
            tensor[target] = tensor[source].clone()


def stored(scene: Scene) -> None:
    """Compute a request, and copy its first slots to the host."""
    scene.forward("a", TOKENS, 0, SLOTS)
    store(scene)
    scene.watcher.end_copies("store")


@OVER
def test_a_source_may_be_written_once_the_engine_has_waited(scene: Scene, over: bool) -> None:
    scene.forward("a", TOKENS, 0, SLOTS)
    store(scene)
    if over:
        scene.watcher.end_copies("store")
    scene.freed("full", [SLOTS[1]], "pool.py:7 in free", "engine.py:9 in finish")
    scene.allocated("full", [SLOTS[1]], "pool.py:5 in take", "engine.py:8 in admit")
    scene.forward("b", [1, 2], 0, [SLOTS[1], 20])
    assert scene.checks() == ([] if over else ["copy under way"] * 2)
    counts = scene.counts()
    done = {"freed": 1, "handed out": 1, "written": 2}
    seen = {what: counts.get(f"copies under way: a slot was {what}") for what in done}
    assert seen == (dict.fromkeys(done) if over else done)
    assert (counts["copies begun"], counts.get("copies finished", 0)) == (1, int(over))
    assert (counts["tried: copy under way"] > 0) != over
    if not over:
        found, _ = scene.lines("finding")
        assert "request b writes slot 4 (full), which copy store" in found["text"]
        assert "(full to host for request a) still reads" in found["text"]
        assert found["cause"]["what"] == "a slot was handed out while a copy reads it"
        assert found["cause"]["source"] == "pretended/pool.py:5"
        assert found["freed"]["source"] == "pretended/pool.py:7"
        assert "pretended/store.py:3" in found["origin"]
        assert found["reader"] == {"request": "b"}


@OVER
def test_a_target_may_be_read_once_the_engine_has_waited(scene: Scene, over: bool) -> None:
    stored(scene)
    load(scene, [30, 31, 32])
    fill(scene, [30, 31, 32])
    if over:
        scene.watcher.end_copies("load")
    scene.forward("b", TOKENS, 3, [30, 31, 32, 20])
    assert scene.checks() == ([] if over else ["copy under way"] * 2)


@pytest.mark.parametrize("when", ["during", "after"])
def test_a_forward_may_wait_for_a_copy_itself(scene: Scene, when: str) -> None:
    stored(scene)
    load(scene, [30, 31, 32])
    fill(scene, [30, 31, 32])
    scene.watcher.begin(Forward("extend", (row("b", TOKENS, 3, [30, 31, 32, 20]),)))
    if when == "during":
        scene.watcher.end_copies("load")
    scene.write([20])
    scene.watcher.end()
    scene.watcher.end_copies("load")
    scene.forward("b", [*TOKENS, 9], 4, [30, 31, 32, 20, 21])
    assert scene.checks() == (["copy under way"] * 2 if when == "after" else [])


@pytest.mark.parametrize(
    ("source", "target", "wrong"),
    [
        (at([20]), at(HOST[:1], "host"), True),  # It is being written.
        (at(SLOTS[3:]), at(HOST[:1], "host"), False),  # It is read.
        (at(HOST[:1], "host"), at(SLOTS[3:]), True),
        (at(HOST[:1], "host"), at([20]), True),
        (at(HOST[:1], "host"), at([30]), False),
    ],
)
@pytest.mark.parametrize("after", ["", FORWARDS, "step 1", "step 0"])
@OVER
def test_a_copy_waits_for_a_forward_that_still_runs(
    scene: Scene, source: At, target: At, wrong: bool, after: str, over: bool
) -> None:
    scene.forward("a", TOKENS, 0, SLOTS)
    scene.watcher.begin(Forward("decode", (row("a", [*TOKENS, 9], 4, [*SLOTS, 20]),)))
    scene.write([20])
    scene.watcher.end("step 1")
    if over:
        scene.watcher.end_copies("step 1")
    begin(scene, "copy", source, target, after=after)
    scene.watcher.end_copies("copy")
    scene.forward("a", [*TOKENS, 9, 8], 5, [*SLOTS, 20, 21])  # It waits for the one before.
    waits = after in (FORWARDS, "step 1")
    assert scene.checks() == (["copy under way"] * 2 if wrong and not (over or waits) else [])
    if scene.checks():
        assert "step 1, which the device may still run, still" in scene.lines("finding")[0]["text"]
    assert scene.counts()["copies begun"] == scene.counts()["copies finished"] == 1


@OVER
def test_a_target_may_be_written_once_the_engine_has_waited(scene: Scene, over: bool) -> None:
    stored(scene)
    load(scene, [30, 31, 32])
    if over:
        scene.watcher.end_copies("load")
    scene.forward("c", [9], 0, [31])
    assert scene.checks() == ([] if over else ["copy under way"] * 2)


@OVER
@pytest.mark.parametrize("scene", [{"every": 3}], indirect=True)
def test_a_forward_that_is_not_checked_is_judged_by_what_it_writes(
    scene: Scene, over: bool
) -> None:
    store(scene)
    if over:
        scene.watcher.end_copies("store")
    scene.watcher.skipped({"full": torch.tensor([SLOTS[1], 20])})
    assert scene.checks() == ([] if over else ["copy under way"])


Act = Callable[[Scene], None]

COPIES: dict[str, tuple[Act, bool]] = {
    "of what is filled": (lambda one: load(one, [30, 31, 32], name="other"), True),
    "of other places": (lambda one: load(one, [30], [6], name="other"), False),
    "to what is filled": (lambda one: store(one, [20, 21, 22], "other"), True),
    "of what is read": (lambda one: begin(one, "other", at(SLOTS[:1]), at([6], "disk")), False),
    "to what is read": (lambda one: load(one, SLOTS[:1], [6], name="other"), True),
}


@OVER
@pytest.mark.parametrize("what", COPIES)
def test_copies_do_not_disturb_one_another(scene: Scene, what: str, over: bool) -> None:
    act, wrong = COPIES[what]
    scene.forward("a", TOKENS, 0, SLOTS)
    store(scene)
    if over:
        scene.watcher.end_copies("store")
    act(scene)
    assert set(scene.checks()) == ({"copy under way"} if wrong and not over else set())


@pytest.mark.parametrize("queue", ["", "stores"])
def test_copies_of_one_queue_wait_for_one_another(scene: Scene, queue: str) -> None:
    for name in ("first", "second"):
        begin(scene, name, at(SLOTS), at(SLOTS, "host"), queue=queue)
    assert set(scene.checks()) == (set() if queue else {"copy under way"})


@pytest.mark.parametrize("failed", [False, True, torch.tensor([31])])
def test_what_a_failed_copy_should_have_filled_is_not_read(
    scene: Scene, failed: bool | torch.Tensor
) -> None:
    stored(scene)
    load(scene, [30, 31, 32])
    fill(scene, [30, 31, 32])
    scene.watcher.end_copies("load", failed)
    scene.forward("b", TOKENS, 3, [30, 31, 32, 20])
    assert set(scene.checks()) == ({"uninitialised read"} if failed is not False else set())
    for found in scene.lines("finding"):
        assert found["slots"][0] == (30 if failed is True else 31)
        assert "a copy to it failed" in found["origin"]


def test_a_slot_of_a_failed_copy_may_be_computed_again(scene: Scene) -> None:
    """Its bytes may even be the same as before."""
    scene.forward("a", TOKENS, 0, SLOTS)
    load(scene, SLOTS)
    scene.watcher.end_copies("load", True)
    scene.run(Forward("extend", (row("a", TOKENS, 0, SLOTS),)))
    scene.forward("a", [*TOKENS, 9], 4, [*SLOTS, 20])
    assert scene.checks() == []


def test_what_failed_to_reach_the_host_does_not_come_back(scene: Scene) -> None:
    scene.forward("a", TOKENS, 0, SLOTS)
    store(scene)
    scene.watcher.end_copies("store", True)
    load(scene, [30, 31, 32])
    fill(scene, [30, 31, 32])
    scene.watcher.end_copies("load")
    scene.forward("b", TOKENS, 3, [30, 31, 32, 20])
    assert set(scene.checks()) == {"uninitialised read"}


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("pool", ["", "host", "disk"])
def test_a_copy_that_never_ends_is_a_leak_if_the_engine_says_that_none_runs(
    scene: Scene, over: bool, pool: str
) -> None:
    scene.forward("a", TOKENS, 0, SLOTS)
    store(scene)
    if over:
        scene.watcher.end_copies("store")
    held = {group.name: (torch.tensor(SLOTS), torch.tensor([])) for group in scene.groups}
    every = HostSlots(8, torch.arange(8), torch.tensor([]).long(), pool=pool)
    scene.watcher.idle(held, hosts={"slots on the host": every})
    assert scene.checks() == ["leak"] * (2 if pool == "host" and not over else 0)


KEPT: dict[str, tuple[str, Act, str]] = {
    "freed": (
        "source",
        lambda one: one.watcher.freed("full", torch.tensor(SLOTS)),
        "slot 3 (full)",
    ),
    "evictable": (
        "target",
        lambda one: one.watcher.happened("evictable", "full", at(HOST, "host")),
        "slot 7 (host)",
    ),
}


@pytest.mark.parametrize("kept", ["source", "target"])
@pytest.mark.parametrize("when", ["before", "while it is planned", "during", "reused", "after"])
@pytest.mark.parametrize("what", KEPT)
def test_what_a_copy_keeps_cannot_be_reused(scene: Scene, what: str, when: str, kept: str) -> None:
    """It is neither free nor evictable, whether or not anybody takes it."""
    side, act, text = KEPT[what]
    scene.forward("a", TOKENS, 0, SLOTS)
    if when in ("before", "reused"):
        act(scene)
    if when == "reused":
        scene.watcher.allocated("full", torch.tensor(SLOTS))
        scene.watcher.happened("pinned", "full", at(HOST, "host"))
    planned = when == "while it is planned"
    ends = at(SLOTS[:3]), at(HOST, "host")
    copy = Copy("full", *ends, kept=(kept,), planned=planned)
    scene.watcher.begin_copies("store", [copy])
    if planned or when == "during":
        act(scene)
    scene.watcher.end_copies("store")
    if when == "after":
        act(scene)
    scene.forward("b", [1], 0, [40])
    wrong = side == kept and when not in ("reused", "after")
    assert scene.checks() == (["copy under way"] if wrong else [])
    if wrong:
        assert f"the engine may reuse {text}" in scene.lines("finding")[0]["text"]


@OVER
def test_the_engine_takes_no_copy_for_over_that_runs(scene: Scene, over: bool) -> None:
    scene.forward("a", TOKENS, 0, SLOTS)
    store(scene)
    if over:
        scene.watcher.end_copies("store")
    scene.watcher.acknowledged("store")
    scene.forward("b", [1], 0, [40])
    assert scene.checks() == ([] if over else ["copy under way"] * 2)


def test_what_happens_to_a_place_of_a_copy_elsewhere_is_counted(scene: Scene) -> None:
    scene.forward("a", TOKENS, 0, SLOTS)
    store(scene)
    scene.watcher.happened("evicted", "full", at([2, 3], "host"))
    load(scene, [30], [2])
    assert scene.checks() == ["copy under way"] * 2
    assert scene.counts()["copies under way: a slot was evicted"] == 1
    found, _ = scene.lines("finding")
    assert found["cause"]["what"] == "a slot was evicted while a copy fills it"


@pytest.mark.parametrize(
    ("reader", "order", "what"),
    [
        ("other tokens", [0, 1, 2], "a key brought other KV of the same position"),
        ("salt", [0, 1, 2], "a key brought other KV of the same position"),
        ("right", [1, 0, 2], None),  # The keys are right, and the slots are not.
    ],
)
def test_a_key_that_brings_other_tokens_of_the_same_position_is_at_fault(
    scene: Scene, reader: str, order: list[int], what: str | None
) -> None:
    stored(scene)
    places = scene.watcher.places("files", ["one", "two", "three"])
    for group in scene.groups:
        scene.watcher.moved(group.name, at(HOST, "host"), At(places, "files"))
        scene.watcher.moved(group.name, At(places[order], "files"), at([30, 31, 32]))
    fill(scene, [30, 31, 32], [SLOTS[one] for one in order])
    tokens = [9, *TOKENS[1:]] if reader == "other tokens" else TOKENS
    scene.forward("b", tokens, 3, [30, 31, 32, 20], space="salt" if reader == "salt" else "")
    assert set(scene.checks()) == {"wrong owner"}
    for found in scene.lines("finding"):
        assert (found["cause"] and found["cause"]["what"]) == what
        assert "restored from the files by its key" in found["origin"]


@pytest.mark.parametrize("right", [True, False])
def test_content_passes_through_files_by_their_keys(scene: Scene, right: bool) -> None:
    stored(scene)
    places = scene.watcher.places("files", ["one", "two", "three"])
    for group in scene.groups:
        scene.watcher.moved(group.name, at(HOST, "host"), At(places, "files"))
    again = scene.watcher.places("files", ["one", "two", "three" if right else "four"])
    assert torch.equal(again, places) == right
    order = SLOTS[:3] if right else [*SLOTS[:2], 40]
    fill(scene, [30, 31, 32], order)
    for group in scene.groups:
        scene.watcher.moved(group.name, At(again, "files"), at([30, 31, 32]))
    scene.forward("b", TOKENS, 3, [30, 31, 32, 20])
    scene.forward("c", [1, 2, 3, 4], 3, [30, 31, 32, 20])
    assert set(scene.checks()) == {"wrong owner"}
    first = {f["reader"]["request"]: f["count"] for f in scene.lines("finding")}
    assert first == {"c": 3}


@pytest.mark.parametrize("both", [True, False])
def test_a_key_under_which_another_group_alone_stored_brings_nothing(
    scene: Scene, both: bool
) -> None:
    stored(scene)
    places = scene.watcher.places("files", ["one", "two", "three"])
    for group in scene.groups if both else scene.groups[:1]:
        scene.watcher.moved(group.name, at(HOST, "host"), At(places, "files"))
    for group in scene.groups:
        scene.watcher.moved(group.name, At(places, "files"), at([30, 31, 32]))
    fill(scene, [30, 31, 32])
    scene.forward("b", TOKENS, 3, [30, 31, 32, 20])
    found = {one["group"] for one in scene.lines("finding")}
    assert scene.checks() == ([] if both else ["uninitialised read"])
    assert found == (set() if both else {scene.groups[1].name})


def test_a_fetch_to_the_host_is_under_way_during_a_forward(scene: Scene) -> None:
    scene.forward("a", TOKENS, 0, SLOTS)
    begin(scene, "fetch", at([], "files"), at([90_000], "host"), "b")
    scene.forward("a", [*TOKENS, 9], 4, [*SLOTS, 14])
    assert scene.checks() == []
    assert not scene.lines("undecided")


def test_copies_that_never_end_take_no_more_and_more_memory(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(between, "MOST_WAITING", 2)
    for slot in range(1, 5):
        begin(scene, f"copy{slot}", at([slot]), at([slot], "host"))
    assert scene.checks() == []
    assert [*scene.watcher.copies_of] == ["copy3", "copy4"]
    assert {one.name for one in scene.watcher.moves["full"]} == {"copy3", "copy4"}


def test_a_copy_is_forgotten_with_all_else(scene: Scene) -> None:
    scene.forward("a", TOKENS, 0, SLOTS)
    store(scene)
    scene.watcher.lose()
    scene.forward("b", [1, 2], 0, [SLOTS[1], 20])
    load(scene, [30], [6])  # It may have been stored before.
    scene.watcher.end_copies("store")
    scene.watcher.end_copies("load")
    scene.forward("c", [1, 2], 1, [30, 20])
    assert scene.checks() == []
