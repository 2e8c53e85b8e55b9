"""What the watcher judges and what it must not, forward by forward."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.watch import bits
from paritybit.watch.between import Relayed
from paritybit.watch.facts import (
    ELSEWHERE,
    Chunks,
    Forward,
    IndexList,
    Replay,
    RowValues,
    StaticInput,
)
from paritybit.watch.ledger import Ledger
from paritybit.watch.replays import replaying
from paritybit.watch.replays.replaying import UNREPEATED, UNSURE
from paritybit.watch.replays.rerun import SavedSlots
from properties.support.watching import Scene, call_at, row

TOKENS = [5, 6, 7, 8, 9, 10, 11, 12]
SLOTS = [3, 4, 5, 6, 7, 8, 9, 10]


SAMPLED = pytest.mark.parametrize("scene", [{"every": 3}], indirect=True)
EITHER = pytest.mark.parametrize(
    ("scene", "found"), [({}, {"corrupted read"}), ({"every": 3}, set())], indirect=["scene"]
)


def test_a_change_in_a_large_pool_is_a_stray_write_once_it_is_known_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a pool is scanned once per forward, until a change that no replay explains."""
    monkeypatch.setattr(bits, "LARGEST_COPY", 0)
    scene = Scene(tmp_path)
    scene.forward("a", TOKENS[:4], 0, SLOTS)
    scene.forward("b", [1], 0, [20])
    scene.write([20, 30])
    scene.forward("a", TOKENS[:5], 4, SLOTS)
    assert scene.checks() == []
    assert scene.counts()["not tried: stray write: " + UNREPEATED] == 4
    for group in ("full", "swa"):
        assert scene.watcher.ledgers[group].overwrites[20].what == UNSURE
        assert 30 not in scene.watcher.ledgers[group].overwrites
    scene.forward("a", TOKENS[:6], 5, SLOTS, stray=[20])
    assert scene.checks() == ["stray write"] * 2
    assert scene.watcher.ledgers["full"].overwrites[20].what == "a stray write"
    scene.close()


def test_a_large_pool_is_not_scanned_for_checks_of_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bits, "LARGEST_COPY", 0)
    scene = Scene(tmp_path, checks=("corrupted read", "unwritten slot"))
    monkeypatch.setattr(Ledger, "scan", None)
    monkeypatch.setattr(SavedSlots, "of", None)  # Nothing runs a replay again.
    scene.watcher.begin(Forward("decode", (row("b", [1], 0, [20]),)))
    scene.watcher.replay(replay(scene, 20, torch.zeros(())))
    scene.watcher.end()
    scene.forward("a", TOKENS[:4], 0, SLOTS)
    scene.forward("a", TOKENS[:5], 4, SLOTS, stray=[30])
    assert scene.checks() == []
    scene.run(Forward("extend", (row("a", TOKENS[:6], 5, SLOTS),)))
    scene.write([SLOTS[1]])
    scene.forward("b", [1], 0, [20])
    scene.forward("a", TOKENS[:5], 4, SLOTS)
    assert scene.checks() == ["unwritten slot"] * 2 + ["corrupted read"] * 2
    assert scene.counts()["replays"] == 1
    assert not scene.lines("undecided")
    scene.close()


def test_what_changed_before_a_replay_ran_again_is_not_its_doing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large pool is not scanned if no check needs it, unless a replay gets other padding."""
    monkeypatch.setattr(bits, "LARGEST_COPY", 0)
    scene = Scene(tmp_path, checks=("padding leak",))
    scene.write([30])  # As a copy does.
    padded = StaticInput("ids", torch.zeros(2), 1, 2, valid=(0, 9))
    given = replace(replay(scene, 20, out := torch.zeros(())), inputs=[padded])
    seen = replace(given, padding=lambda: [padded.tensor + out])
    scene.watcher.begin(Forward("decode", (row("b", [1], 0, [20]),)))
    scene.watcher.replay(seen)
    scene.watcher.end()
    assert scene.checks() == []
    assert scene.counts()["tried: padding leak"] == 1
    scene.close()


def test_as_many_stray_slots_are_explained_as_can_be_saved(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    explained = list[int]()
    monkeypatch.setattr(replaying, "LARGEST", 100)
    monkeypatch.setattr(replaying, "explain", lambda *given: explained.append(len(given[2])))
    ledger = scene.watcher.ledgers["full"]
    rerun: Any = SimpleNamespace(possible=True, replay=SimpleNamespace(graph=0, inputs=()))
    rerun.inputs = SimpleNamespace(pairs=())
    scene.watcher.explained(ledger, torch.arange(20), rerun)
    assert explained == [100 // ledger.checksums.bytes_per_slot]


def test_a_stray_write_is_found_and_explains_who_reads_it(scene: Scene) -> None:
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    scene.forward("b", [1, 2], 0, [20, 21], stray=[SLOTS[4]])
    scene.forward("a", TOKENS[:6], 5, SLOTS)
    assert scene.checks() == ["stray write"] * 2 + ["corrupted read"] * 2
    stray, _, read, _ = scene.lines("finding")
    assert stray["writer"] == {"request": "a", "position": 4, "forward": 1}
    assert read["cause"] == {"what": "a stray write", "forward": 2}
    assert read["reader"] == {"request": "a", "position": 4, "forward": 3}


def test_the_tail_that_holds_a_stray_slot_is_the_cause_if_the_replay_waits_for_other_ranks(
    scene: Scene,
) -> None:
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    held = StaticInput("loc", torch.tensor([20, SLOTS[4]]), 1, 2, writes="full", source="e.py:1")

    def run() -> None:
        scene.write([20])
        scene.write([SLOTS[4]], "full")

    scene.watcher.begin(Forward("decode", (row("b", [1], 0, [20]),)))
    once = "it waits for other ranks"
    scene.watcher.replay(Replay("graph", "decode", 1, 2, (held,), run, once=once))
    scene.watcher.end()
    (found,) = scene.lines("finding")
    assert (found["check"], found["slots"]) == ("stray write", [SLOTS[4]])
    assert found["cause"]["what"] == "the padded tail of loc holds the slot"
    assert (found["cause"]["input"], found["cause"]["source"]) == ("loc", "e.py:1")


def test_bytes_that_change_between_forwards_are_no_stray_write(scene: Scene) -> None:
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    scene.write([SLOTS[4], 30])
    scene.forward("b", [1, 2], 0, [20, 21])
    assert scene.checks() == []
    scene.forward("a", TOKENS[:6], 5, SLOTS)
    assert scene.checks() == ["corrupted read"] * 2


def test_a_prefix_is_shared_by_equal_tokens_alone(scene: Scene) -> None:
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    scene.forward("b", [*TOKENS[:3], 50], 3, [*SLOTS[:3], 20])
    assert scene.checks() == []
    assert scene.counts()["shared_reads"] == 6
    scene.forward("c", [*TOKENS[:3], 51, 52], 4, [*SLOTS[:4], 21])
    assert scene.checks() == ["wrong owner"] * 2
    assert all("a prefix hit" in one["origin"] for one in scene.lines("finding"))


def test_an_offered_prefix_was_written_for_its_tokens(scene: Scene) -> None:
    scene.forward("a", [*TOKENS[:4], None], 0, SLOTS)  # As with overlap.
    group = next(iter(scene.watcher.ledgers))
    scene.watcher.offered(group, "a", TOKENS[:4], torch.tensor(SLOTS[2:4]))
    scene.watcher.offered(group, "a", TOKENS[:5], torch.tensor(SLOTS[3:5]))
    scene.forward("a", TOKENS[:6], 5, SLOTS)
    assert scene.checks() == []
    scene.watcher.offered(group, "a", TOKENS[:7], torch.tensor(SLOTS[4:7]))
    scene.watcher.offered(group, "b", [*TOKENS[:3], 50], torch.tensor(SLOTS[2:4]))
    assert scene.checks() == ["uninitialised read", "wrong owner"]
    texts = [one["text"] for one in scene.lines("finding")]
    assert ["a offers position 6" in texts[0], "b offers position 3" in texts[1]] == [True, True]


def test_what_is_kept_of_a_request_was_written_for_it_and_may_be_free(scene: Scene) -> None:
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    scene.forward("b", [*TOKENS[:3], 50], 3, [*SLOTS[:3], 20])
    group, kept = next(iter(scene.watcher.ledgers)), scene.watcher.kept
    scene.watcher.freed(group, torch.tensor(SLOTS[:3]))
    kept(group, "a", torch.tensor([SLOTS[3], -1, *SLOTS[:3]]))
    kept(group, "b", torch.tensor([*SLOTS[:3], 20]))
    kept(group, "a", torch.tensor([20]), model="draft ")  # No such model has computed it.
    assert scene.checks() == []
    kept(group, "a", torch.tensor([SLOTS[3], 20, 30]))
    assert scene.checks() == ["wrong owner", "uninitialised read"]
    texts = [one["text"] for one in scene.lines("finding")]
    assert ["slot 20" in texts[0], "slot 30" in texts[1]] == [True, True]


def test_a_prefix_is_shared_while_it_is_computed(scene: Scene) -> None:
    """Each layer writes the KV of all rows before any of them reads it."""
    scene.forward("old", [1, 2, 3], 0, SLOTS)  # Whose slots were given away.
    rows = row("a", TOKENS[:3], 0, SLOTS), row("b", [*TOKENS[:3], 50], 3, [*SLOTS[:3], 20])
    scene.run(Forward("extend", rows), [*SLOTS[:3], 20])
    assert scene.checks() == []
    scene.forward("b", [*TOKENS[:3], 50, 51], 4, [*SLOTS[:3], 20, 21])
    assert scene.checks() == []
    rows = row("c", [1, 2, 3], 0, SLOTS), row("b", [*TOKENS[:3], 50], 3, [*SLOTS[:3], 20])
    scene.watcher.begin(Forward("extend", rows))  # Other tokens.
    assert scene.checks() == ["wrong owner"] * 2
    scene.watcher.abandon()


def test_a_row_reads_a_slot_of_a_ring_before_it_writes_it_again(scene: Scene) -> None:
    scene.forward("a", TOKENS[:3], 0, SLOTS)
    scene.watcher.begin(Forward("decode", (row("a", TOKENS[:4], 3, [*SLOTS[:3], SLOTS[0]]),)))
    assert scene.checks() == []
    scene.watcher.abandon()


def test_spaces_share_nothing(scene: Scene) -> None:
    scene.forward("a", TOKENS[:5], 0, SLOTS, space="adapter")
    scene.forward("b", [*TOKENS[:3], 50], 3, [*SLOTS[:3], 20], space="adapter")
    assert scene.checks() == []
    scene.forward("c", [*TOKENS[:3], 50], 3, [*SLOTS[:3], 21])
    assert set(scene.checks()) == {"wrong owner"}


def test_a_slot_that_a_forward_left_alone_is_not_taken_for_written(scene: Scene) -> None:
    scene.watcher.begin(Forward("extend", (row("a", TOKENS[:3], 0, SLOTS),)))
    scene.write(SLOTS[:2])
    scene.watcher.end()
    scene.forward("a", TOKENS[:4], 3, SLOTS)
    assert scene.checks() == ["unwritten slot"] * 2 + ["uninitialised read"] * 2
    assert "which is position 2 of request a" in scene.lines("finding")[0]["text"]


def unchanged(
    scene: Scene, name: str, tokens: list[int | None], model: str = "", **more: Any
) -> list[str]:
    """Let a request compute tokens in slots of which the last keeps its bytes.

    Returns the checks that found something when it goes on.
    """
    slots = [20, 21, *SLOTS[2:]]
    rows = [row(name, tokens[:last], first, slots, **more) for first, last in ((0, 3), (3, 4))]
    scene.run(Forward("extend", (rows[0],), model=model), slots[:2])
    scene.run(Forward("extend", (rows[1],), model=model), slots[3:4])
    return scene.checks()


UNWRITTEN = ["unwritten slot"] * 2 + ["wrong owner"] * 2


@pytest.mark.parametrize(
    ("tokens", "space", "found"),
    [
        ([5, 6, 99, 8], "", UNWRITTEN),
        ([5, 6, 99, 8], "an adapter", UNWRITTEN),
        ([5, 6, 7, 8], "", []),  # Equal tokens have equal KV.
        ([50, 60, 7, 8], "", []),  # Only the KV of the first layer is certainly equal.
        ([5, 6, 7, 8], "an adapter", []),
        ([5, 6, None, 8], "", []),
    ],
)
def test_a_slot_whose_bytes_stay_is_unwritten_if_another_token_is_computed(
    scene: Scene, tokens: list[int | None], space: str, found: list[str]
) -> None:
    """It is credited to the new tokens only if they are those that it was written for."""
    scene.forward("a", TOKENS[:3], 0, SLOTS)
    assert unchanged(scene, "b", tokens, space=space) == found


@pytest.mark.parametrize(
    ("before", "cached", "found"),
    [
        ([5, 6, 7], 4, ["stale input"]),
        ([5, 6, 99], 4, []),  # Of an earlier request with this name.
        ([5, 6, None], 4, ["stale input"]),
        ([5, 6, 7], 3, []),  # It is computed again.
    ],
)
def test_an_id_is_compared_once_the_token_of_its_request_is_known(
    before: list[int | None], cached: int, found: list[str], scene: Scene
) -> None:
    relayed = Relayed()
    relayed.add("", torch.tensor([88]), [(row("a", [*before, None], 3, SLOTS[:4]), 3, 0)])
    later = Forward("decode", (row("a", TOKENS[:5], cached, SLOTS[:5]),))
    if (known := relayed.known(later)) is not None:
        scene.watcher.begin(later)
        scene.watcher.judge_inputs("batch", [known])
        scene.watcher.end()
    assert [one for one in scene.checks() if one == "stale input"] == found


@pytest.mark.parametrize(("first", "tokens"), [(0, [5, 6, 99, 8]), (1, [4, 5, 6, 99])])
def test_equal_bytes_say_nothing_if_tokens_hardly_differ_in_theirs(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, first: int, tokens: list[int | None]
) -> None:
    """As if nearly all numbers were quantised to zero."""
    write = scene.write

    def written(slots: Any, group: str | None = None) -> None:
        write(slots, group)
        for one in scene.groups:
            for tensor in one.layers[0].tensors:
                tensor[:, 1:], tensor[:, :, 1:] = 0, 0

    monkeypatch.setattr(scene, "write", written)
    scene.forward("a", TOKENS[first : first + 3], 0, SLOTS)
    assert unchanged(scene, "b", tokens) == []


@pytest.mark.parametrize("model", ["", "draft "])
def test_a_slot_is_not_judged_if_its_token_is_not_sure(scene: Scene, model: str) -> None:
    """The request that wrote it was forgotten, or a draft model got another token."""
    scene.run(Forward("extend", (row("a", TOKENS[:3], 0, SLOTS),), model=model), SLOTS[:3])
    if not model:
        scene.watcher.chains.chains.clear()
    assert unchanged(scene, "b", [5, 6, 99, 8], model) == []


@pytest.mark.parametrize(("content", "found"), [(1.0, []), (0.0, ["unwritten slot"] * 2)])
def test_an_engine_may_warm_up_with_the_first_token_of_a_request(
    scene: Scene, content: float, found: list[str]
) -> None:
    for group in scene.groups:
        for tensor in group.layers[0].tensors:
            tensor[SLOTS[2]] = content
    scene.watcher.begin(Forward("extend", (row("a", TOKENS[:3], 0, SLOTS),)))
    scene.write(SLOTS[:2])
    scene.watcher.end()
    assert scene.checks() == found


def test_a_slot_to_spare_need_not_be_written(scene: Scene) -> None:
    whole = row("a", TOKENS[:3], 0, SLOTS)
    for spare, found in ((1, []), (0, ["unwritten slot"] * 2)):
        scene.run(Forward("decode", (replace(whole, spare=spare),)), SLOTS[:2])
        assert scene.checks() == found


def test_a_position_without_a_slot_is_found_within_the_window_alone(scene: Scene) -> None:
    scene.forward("a", TOKENS[:6], 0, SLOTS)
    evicted = {"full": SLOTS, "swa": [-1, -1, -1, *SLOTS[3:]]}
    scene.forward("a", TOKENS[:7], 6, evicted)
    assert scene.checks() == []
    evicted = {"full": SLOTS, "swa": [-1, -1, -1, -1, 0, *SLOTS[5:]]}
    scene.forward("a", TOKENS[:8], 7, evicted)
    assert scene.checks() == ["uninitialised read"]


def test_a_position_that_another_rank_stores_is_neither_read_nor_written(scene: Scene) -> None:
    mine = [slot if at % 2 else ELSEWHERE for at, slot in enumerate(SLOTS[:7])]
    scene.forward("a", TOKENS[:6], 0, mine)
    scene.forward("a", TOKENS[:7], 6, mine)
    assert scene.checks() == []
    assert scene.counts()["reads"] == 3 + 2  # Of all positions, and of the window.
    scene.forward("b", [1, 2, 3, 4, 5], 4, mine)
    assert scene.checks() == ["wrong owner"] * 2


def test_a_token_may_become_known_after_it_was_computed(scene: Scene) -> None:
    """Under overlap scheduling: the request goes on, and another shares its prefix."""
    scene.forward("a", [*TOKENS[:3], None], 0, SLOTS)
    scene.forward("a", [*TOKENS[:4], None], 4, SLOTS)
    scene.forward("a", [*TOKENS[:4], None, None], 5, SLOTS)
    scene.forward("a", TOKENS[:7], 6, SLOTS)
    scene.forward("b", TOKENS[:7], 6, [*SLOTS[:6], 20])
    assert scene.checks() == []
    assert scene.counts()["unresolved_reads"] == 0
    scene.forward("c", [*TOKENS[:5], 99, 98], 6, [*SLOTS[:6], 21])
    assert scene.checks() == ["wrong owner"] * 2
    scene.forward("d", [1, 2, 3, None], 0, [30, 31, 32, 33])  # Its last token stays unknown.
    scene.forward("e", [1, 2, 3, 4, 5], 4, [30, 31, 32, 33, 34])
    assert scene.counts()["unresolved_reads"] == 2
    assert len(scene.checks()) == 2


def test_a_copy_holds_what_its_source_holds(scene: Scene) -> None:
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    for group in scene.groups:
        for tensor in group.layers[0].tensors:
            tensor[40:43] = tensor[SLOTS[:3]]
        new = torch.arange(40, 43)
        copy = partial(scene.watcher.copied, group.name, torch.tensor(SLOTS[:3]), new)
        call_at(["one.py:1 in move"], copy)
    scene.forward("b", [*TOKENS[:3], 50], 3, [40, 41, 42, 43])
    assert scene.checks() == []
    scene.forward("c", [*TOKENS[1:4], 50], 3, [40, 41, 42, 44])
    assert set(scene.checks()) == {"wrong owner"}
    origin = scene.lines("finding")[0]["origin"]
    assert "copied from another slot before forward 2 by pretended/one.py:1, in move" in origin


def test_slots_that_were_loaded_are_taken_as_they_are_and_then_followed(scene: Scene) -> None:
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    scene.write(SLOTS)
    for group in scene.groups:
        scene.watcher.forget(group.name, torch.tensor(SLOTS))
    scene.forward("b", [1, 2, 3, 4], 3, [*SLOTS[:3], 20])
    assert scene.checks() == []
    scene.write(SLOTS[2:3])
    scene.forward("b", [1, 2, 3, 4, 5], 4, [*SLOTS[:3], 20, 21])
    assert scene.checks() == ["corrupted read"] * 2


@pytest.mark.parametrize("right", [True, False])
def test_what_a_host_pool_holds_is_known_when_it_comes_back(scene: Scene, right: bool) -> None:
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    places = torch.tensor([7, 2, 5])
    pools = {group.name: group.layers[0].tensors for group in scene.groups}
    copies = {name: [one[SLOTS[:3]].clone() for one in held] for name, held in pools.items()}
    for name in pools:
        scene.watcher.store("host", name, torch.tensor(SLOTS[:3]), places)
    scene.write(SLOTS[:3])
    order = [0, 1, 2] if right else [0, 2, 1]
    for name, held in pools.items():
        for tensor, copy in zip(held, copies[name], strict=True):
            tensor[[30, 31, 32]] = copy[order]
        scene.watcher.load("host", name, torch.tensor([30, 31, 32]), places[order])
    scene.forward("b", TOKENS[:4], 3, [30, 31, 32, 20])
    assert set(scene.checks()) == (set() if right else {"wrong owner"})


@EITHER
def test_what_comes_back_is_judged_unless_forwards_are_sampled(
    scene: Scene, found: set[str]
) -> None:
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    for group in scene.groups:
        places = torch.tensor([1, 2, 3])
        scene.watcher.store("host", group.name, torch.tensor(SLOTS[:3]), places)
        scene.watcher.load("host", group.name, torch.tensor([30, 31, 32]), places)
    scene.forward("b", TOKENS[:4], 3, [30, 31, 32, 20])
    assert set(scene.checks()) == found


def test_slots_may_be_loaded_while_a_forward_runs(scene: Scene) -> None:
    scene.watcher.forget("full", torch.tensor([20]))
    scene.forward("a", TOKENS[:2], 0, {"full": SLOTS, "swa": SLOTS})
    scene.watcher.forget("full", torch.tensor([21]))
    scene.run(Forward("extend", (row("b", [1], 0, [30]),)), {"full": [21, 30], "swa": [30]})
    assert scene.checks() == []
    scene.run(Forward("extend", (row("c", [2], 0, [31]),)), {"full": [21, 31], "swa": [31]})
    assert scene.checks() == ["stray write"]


def test_a_slot_is_freed_in_use_only_while_it_is_free(scene: Scene) -> None:
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    scene.watcher.freed("full", torch.tensor([SLOTS[1]]))
    scene.watcher.allocated("full", torch.tensor([SLOTS[1]]))
    scene.forward("a", TOKENS[:6], 5, SLOTS)
    assert scene.checks() == []
    scene.watcher.freed("full", torch.tensor([SLOTS[1]]))
    scene.forward("a", TOKENS[:7], 6, SLOTS)
    assert scene.checks() == ["freed in use"]
    assert scene.lines("finding")[0]["freed"] == {"forward": 3, "source": None, "via": None}
    scene.watcher.freed("full", torch.tensor([20, 20]))
    assert scene.checks() == ["freed in use", "double free"]


@pytest.mark.parametrize("since", [True, False])
def test_a_position_without_a_slot_names_the_free_of_the_slot_that_it_had(
    scene: Scene, since: bool
) -> None:
    scene.freed("full", SLOTS, "old.py:1 in warm_up")
    scene.watcher.allocated("full", torch.tensor(SLOTS))
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    if since:
        scene.freed("full", SLOTS[1:2], "new.py:2 in evict")
    held = {"full": [SLOTS[0], -1, *SLOTS[2:]], "swa": SLOTS}
    scene.forward("a", TOKENS[:6], 5, held)
    (found,) = scene.lines("finding")
    assert found["check"] == "uninitialised read"
    assert found["origin"] == f"position 1 had slot {SLOTS[1]} in forward 1"
    assert found["freed"] == (
        {"forward": 2, "source": "pretended/new.py:2", "via": "in evict"} if since else None
    )


@pytest.mark.parametrize("since", [True, False])
def test_a_wrong_owner_names_no_free_from_an_older_life_of_the_slot(
    scene: Scene, since: bool
) -> None:
    """The free that led to it comes after the reader's KV was written there.

    Without it, two requests have the slot at once, and an older free says nothing of them.
    """
    for group in ("full", "swa"):
        scene.freed(group, SLOTS, "old.py:1 in warm_up")
        scene.watcher.allocated(group, torch.tensor(SLOTS))
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    if since:
        for group in ("full", "swa"):
            scene.freed(group, SLOTS[4:5], "new.py:2 in finish")
            scene.watcher.allocated(group, torch.tensor(SLOTS[4:5]))
    scene.forward("b", [1], 0, SLOTS[4:5])
    scene.forward("a", TOKENS[:6], 5, SLOTS)
    freed = {found["freed"] and found["freed"]["source"] for found in scene.lines("finding")}
    assert set(scene.checks()) == {"wrong owner"}
    assert freed == {"pretended/new.py:2" if since else None}


def test_a_leaked_slot_names_the_lines_that_allocated_it_and_freed_others(scene: Scene) -> None:
    scene.allocated("full", SLOTS[:5], "one.py:1 in take", "two.py:2 in plan")
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    scene.freed("full", SLOTS[1:5], "five.py:5 in release")
    none = torch.empty(0, dtype=torch.int64)
    scene.watcher.idle({"full": (torch.tensor(SLOTS[1:]), none)})
    (found,) = scene.lines("finding")
    assert found["writer"]["request"] == "a"
    assert found["origin"].split("; ") == [
        "allocated before forward 1 by pretended/one.py:1, in take",
        "called at two.py:2 in plan",
        "other slots of the request were freed before forward 2 by pretended/five.py:5, in release",
    ]


def test_a_double_free_names_both_lines(scene: Scene) -> None:
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    scene.freed("full", SLOTS[:1], "one.py:1 in finish")
    scene.freed("full", SLOTS[:1], "two.py:2 in evict", "three.py:3 in plan")
    assert scene.checks() == ["double free"]
    (found,) = scene.lines("finding")
    assert found["freed"]["source"] == "pretended/one.py:1"
    again = "before forward 2 by pretended/two.py:2, in evict; called at three.py:3 in plan"
    assert found["origin"] == f"freed again {again}"


def test_a_leak_is_a_slot_that_was_used_and_is_neither_free_nor_cached(scene: Scene) -> None:
    def idle(free: list[int], cached: list[int]) -> None:
        scene.watcher.idle({"full": (torch.tensor(free), torch.tensor(cached))})

    scene.watcher.skipped(None)
    scene.forward("a", TOKENS[:3], 0, SLOTS)
    idle([5, 6, 7], [3, 4])
    assert scene.checks() == []
    idle([6, 7], [3, 4])
    idle([5, 4], [3, 4])
    assert scene.checks() == ["leak"] * 2


@pytest.mark.parametrize(
    ("after", "peer", "found"),
    [
        ((), None, ["leak"]),
        ((), "a peer reads KV", []),
        (("freed",), None, []),
        (("freed", "allocated"), None, []),  # Another request has it, and has not written it yet.
        (("shared",), None, []),
    ],
)
def test_a_slot_that_a_window_left_is_free_unless_something_else_needs_it(
    scene: Scene, after: tuple[str, ...], peer: str | None, found: list[str]
) -> None:
    scene.watcher.copied_elsewhere = peer
    scene.watcher.allocated("swa", torch.tensor(SLOTS))
    for first, last in ((0, 5), (5, 6), (6, 7), (7, 8)):
        one = replace(row("a", TOKENS[:last], first, SLOTS), frees=True)
        scene.run(Forward("decode", (one,)), SLOTS[first:last])
        for what in after if last == 6 else ():
            getattr(scene.watcher, what)("swa", torch.tensor(SLOTS[:2]))
    assert scene.checks() == found


@pytest.mark.parametrize(("last", "found"), [(7, []), (8, ["leak"])])
def test_a_slot_of_an_earlier_chunk_is_free(scene: Scene, last: int, found: list[str]) -> None:
    """The chunk of position 5 begins with position 4."""
    scene.watcher.allocated("swa", torch.tensor(SLOTS))
    for first, end in ((0, 5), *((at, at + 1) for at in range(5, last))):
        one = row("a", TOKENS[:end], first, {"swa": SLOTS})
        one = replace(one, window=Chunks(4), frees=True)
        scene.run(Forward("decode", (one,)), {"swa": SLOTS[first:end]})
    assert scene.checks() == found
    assert not found or scene.lines("finding")[0]["slots"] == SLOTS[:4]


def test_a_slot_that_a_window_left_may_be_given_to_its_request_again(scene: Scene) -> None:
    """A table goes on naming it for the position that it had first."""
    slots = [*SLOTS[:5], SLOTS[0], *SLOTS[5:8]]
    scene.watcher.allocated("swa", torch.tensor(SLOTS))
    for first, last in ((0, 5), (5, 6), (6, 7), (7, 8), (8, 9)):
        one = replace(row("a", [*TOKENS, 13][:last], first, {"swa": slots}), frees=True)
        scene.run(Forward("decode", (one,)), {"swa": slots[first:last]})
        scene.watcher.freed("swa", torch.tensor(SLOTS[max(0, last - 4) : last - 3]))
        if last == 5:
            scene.watcher.freed("swa", torch.tensor(SLOTS[:1]))
            scene.watcher.allocated("swa", torch.tensor(SLOTS[:1]))
    assert scene.checks() == []


@EITHER
def test_sampling_does_not_judge_what_slots_held_that_were_allocated_meanwhile(
    scene: Scene, found: set[str]
) -> None:
    """A forward that was not checked may have written them."""
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    for group in ("full", "swa"):
        scene.watcher.freed(group, torch.tensor(SLOTS[4:5]))
        scene.watcher.allocated(group, torch.tensor(SLOTS[4:5]))
    scene.write(SLOTS[4:5])
    scene.watcher.skipped({})
    scene.forward("a", TOKENS[:6], 5, SLOTS)
    assert set(scene.checks()) == found


@SAMPLED
def test_sampling_follows_the_writes_of_skipped_forwards(scene: Scene) -> None:
    due = [scene.watcher.due() for _ in range(3000)]
    assert due[0]
    assert 900 < sum(due) < 1100
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    scene.write(SLOTS[5:6])
    scene.watcher.skipped({"full": torch.tensor(SLOTS[5:6]), "swa": torch.tensor(SLOTS[5:6])})
    scene.forward("a", TOKENS[:7], 6, SLOTS)
    assert scene.checks() == []
    scene.write(SLOTS[5:6])
    scene.forward("a", TOKENS[:8], 7, SLOTS)
    assert scene.checks() == ["corrupted read"] * 2
    scene.write(SLOTS)
    scene.watcher.skipped(None)
    scene.forward("a", [*TOKENS, 13], 8, [*SLOTS, 11])
    assert len(scene.checks()) == 2


@SAMPLED
@pytest.mark.parametrize("same", [True, False])
def test_rows_that_share_a_slot_are_compared_if_its_content_is_unknown(
    scene: Scene, same: bool
) -> None:
    """At most one of several rows reads a slot for the right tokens."""
    tokens = [*TOKENS[:3], 8] if same else [5, 6, 70, 8]
    pair = (("a", [*TOKENS[:3], 9], 10), ("b", tokens, 11))
    rows = tuple(row(name, ids, 3, [*SLOTS[:3], slot]) for name, ids, slot in pair)
    scene.run(Forward("decode", rows), {"full": [10, 11], "swa": [10, 11]})
    assert scene.checks() == ([] if same else ["wrong owner"] * 2)
    assert scene.counts()["tried: wrong owner"] == (0 if same else 2)


def test_forwards_of_a_draft_model_may_name_what_they_own_alone(scene: Scene) -> None:
    """Who writes these slots, and for which position, is then unknown."""
    scene.forward("a", TOKENS[:4], 0, SLOTS)
    owned = {"full": torch.tensor([5, 6, -1])}
    scene.run(Forward("draft", (), owned), {"full": [5, 6]})
    assert scene.checks() == []
    assert [bool(scene.watcher.ledgers["full"].writer(slot)) for slot in (4, 5)] == [True, False]
    scene.run(Forward("draft", (), owned), {"full": [5, 7]})
    assert scene.checks() == ["stray write"]


def test_a_value_of_rows_that_is_not_judged_is_counted_as_not_tried(scene: Scene) -> None:
    none = torch.empty(0)
    given = [RowValues("penalties", ["a", "b"], none, none, untried="drafts")]
    scene.watcher.judge_rows("sampler", given)
    scene.watcher.judge_rows("sampler", given)
    assert scene.counts()["not tried: wrong row: penalties: drafts"] == 4
    assert scene.counts()["tried: wrong row"] == 0


def listed(entries: list[int], padded: int = 0, group: str = "full", **more: Any) -> IndexList:
    """Return a list of a live row, and of padded rows with one entry each."""
    counts = torch.tensor([len(entries) - padded] + [1] * padded)
    offsets = counts.cumsum(0) - counts
    return IndexList("kv_indices", group, torch.tensor(entries), offsets, counts, **more)


PAGES = [16, 17, 18, 19, 8, 9, 10, 11]

LISTS: list[tuple[list[int], IndexList, list[int] | None]] = [
    (SLOTS, listed(SLOTS[:7]), None),
    (SLOTS, listed([*SLOTS[:6], 40]), SLOTS[6:7]),
    (SLOTS, listed(SLOTS[1:7]), []),
    (SLOTS, listed([*SLOTS[1::-1], *SLOTS[2:7]]), SLOTS[:2]),
    (SLOTS, listed(SLOTS[:6], computed=0), None),
    (SLOTS, replace(listed(SLOTS[:7]), entries=torch.tensor(SLOTS[:5])), []),
    ([-1, *SLOTS[1:]], listed([0, *SLOTS[1:7]]), None),
    (SLOTS, listed(SLOTS[3:7], group="swa"), None),
    (SLOTS, listed(SLOTS[2:7], group="swa"), []),
    (SLOTS, listed(SLOTS[2:7], group="swa", exact=False), None),
    (SLOTS, listed(SLOTS[4:7], group="swa", exact=False), []),
    (SLOTS, listed(SLOTS[4:7], group="swa", window=3), None),
    (SLOTS, listed(SLOTS[4:7], group="swa", window=Chunks(4)), None),
    (SLOTS, listed(SLOTS[3:7], group="swa", window=Chunks(4)), []),
    (SLOTS, listed(SLOTS[:7], group="swa", window=Chunks(8)), None),
    (SLOTS, listed([*SLOTS[:7], 0], padded=1), None),
    (SLOTS, listed([*SLOTS[:7], 1], padded=1), [1]),
    (PAGES, listed([4, 2], page=4), None),
    (PAGES, listed([4, 3], page=4), [8, 9, 10]),
    (PAGES, listed([4], page=4), []),
    (PAGES, listed([4, 2, 1], page=4), []),
    (PAGES, listed([2], page=4, window=2), None),
    (PAGES, listed([4, 2, 0], page=4, padded=1), None),
    (PAGES, listed([4, 2, 1], page=4, padded=1), [4]),
]


@pytest.mark.parametrize(("slots", "given", "wrong"), LISTS)
def test_a_list_names_the_slots_of_its_row_within_the_window(
    scene: Scene, slots: list[int], given: IndexList, wrong: list[int] | None
) -> None:
    """Padded rows follow, and name reserved slots or pages only."""
    scene.forward("a", TOKENS[:6], 0, slots)
    scene.watcher.begin(Forward("decode", (row("a", TOKENS[:7], 6, slots),)))
    scene.watcher.lines.of = lambda *_: ("b.py:7", "in build")  # type: ignore[method-assign]
    scene.watcher.judge_lists([given])
    found = [one for one in scene.lines("finding") if one["check"] == "wrong list"]
    assert [one["slots"] for one in found] == ([] if wrong is None else [wrong])
    assert all(one["cause"]["source"] == "b.py:7" for one in found)


def test_ids_that_a_request_does_not_keep_are_not_compared(scene: Scene) -> None:
    rows = (row("a", TOKENS[:2], 0, SLOTS), row("b", [1, None], 0, [20, 21]))
    scene.run(Forward("draft extend", rows, model="draft "), ids=[5, 99, 1, 99], judged=[1, 1])
    after = (row("b", [1, 2, 3], 2, [20, 21, 22]),)
    scene.watcher.begin(Forward("draft extend", after, model="draft "))
    assert "stale input" not in scene.checks()


@pytest.mark.parametrize(
    ("held", "found"),
    [
        ([1.0, float("nan"), 0.0], []),
        ([1.0, float("nan"), -0.0], []),
        ([1.0, 2.0, 0.0], ["stale input"]),
        ([float("nan"), float("nan"), 0.0], ["stale input"]),
    ],
)
def test_inputs_that_are_no_numbers_are_compared_by_their_bits(
    scene: Scene, held: list[float], found: list[str]
) -> None:
    scene.watcher.begin(Forward("decode", (row("a", TOKENS[:1], 0, SLOTS),)))
    expected = torch.tensor([1.0, float("nan"), 0.0])
    scene.watcher.judge_inputs(
        "batch", [StaticInput("x", torch.tensor(held), 3, 3, expected=expected)]
    )
    scene.write(SLOTS[:1])
    scene.watcher.end()
    assert scene.checks() == found


def test_an_id_is_compared_once_its_token_is_known(scene: Scene) -> None:
    def step(tokens: list[int | None], given: int) -> None:
        cached = len(tokens) - 1
        scene.run(
            Forward("decode", (row("a", tokens, cached, SLOTS),)),
            SLOTS[cached : cached + 1],
            ids=[given],
        )

    step([5], 5)
    step([5, None], 6)
    step([5, 6, None], 7)
    assert scene.checks() == []
    scene.watcher.lines.of = lambda *_: ("b.py:7", "in build")  # type: ignore[method-assign]
    step([5, 6, 8, None], 9)
    assert scene.checks() == ["stale input"]
    (found,) = scene.lines("finding")
    assert "holds 7 at live entry 0, not 8" in found["text"]
    assert found["cause"]["source"] == "b.py:7"


def test_an_id_at_a_position_that_is_computed_again_is_dropped(scene: Scene) -> None:
    """As when a request is retracted before the host knows its last token."""
    scene.run(Forward("decode", (row("a", [5, None], 1, SLOTS),)), ids=[6])
    scene.run(Forward("extend", (row("a", [5, None], 0, SLOTS),)), ids=[5, 7])
    scene.watcher.begin(Forward("decode", (row("a", [5, 7, None], 2, SLOTS),)))
    assert "stale input" not in scene.checks()


def replay(scene: Scene, slot: int, out: torch.Tensor, **more: Any) -> Replay:
    """Return a replay that writes 1.0 to a slot and adds 1 to an output that it owns."""
    tensor = scene.groups[0].layers[0].tensors[0]

    def run() -> str:
        tensor[slot] = 1.0
        out.copy_(tensor[slot].sum() + 1)
        return "result"

    return Replay("graph", "decode", 1, 2, [], run, lambda: {"out": out}, **more)


def test_an_error_of_the_sanitizer_leaves_the_engines_result_alone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> None:
        raise RuntimeError("a defect")

    out = torch.zeros(())
    monkeypatch.setattr(scene.watcher, "judge_tried", fail)
    scene.watcher.begin(Forward("decode", (row("a", TOKENS[:1], 0, SLOTS),)))
    assert scene.watcher.replay(replay(scene, SLOTS[0], out)) == "result"
    assert not scene.watcher.watching
    scene.watcher.end()
    assert out == 9
    (line,) = scene.lines("undecided")
    assert "RuntimeError: a defect" in line["what"]
    assert "/" not in line["what"]


@pytest.mark.parametrize(("slot", "found"), [(SLOTS[0], []), (SLOTS[4], ["unwritten slot"])])
def test_a_replay_may_write_what_its_slot_holds(scene: Scene, slot: int, found: list[str]) -> None:
    """As where a padded row wrote it before, at another position."""
    held = scene.groups[0].layers[0].tensors[0]
    held[SLOTS[4]] = 1.0
    scene.watcher.begin(Forward("extend", (row("b", TOKENS[:2], 0, {"full": [30, SLOTS[0]]}),)))
    scene.write([30], "full")
    held[SLOTS[0]] = 1.0
    scene.watcher.end()
    scene.watcher.begin(Forward("decode", (row("a", TOKENS[:1], 0, {"full": SLOTS}),)))
    scene.watcher.replay(replay(scene, slot, torch.zeros(())))
    scene.watcher.end()
    assert scene.checks() == found


Parts = tuple[int, ...]
"""The numbers of tensors."""


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize(
    ("before", "now", "known", "model", "found"),
    [
        ((0, 1), (0, 1), (), "", []),
        ((0, 1), (0,), (), "", ["unwritten slot"]),
        ((0, 1), (1,), (), "", ["unwritten slot"]),
        ((0, 1), (0, 1), (1,), "", []),  # It writes what the slot holds.
        ((0, 1), (0,), (1,), "", ["unwritten slot"]),
        ((0,), (0,), (), "", []),  # No row has written the tensor.
        ((0, 1), (0,), (), "draft ", []),
    ],
)
def test_a_forward_writes_each_tensor_of_its_slots(
    scene: Scene, before: Parts, now: Parts, known: Parts, model: str, found: list[str], graph: bool
) -> None:
    """The bytes of those that are `known` stay as they are."""
    tensors, out = scene.groups[0].layers[0].tensors, torch.zeros(())
    for at in known:
        tensors[at][SLOTS[1]] = 1.0

    def step(request: str, slot: int, parts: Parts) -> None:
        def run() -> str:
            for at in parts:
                tensors[at][slot] = 1.0
            return "result"

        mine = row(request, [slot], 0, {"full": [slot]})
        forward = Forward("decode", (mine,), model=model)
        step = Replay("graph", "decode", 1, 1, [], run, lambda: {"out": out})
        scene.watcher.begin(forward)
        if graph:
            scene.watcher.replay(step)
        else:
            scene.watcher.run_without_graph(step, lambda: True)
        scene.watcher.end()

    step("a", SLOTS[0], before)
    step("b", SLOTS[1], now)
    assert scene.checks() == found
    if found:
        (line,) = scene.lines("finding")
        missing = next(at for at in before if at not in now)
        assert f"did not write tensor {missing} of 0 in slot {SLOTS[1]} (full)" in line["text"]


def test_a_state_is_not_judged_by_its_tensors(scene: Scene) -> None:
    """What a forward reads and replaces may be undefined if it holds other bytes."""
    first, other = scene.groups[0].layers[0].tensors
    for at, cached in enumerate((0, 0, 1)):
        rows = (row(f"r{at > 0}", TOKENS[:2][: cached + 1], cached, {"full": [SLOTS[at > 0]] * 2}),)

        def run(at: int = at) -> None:
            first[SLOTS[at > 0]] = float(at + 1)
            if at < 2:
                other[SLOTS[at > 0]] = 1.0

        scene.watcher.begin(Forward("decode", rows))
        step = Replay("graph", "decode", 1, 1, [], run, lambda: {"out": torch.zeros(())})
        scene.watcher.replay(step)
        scene.watcher.end()
    assert "unwritten slot" not in scene.checks()


@pytest.mark.parametrize("scene", [{"checks": ("corrupted read",)}], indirect=True)
def test_only_the_named_checks_run(scene: Scene, tmp_path: Path) -> None:
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    scene.forward("b", [1, 2], 0, [20, 21], stray=[SLOTS[4]])
    scene.forward("a", TOKENS[:6], 5, SLOTS)
    assert set(scene.checks()) == {"corrupted read"}
    with pytest.raises(ValueError, match="no check is named 'corupted'"):
        Scene(tmp_path, checks=("corupted",))


def test_a_slot_that_something_else_changed_may_hold_what_a_forward_writes(scene: Scene) -> None:
    """A block that is restored or copied may bring the same bytes in a part that is not in use."""
    scene.forward("a", TOKENS[:3], 0, SLOTS)
    scene.write(SLOTS[:3])
    assert unchanged(scene, "b", [5, 6, 99, 8]) == []


def test_branches_of_a_tree_of_draft_tokens_share_slots(scene: Scene) -> None:
    scene.forward("a", TOKENS[:3], 0, SLOTS)
    one = row("a", [*TOKENS[:3], 20, 21], 3, [*SLOTS[:3], 30, 31])
    other = row("a", [*TOKENS[:3], 20, 22], 3, [*SLOTS[:3], 30, 32])
    scene.run(Forward("verify", (one, other)), [30, 31, 32])
    scene.forward("a", [*TOKENS[:3], 20, 22, 23], 5, [*SLOTS[:3], 30, 32, 33])
    assert scene.checks() == []


def test_a_shared_slot_names_the_line_that_shared_it(scene: Scene) -> None:
    scene.allocated("full", SLOTS, "one.py:1 in take")
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    share = partial(scene.watcher.shared, "full", torch.tensor(SLOTS[:2]))
    call_at(["two.py:2 in fork"], share)
    scene.forward("b", [1, 2, 3], 2, [*SLOTS[:2], 20])
    found = next(one for one in scene.lines("finding") if one["group"] == "full")
    assert "shared before forward 2 by pretended/two.py:2, in fork" in found["origin"]
