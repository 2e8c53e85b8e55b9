"""Transfers of KV between prefill and decode: what each side reports, and what crosses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from paritybit.connectors.sampling import row_sums
from paritybit.connectors.sglang.engine import SglangEngine
from paritybit.connectors.sglang.transfers import FAILED, SUCCESS, TAG
from properties.connectors.parts import Part, hooked
from properties.support.watching import Scene

TOKENS = [5, 6, 7, 8, 9]
THERE, HERE = [3, 4, 5, 6, 7], [13, 10, 11, 12, 14]
WINDOW = 3
ROOM, FIRST = 7, 2


class Side:
    """A connector in an engine for prefill or for decode, and the messages for its thread."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.scene = Scene(folder)
        self.engine = SglangEngine("0", self.scene.journal, self.scene.settings)
        self.engine.watcher, self.engine.apart = self.scene.watcher, True
        names = {True: "swa", False: "full"}
        self.engine.pool = Part(group_of=lambda sliding: names[sliding], sliding="swa")  # type: ignore[assignment]
        self.messages = list[list[bytes]]()
        self.manager = Part(
            kv_args=Part(page_size=1, state_types=["swa"]),
            transfer_infos={ROOM: {"peer": Part(endpoint="h", dst_port=1)}},
        )
        self.receive = hooked(self.engine.receives, lambda *_: self.next, self.manager)

    def next(self) -> list[bytes] | None:
        """Return the next message."""
        return self.messages.pop(0) if self.messages else None


class Pair:
    """An engine for prefill that has computed a prompt, and one for decode that awaits it."""

    def __init__(self, folder: Path, watched: bool = True) -> None:
        self.prefill, self.decode = Side(folder / "prefill"), Side(folder / "decode")
        to = self.decode.messages
        self.prefill.manager._send_multipart_locked = lambda _, parts: to.append(parts)
        if watched:
            given = self.decode.engine, [b"None", b"h", b"1"]
            message = hooked(given[0].registers, lambda *_: given[1], self.decode.manager)
            self.prefill.messages.append(message)
            assert self.prefill.receive() == [b"None", b"h", b"1", TAG]
        self.buffers = Part()
        self.request = Part(rid="a", bootstrap_room=ROOM, output_ids=[FIRST], finished_reason=None)
        self.sender = Part(
            kv_mgr=self.prefill.manager, bootstrap_room=ROOM, conclude_state=None, curr_idx=0
        )
        self.receiver = Part(kv_mgr=self.decode.manager, bootstrap_room=ROOM)
        self.prefill.scene.forward("a", TOKENS, 0, THERE)
        self.decode.scene.forward("z", [1], 0, [20])
        window = HERE[-WINDOW:]
        hooked(self.decode.engine.expects, lambda *_: None, self.receiver, HERE, 0, [window])

    def send(self, pages: list[int], window: list[int] | None = None) -> None:
        """Send pages, and move their bytes to where the other engine awaits them."""
        engine = self.prefill.engine
        if window is not None:
            hooked(engine.keeps_first, lambda *_: None, self.buffers, self.request)
        states = None if window is None else [window]
        hooked(engine.sends, lambda *_: None, self.sender, pages, states)
        start = self.sender.curr_idx
        self.move("full", pages, HERE[start:][: len(pages)])
        self.move("swa", window or [], HERE[-WINDOW:][: len(window or [])])
        self.sender.curr_idx += len(pages)

    def move(self, name: str, source: list[int], target: list[int]) -> None:
        """Move the bytes of slots of a group."""
        scenes = self.prefill.scene, self.decode.scene
        there, here = (one.groups[name == "swa"].layers[0].tensors for one in scenes)
        for to, given in zip(here, there, strict=True):
            to[target] = given[source]

    def commit(
        self, first: int = FIRST, reason: str | None = None, states: torch.Tensor | None = None
    ) -> Part:
        """Let the engine for decode take what was sent. Returns its request."""
        request = Part(rid="a", bootstrap_room=ROOM, output_ids=[], finished_reason=None)

        def committed(*_: Any) -> None:
            request.output_ids.append(first)
            request.finished_reason = reason
            request.hidden_states_tensor = states

        while self.decode.receive() is not None:
            pass
        hooked(self.decode.engine.commits, committed, Part(), Part(req=request))
        return request

    def read(self, slots: list[int] = HERE) -> None:
        """Decode a token after the prompt."""
        self.decode.scene.forward("a", [*TOKENS, FIRST], len(TOKENS), [*slots, 30])


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Return both engines."""
    made = Pair(tmp_path)
    yield made
    for one in (made.prefill, made.decode):
        one.scene.close()


def test_what_is_sent_in_chunks_may_be_read(pair: Pair) -> None:
    pair.send(THERE[:2])
    pair.send(THERE[2:], THERE[-WINDOW:])
    hooked(pair.prefill.engine.sees_end, lambda *_: SUCCESS, pair.sender)
    pair.commit()
    pair.read()
    assert pair.decode.scene.checks() == pair.prefill.scene.checks() == []
    assert pair.decode.scene.counts()["copied_reads"] > 0
    assert pair.prefill.scene.counts()["copies finished"] == 2


@pytest.mark.parametrize(
    ("chunks", "found"),
    [
        ([THERE[:2], [5, 6, 6]], ["wrong owner"]),
        ([THERE[:2], THERE[2:4]], ["uninitialised read"]),
    ],
)
def test_pages_that_are_not_the_awaited_ones_are_found(
    chunks: list[list[int]], found: list[str], pair: Pair
) -> None:
    pair.send(chunks[0])
    pair.send(chunks[1], THERE[-WINDOW:])
    pair.commit()
    pair.read()
    assert pair.decode.scene.checks() == found


def test_a_window_from_other_slots_is_found(pair: Pair) -> None:
    pair.send(THERE, [3, 4, 5])
    pair.commit()
    pair.read()
    assert pair.decode.scene.checks() == ["wrong owner"]


def test_the_first_token_is_that_of_the_request(pair: Pair) -> None:
    pair.send(THERE, THERE[-WINDOW:])
    pair.commit(first=FIRST + 1)
    assert pair.decode.scene.checks() == ["wrong row"]


def test_the_metadata_of_another_request_is_an_error(pair: Pair) -> None:
    pair.send(THERE, THERE[-WINDOW:])
    pair.commit(reason="corruption")
    assert pair.decode.scene.checks() == ["engine error"]


@pytest.mark.parametrize(
    ("dtype", "retractions", "known"),
    [(torch.float32, 0, True), (torch.float16, 0, False), (torch.float32, 1, False)],
)
def test_drafts_begin_with_what_the_other_engine_returned_last(
    dtype: torch.dtype, retractions: int, known: bool, pair: Pair
) -> None:
    """A buffer may round it. The engine has no other for a request that was retracted since."""
    there, here = (side.engine.draft_states for side in (pair.prefill, pair.decode))
    there.returned["a"], here.returned["a"] = ((1, torch.tensor([5, at])) for at in (6, 7))
    pair.request.hidden_states_tensor = torch.zeros(1)
    pair.buffers.output_hidden_states = torch.zeros(1, 1, dtype=dtype)
    pair.send(THERE, THERE[-WINDOW:])
    pair.commit()
    one = Part(rid="a", retraction_count=retractions)
    hooked(pair.decode.engine.begins, lambda *_: None, Part(reqs=[one]))
    assert here.last("a") == (6 if known else None)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("fault", [None, "buffer", "other"])
def test_a_request_begins_to_draft_with_the_hidden_states_that_were_sent(
    again: bool, fault: str | None, pair: Pair
) -> None:
    """The buffer belongs to another request by then. The engine may have found newer states."""
    states = torch.randn(1, 3)
    sums = row_sums(states).tolist()
    pair.prefill.engine.draft_states.returned["a"] = 0, torch.tensor(sums)
    pair.request.hidden_states_tensor = states[0]
    pair.buffers.output_hidden_states = buffer = states.clone()
    pair.send(THERE, THERE[-WINDOW:])
    request = pair.commit(states=buffer[0] if fault == "buffer" else buffer[0].clone())
    buffer.zero_()
    if fault == "other":
        request.hidden_states_tensor = buffer[0]
    request.retraction_count = int(again)
    hooked(pair.decode.engine.begins, lambda *_: None, Part(reqs=[request]))
    assert pair.decode.scene.checks() == ["wrong row"] * (fault == "buffer")


@pytest.mark.parametrize("waits", [False, True])
def test_a_failed_transfer_ends_when_the_engine_knows_of_it(waits: bool, pair: Pair) -> None:
    pair.send(THERE[:2])
    given = Part(req=Part(bootstrap_room=ROOM))
    if waits:
        hooked(pair.decode.engine.releases, lambda *_: None, Part(), given)
    pair.decode.scene.forward("b", [4], 0, [HERE[0]])
    assert pair.decode.scene.checks() == ([] if waits else ["copy under way"])
    if waits:
        pair.read([HERE[1], *HERE[1:]])
        assert "uninitialised read" in pair.decode.scene.checks()


@pytest.mark.parametrize("result", [None, FAILED, SUCCESS])
def test_pages_may_be_written_once_the_engine_saw_the_end(result: int | None, pair: Pair) -> None:
    pair.send(THERE, THERE[-WINDOW:])
    hooked(pair.prefill.engine.sees_end, lambda *_: result, pair.sender)
    pair.prefill.scene.forward("b", [4], 0, {"full": [THERE[1]]})
    assert pair.prefill.scene.checks() == (["copy under way"] if result is None else [])


def test_an_engine_that_is_not_watched_gets_no_message(tmp_path: Path) -> None:
    made = Pair(tmp_path, watched=False)
    made.send(THERE, THERE[-WINDOW:])
    assert made.decode.messages == []
    made.commit()
    made.read()
    assert made.decode.scene.lines("finding") == []
    assert "not watched" in made.decode.scene.lines("undecided")[0]["what"]
    for one in (made.prefill, made.decode):
        one.scene.close()


def test_buffers_and_transfers_that_are_left_are_leaks(pair: Pair) -> None:
    buffers = Part(size=3, free_slots=[0, 2])
    pair.decode.engine.follow_transfers(Part(req_to_metadata_buffer_idx_allocator=buffers))
    hosts = pair.decode.engine.on_host(Part())
    pair.decode.scene.watcher.idle({}, hosts=hosts)
    texts = [line["text"] for line in pair.decode.scene.lines("finding")]
    assert any("slot 1 (metadata buffers) is neither free" in text for text in texts)
    assert sum("has not ended" in text for text in texts) == 2


@pytest.mark.parametrize("entries", [0, 2])
def test_kv_of_drafts_comes_in_the_slots_of_their_target(pair: Pair, entries: int) -> None:
    engine, manager = pair.decode.engine, pair.decode.manager
    own: Any = Part(drafts=True, pool=Part(group_of=lambda sliding: "draft.full"))
    engine.models[0], manager.kv_args.num_draft_entries = own, entries
    found = {name: one.tolist() for name, one in engine.slots_of(manager, [3, 4], [[4]]).items()}
    drafts = {"draft.full": [3, 4]} if entries else {}
    assert found == {"full": [3, 4], "swa": [4], **drafts}
