"""An engine that leaves its requests waiting is told from one that serves them."""

import os
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from paritybit.drive.answers import Answer
from paritybit.drive.configs import LackingError
from paritybit.drive.engine import MOST_POLLS, EngineFailedError, Player, StalledError
from paritybit.drive.script import Part, Planned, Sampling, Wave
from paritybit.drive.sglang.serving import TREE, UNIFIED, Sglang
from paritybit.drive.sglang.settings import SglangServed


@pytest.mark.parametrize(("ran", "waiting", "fails"), [(0, 2, True), (1, 2, False), (0, 0, False)])
def test_an_engine_that_serves_nobody_who_waits_has_stalled(
    ran: int, waiting: int, fails: bool
) -> None:
    engine = Sglang(SglangServed("gemma4"))
    engine._scheduler = SimpleNamespace(forward_ct=7)
    engine.player = SimpleNamespace(open=waiting, poll=lambda: ["polled"])  # type: ignore[assignment]
    for _ in range(MOST_POLLS):
        assert engine._poll() == ["polled"]
    engine._scheduler.forward_ct += ran
    if fails:
        with pytest.raises(StalledError, match="2 requests wait"):
            engine._poll()
    else:
        assert engine._poll() == ["polled"]


def test_an_engine_in_which_a_request_waits_for_its_grammar_is_not_at_rest() -> None:
    engine, grammars = Sglang(SglangServed("gemma4")), SimpleNamespace(grammar_queue=["a request"])
    engine._scheduler = SimpleNamespace(
        is_fully_idle=lambda: False, grammar_manager=grammars, tree_cache=SimpleNamespace()
    )
    assert not engine.at_rest()
    grammars.grammar_queue = []
    assert engine.at_rest()


@pytest.mark.parametrize(
    ("host_cache", "said", "lacking"),
    [
        (True, "HiRadixCache only supports MHA and MLA", True),
        (True, "Not enough host memory available", True),
        (False, "HiRadixCache only supports MHA and MLA", False),
        (True, "another error", False),
    ],
)
def test_a_release_that_keeps_no_windows_on_the_host_lacks_the_setting(
    monkeypatch: pytest.MonkeyPatch, host_cache: bool, said: str, lacking: bool
) -> None:
    def start(server_args: object, port_args: object, pipe_writer: object, **ranks: object) -> None:
        raise EngineFailedError(said)

    scheduler = SimpleNamespace(run_scheduler_process=start)
    ports = SimpleNamespace(PortArgs=SimpleNamespace(init_new=lambda arguments: None))
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.scheduler", scheduler)
    monkeypatch.setitem(sys.modules, "sglang.srt.server_args", ports)
    monkeypatch.setattr(Sglang, "_settle", lambda *given: None)
    monkeypatch.setattr(Sglang, "_intercept", lambda *given: None)
    with pytest.raises(LackingError if lacking else EngineFailedError):
        Sglang(SglangServed("gemma4", host_cache=host_cache)).start(lambda plays: None)


@pytest.mark.parametrize("python", [False, True])
def test_only_a_row_with_the_tree_in_python_chooses_a_tree(
    python: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some releases have no tree in Rust, and refuse to start with it. Older ones have two."""
    environment = dict[str, str]()
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr("importlib.import_module", lambda name: None)
    with pytest.raises(AttributeError):  # There is no engine.
        Sglang(SglangServed(python_tree=python)).start(lambda plays: None)
    assert environment == ({TREE: "python", UNIFIED: "1"} if python else {})


class Handle(NamedTuple):
    """A request of a fetch, as newer releases name it."""

    rid: str


def test_kv_moves_that_a_request_fetches_or_awaits_or_whose_node_is_copied() -> None:
    engine, slots = Sglang(SglangServed(host_cache=True)), object()
    fetches = {"a": (0, 0, slots, 0), Handle("b"): (0, 0, slots, 0), Handle("c"): (0, 0, None, 0)}
    nodes = {"d": 7, "e": SimpleNamespace(id=8), "f": 9, "g": None}
    requests = [SimpleNamespace(rid=name, last_node=node) for name, node in nodes.items()]
    engine._scheduler = SimpleNamespace(
        tree_cache=SimpleNamespace(
            ongoing_prefetch=fetches, ongoing_load_back={7: 0}, ongoing_write_through={8: 0}
        ),
        running_batch=SimpleNamespace(reqs=requests[:2]),
        last_batch=SimpleNamespace(reqs=requests[2:]),
        disagg_decode_transfer_queue=SimpleNamespace(
            queue=[SimpleNamespace(req=SimpleNamespace(rid="h"))]
        ),
        disagg_decode_prealloc_queue=SimpleNamespace(retracted_queue=[SimpleNamespace(rid="i")]),
    )
    assert [name for name in "abcdefghij" if engine.moves(name)] == ["a", "b", "d", "e", "h", "i"]
    assert engine.moves("h") != engine.moves("i")


class Structures:
    """The requests of sglang about sessions, as their fields."""

    __file__ = "sglang/srt/managers/io_struct.py"

    def __getattr__(self, name: str) -> Any:
        return lambda **given: (name.removesuffix("SessionReqInput"), *given.values())


@pytest.mark.parametrize(
    ("held", "retracted", "stays"), [("a", 1, True), ("a", 0, False), ("b", 1, False)]
)
def test_a_session_may_keep_an_aborted_turn_that_was_retracted(
    held: str, retracted: int, stays: bool
) -> None:
    engine = Sglang(SglangServed(sessions=True))
    node = SimpleNamespace(req=SimpleNamespace(retraction_count=retracted))
    session = SimpleNamespace(req_nodes={held: node})
    engine._scheduler = SimpleNamespace(session_controller={"session 0": session})
    engine._sessions[1], engine._turns["a"] = ["session 0", "a"], 1
    engine._answers["a"] = Answer([1], 2, Sampling(), aborted=True)
    engine.player = SimpleNamespace(ended=lambda *_: None)  # type: ignore[assignment]
    engine._end("a", {"type": "abort"})
    assert engine._inexact == ({"a"} if stays else set())


def test_a_session_opens_goes_on_from_a_turn_and_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sglang, "structures", Structures())
    monkeypatch.setattr(Sglang, "arrive", lambda *given: Sglang._of_session(*given)[::2])
    monkeypatch.setattr(Sglang, "acts", lambda engine: {})
    part, engine = (Part("text", 2),), Sglang(SglangServed(sessions=True, python_tree=True))
    for number in (1, 2, 3):
        first = Planned("a", part, 1, session=number)
        turns = [replace(first, name=name, follows=on) for name, on in (("b", "a"), ("c", "a"))]
        wave = Wave((first, *turns))
        engine.player = Player(iter([wave, Wave()]), engine, lambda: False, idle_polls=0)
        given, made = [engine._poll()], list(part[0].tokens())
        engine.player.ended("a", [7])
        if number == 2:
            engine._aborted.add("a")
        given.append(engine._poll())
        for name in "bc":
            engine.player.ended(name, [7])
        given.append(engine._poll())
        name, streams = f"session {number - 1}", number != 2
        turn = (made, ("SessionParams", name, None if streams else "a"))
        early = [("Close", name)] if number == 3 else []
        assert given == [
            [("Open", 1 << 20, name, streams), (made, ("SessionParams", name, None))],
            [turn, turn, *early],
            [("Close", name)],
        ]
        # One that streams has no branches. What follows an aborted turn may be refused.
        assert engine._inexact == ({"c"} if streams else {"b", "c"})
        engine._inexact.clear()
        engine._aborted.clear()
