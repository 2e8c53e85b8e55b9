"""What an operator does between requests: when it is possible, in order, and generated."""

import io
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.drive.limits import Limits
from paritybit.drive.operating.actions import AT_ONCE, LATER, with_actions
from paritybit.drive.operating.sglang import CAPTURES, Weights, acts_of, forget, packed
from paritybit.drive.player import Orders, PlayedError, Player
from paritybit.drive.requests import waves
from paritybit.drive.script import (
    ACTIONS,
    Action,
    Part,
    Planned,
    Script,
    Wave,
    read,
    require_sense,
    write,
)
from paritybit.drive.sglang.settings import Served
from paritybit.drive.shrink import shrunk
from paritybit.launch.scope import not_tried
from paritybit.launch.verdict import scope_of
from paritybit.watch.chains import Chains

LIMITS = Limits(window=16, page=16, chunk=64, context=1536, pool=1536, rows=8)

NAMES = (
    *ACTIONS,
    "continue",
    "wake",
    "weights kept",
    "recapture kept",
    "recapture retracted",
    "flush retracted",
)


def drawn(seed: int, count: int, kinds: Sequence[str] = ACTIONS) -> tuple[Wave, ...]:
    return tuple(islice(with_actions(seed, waves(seed, LIMITS), kinds), count))


def played(
    *actions: Action,
    polls: int = 12,
    ends: int = 6,
    names: Sequence[str] = NAMES,
    settled: Callable[[], bool] = lambda: True,
) -> list[tuple[int, str]]:
    """Return what is done at which poll of a wave with a request that ends at a poll."""
    orders = Orders(
        arrive=lambda one, _: one.name,
        abort=lambda name: f"abort {name}",
        flush=lambda: "flush at the end",
        acts={name: lambda name=name: [name] for name in names},  # type: ignore[misc]
        settled=settled,
    )
    request = Planned("request", (Part("request", 3),), 5)
    player = Player(iter([Wave((request,), actions=actions)]), orders, lambda: False, idle_polls=0)
    said = []
    for poll in range(1, polls):
        if poll == ends:
            player.ended("request", [7])
        with suppress(PlayedError):
            said += [(poll, one) for one in player.poll()]
    return said


@pytest.mark.parametrize("what", ["flush", "weights", "recapture", "sleep"])
def test_what_needs_an_idle_engine_waits_for_one(what: str) -> None:
    assert played(Action(what, 2), polls=8)[:2] == [(1, "request"), (6, what)]


def test_what_an_engine_refuses_while_it_copies_waits_for_the_copies() -> None:
    asked = iter([False, False, True])
    actions = Action("pause", 2, lasts=9), Action("weights", 3)
    said = played(*actions, polls=8, settled=lambda: next(asked))
    assert said == [(1, "request"), (2, "pause"), (5, "weights kept")]


def test_no_request_arrives_while_the_engine_sleeps() -> None:
    said = played(Action("sleep", 0, lasts=2), polls=6)
    assert said == [(1, "sleep"), (4, "wake"), (4, "request")]


def test_a_pause_lasts_and_weights_change_within_it() -> None:
    within_it = Action("weights", 3), Action("recapture", 3)
    said = played(Action("pause", 2, lasts=2), *within_it, Action("flush", 3))
    within = [(2, "pause"), (3, "weights kept"), (3, "recapture kept"), (5, "continue")]
    assert said == [(1, "request"), *within, (6, "flush")]


@pytest.mark.parametrize(("what", "at"), [("preempt", 2), ("flush", 6)])
def test_what_needs_no_pause_happens_while_a_request_runs(what: str, at: int) -> None:
    assert played(Action(what, 2), names=("preempt", "flush")) == [(1, "request"), (at, what)]


@pytest.mark.parametrize("within", [True, False])
def test_a_cache_is_emptied_within_a_retraction_where_the_release_can(within: bool) -> None:
    names = NAMES if within else NAMES[:-1]
    said = played(
        Action("retract", 2, lasts=2), Action("flush", 2), Action("weights", 2), names=names
    )
    done = ["flush retracted", "weights"] if within else ["weights kept"]
    later = [] if within else [(6, "flush")]
    expected = [(2, "retract"), *((3, one) for one in done), (5, "continue"), *later]
    assert said == [(1, "request"), *expected]


def test_actions_that_a_release_lacks_are_left_out() -> None:
    assert played(Action("sleep"), Action("flush"), names=("flush",)) == [
        (1, "flush"),
        (1, "request"),
    ]


def test_a_wave_goes_on_until_its_actions_are_done() -> None:
    said = played(Action("pause", 9, lasts=1), polls=14)
    assert said == [(1, "request"), (9, "pause"), (11, "continue")]


def test_a_player_that_is_to_stop_ends_a_pause() -> None:
    orders = Orders(lambda one, _: one.name, str, list, {n: lambda n=n: [n] for n in NAMES})  # type: ignore[misc]
    stops: list[bool] = []
    wave = Wave((Planned("a", (Part("a", 1),), 9),), actions=(Action("pause", 2, 99),))
    player = Player(iter([wave]), orders, lambda: bool(stops), idle_polls=0)
    assert [player.poll() for _ in range(2)] == [["a"], ["pause"]]
    stops.append(True)
    assert player.poll() == ["continue", "a"]


def test_generated_actions_are_of_a_seed_and_soon_all_that_there_are() -> None:
    first, again, other = drawn(3, 12), drawn(3, 12), drawn(4, 12)
    assert first == again != other
    plain = tuple(islice(waves(3, LIMITS), 12))
    assert not any(wave.flush for wave in first)
    assert [len(wave.requests) for wave in first] == [len(wave.requests) for wave in plain]
    for seed in range(5):
        done = {one.what for wave in drawn(seed, 4) for one in wave.actions}
        assert done == set(ACTIONS)
        assert {one.what for wave in drawn(seed, 4, ("flush",)) for one in wave.actions} == {
            "flush"
        }
    assert {what for plan in (*AT_ONCE, *LATER) for what in plan} == set(ACTIONS)


def test_some_requests_begin_with_a_whole_prompt_from_before() -> None:
    every = drawn(0, 6)
    for before, wave in pairwise(every):
        prompts = [one.prompt for one in before.requests]
        again = [
            one for one in wave.requests if any(one.prompt[: len(old)] == old for old in prompts)
        ]
        names = [one.name for one in wave.requests]
        assert len(set(names)) == len(names)
        assert all(one.length + one.tokens <= 256 for one in again)
    repeats = [
        one
        for before, wave in pairwise(every)
        for one in wave.requests
        if len(one.prompt) > 1 and one.prompt[0].text in {o.prompt[0].text for o in before.requests}
    ]
    assert len(repeats) >= 5


def test_a_script_with_actions_is_read_as_it_was_written_and_without_them_too(
    tmp_path: Path,
) -> None:
    served = Served(page_size=16, actions=True)
    script = Script(served.scope(), drawn(1, 10))
    write(script, tmp_path / "script.json")
    assert read(tmp_path / "script.json") == script
    assert Served.of(script.settings) == served


@pytest.mark.parametrize(
    "action", [Action("shut down"), Action("flush", -1), Action("pause", 0, 10**9)]
)
def test_a_hostile_action_is_refused(action: Action) -> None:
    with pytest.raises(ValueError, match="an action of wave 0"):
        require_sense(Script({}, (Wave(actions=(action,)),)))


def test_a_search_leaves_out_actions_and_simplifies_them() -> None:
    def fails(given: tuple[Wave, ...]) -> bool:
        return any(one.what == "sleep" for wave in given for one in wave.actions)

    found = shrunk(drawn(0, 4), fails, lambda: False)
    (wave,) = found
    assert wave.actions == (Action("sleep"),)
    assert len(wave.requests) == 1


def test_what_was_done_is_in_the_scope_and_what_was_not_is_named() -> None:
    counts = {"forwards": 1, "action: flush": 2, "action: sleep": 0, "action: pause": 1}
    assert scope_of(counts).endswith(", 3 actions")
    names = {one.what for one in not_tried({}, counts)}
    assert "action: sleep" in names
    assert not names & {"action: flush", "action: pause"}


def test_kv_from_before_a_cache_was_emptied_is_another() -> None:
    chains = Chains()
    before = list(chains.hashes("a", [1, 2, 3], 3))
    assert list(chains.hashes("b", [1, 2, 3], 3)) == before
    chains.empty()
    after = list(chains.hashes("a", [1, 2, 3], 3))
    assert not set(before) & set(after)
    assert list(chains.hashes("c", [1, 2, 3], 3)) == after


def scheduler_of(model: torch.nn.Module, part: Any = None) -> Any:
    runner = SimpleNamespace(model=model)
    allocator = SimpleNamespace(get_kvcache=lambda: SimpleNamespace(swa_kv_pool=part))
    return SimpleNamespace(
        tp_worker=SimpleNamespace(model_runner=runner),
        token_to_kv_pool_allocator=allocator,
        is_fully_idle=lambda ignore_waiting: True,
    )


def test_the_same_update_gives_the_same_other_weights() -> None:
    model = torch.nn.Linear(4, 9)
    one, two = (Weights(scheduler_of(model), None) for _ in range(2))
    for weights in (one, two):
        weights.updates += 1
    (name, changed), *rest = one.others()
    assert (name, rest) == ("weight", [])
    assert torch.equal(changed, two.others()[0][1])
    assert not torch.equal(changed, model.weight)
    assert torch.equal(changed.sort(dim=0).values, model.weight.detach().sort(dim=0).values)
    assert torch.equal(pickle.load(io.BytesIO(packed(changed))), changed)


def test_memory_that_was_released_has_other_contents() -> None:
    part = SimpleNamespace(k_buffer=[torch.zeros(3)], v_buffer=[torch.zeros(3)])
    forget(scheduler_of(torch.nn.Linear(1, 1), part))
    assert part.k_buffer[0].all()
    assert part.v_buffer[0].all()


def test_a_release_has_the_acts_of_its_own_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(FlushCacheReqInput=lambda: "flush")
    monkeypatch.setattr("importlib.import_module", lambda _: made)
    scheduler = scheduler_of(torch.nn.Linear(1, 1))
    assert set(acts_of(scheduler, "cpu")) == {"flush", "flush retracted"}
    scheduler.is_fully_idle = lambda: True
    made.PauseGenerationReqInput = lambda mode: mode
    made.ContinueGenerationReqInput = lambda: "continue"
    acts = acts_of(scheduler, "cpu")
    assert set(acts) == {"flush", "pause", "retract", "continue"}
    assert [*acts["pause"](), *acts["retract"](), *acts["continue"]()] == [
        "in_place",
        "retract",
        "continue",
    ]


@pytest.mark.parametrize("name", CAPTURES)
def test_graphs_are_captured_again_by_the_function_of_the_release(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.import_module", lambda _: SimpleNamespace())
    captured: list[str] = []
    scheduler = scheduler_of(torch.nn.Linear(1, 1))
    setattr(scheduler.tp_worker.model_runner, name, lambda: captured.append(name))
    acts = acts_of(scheduler, "cpu")
    for within in ("recapture", "recapture kept", "recapture retracted"):
        assert acts[within]() == []
    assert captured == [name] * 3
