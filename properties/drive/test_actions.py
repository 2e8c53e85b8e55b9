"""The operator's actions: when each happens, how they are generated, and sglang's own requests."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise
from types import SimpleNamespace

import pytest

from paritybit.drive.engine import PlayedError, Player
from paritybit.drive.operating.actions import AT_ONCE, LATER, with_actions
from paritybit.drive.operating.sglang import CAPTURES, acts_of
from paritybit.drive.requests import waves
from paritybit.drive.script import ACTIONS, Action, Part, Planned, Wave
from paritybit.drive.vllm import serving as vllm
from paritybit.drive.vllm.settings import VllmServed
from properties.drive.toy import LIMITS, Toy, said

NAMES = (
    *(*ACTIONS, "continue", "weights kept", "recapture kept", "recapture retracted"),
    "flush retracted",
)

FEW = NAMES[:-1]
"""The acts of a release that cannot empty its cache while requests are retracted."""

REQUEST = (1, "request")

ORDERS = {
    "an action that needs an idle engine waits for one": (
        [Action("weights", 2)], NAMES, [REQUEST, (6, "weights")],
    ),
    "a flush waits, too": ([Action("flush", 2)], NAMES, [REQUEST, (6, "flush")]),
    "a retraction needs no pause": ([Action("preempt", 2)], NAMES, [REQUEST, (2, "preempt")]),
    "a pause lasts, and weights change within it": (
        [Action("pause", 2, lasts=2), Action("weights", 3), Action("recapture", 3)],
        NAMES,
        [REQUEST, (2, "pause"), (3, "weights kept"), (3, "recapture kept"), (5, "continue")],
    ),
    "a cache is emptied while requests are retracted": (
        [Action("retract", 2, lasts=2), Action("flush", 2), Action("weights", 2)],
        NAMES,
        [REQUEST, (2, "retract"), (3, "flush retracted"), (3, "weights"), (5, "continue")],
    ),
    "a release that cannot do that empties it later": (
        [Action("retract", 2, lasts=2), Action("flush", 2)],
        FEW,
        [REQUEST, (2, "retract"), (5, "continue"), (6, "flush")],
    ),
    "an action that a release lacks is left out": (
        [Action("weights"), Action("flush")], ("flush",), [(1, "flush"), REQUEST],
    ),
    "a wave goes on until its actions are done": (
        [Action("pause", 9, lasts=1)], NAMES, [REQUEST, (9, "pause"), (11, "continue")],
    ),
}  # fmt: skip


def played(actions: Sequence[Action], engine: Toy) -> list[tuple[int, str]]:
    """Return what happens at which poll of a wave. Its request ends at poll 6."""
    request = Planned("request", (Part("request", 3),), 5)
    wave = Wave((request,), actions=tuple(actions))
    player, found = Player(iter([wave]), engine, lambda: False, idle_polls=0), []
    for poll in range(1, 14):
        if poll == 6:
            player.ended("request", [7])
        with suppress(PlayedError):
            found += [(poll, one) for one in said(player.poll())]
    return found


@pytest.mark.parametrize("case", ORDERS)
def test_an_action_happens_when_the_engine_can_do_it(case: str) -> None:
    actions, names, expected = ORDERS[case]
    assert played(actions, Toy(names)) == expected


def test_an_action_that_an_engine_refuses_while_it_copies_waits() -> None:
    copies = iter([False, False, True])
    found = played([Action("pause", 2, 9), Action("weights", 3)], Toy(NAMES, lambda: next(copies)))
    assert found[:3] == [REQUEST, (2, "pause"), (5, "weights kept")]
    assert played([Action("preempt", 2)], Toy(NAMES, lambda: False)) == [REQUEST, (2, "preempt")]


def drawn(seed: int, count: int, kinds: Sequence[str] = ACTIONS) -> tuple[Wave, ...]:
    return tuple(islice(with_actions(seed, waves(seed, LIMITS), kinds), count))


def test_generated_actions_depend_on_the_seed_and_soon_include_all() -> None:
    assert drawn(3, 12) == drawn(3, 12) != drawn(4, 12)
    assert not any(wave.flush for wave in drawn(3, 12))
    for seed in range(5):
        for kinds in (ACTIONS, ("flush",)):
            few = drawn(seed, 2 * 5 + len(AT_ONCE) + 1, kinds)  # Of which 5 are not brief.
            assert {one.what for wave in few for one in wave.actions} == {*kinds}
    assert {*AT_ONCE, *(what for plan in LATER for what in plan)} == set(ACTIONS)


def test_the_same_prompts_come_before_and_after_each_action_between_requests() -> None:
    for seed in range(5):
        first, *others = [wave for wave in drawn(seed, 12) if wave.brief][: len(AT_ONCE) + 1]
        assert {one.what for wave in others for one in wave.actions if not one.at} == {*AT_ONCE}
        assert not first.actions and len(first.requests) > 1
        for wave in others:
            assert {one.prompt for one in wave.requests} == {one.prompt for one in first.requests}
            what, *more = wave.actions
            waits = ("retract", what.what) in LATER
            assert [one.what for one in more] == ["retract", what.what] * waits
            late = [one for one in wave.requests for each in more[1:] if one.arrives > each.at]
            assert len(late) == len(first.requests) * waits
    for before, wave in pairwise(drawn(0, 60)[len(AT_ONCE) + 2 :]):
        if wave.brief:
            prompts = {one.prompt: one.adapter for one in before.requests}
            assert all(prompts[one.prompt] == one.adapter for one in wave.requests)
            assert len(wave.actions) == 1


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_release_has_the_acts_of_its_own_requests(
    capture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SimpleNamespace(PauseGenerationReqInput=lambda mode: mode)
    monkeypatch.setattr("importlib.import_module", lambda _: made)
    captured: list[str] = []
    runner = SimpleNamespace(**{capture: lambda: captured.append(capture)})
    scheduler = SimpleNamespace(
        tp_worker=SimpleNamespace(model_runner=runner), is_fully_idle=lambda ignore_waiting: True
    )
    acts = acts_of(scheduler)
    assert "flush retracted" in acts
    assert [*acts["pause"](), *acts["retract"]()] == ["in_place", "retract"]
    assert [*acts["recapture kept"]()] == []
    assert captured == [capture]
    made.DetachHiCacheStorageReqInput = lambda: "detach"
    made.AttachHiCacheStorageReqInput = lambda **given: [*given.values()]
    made.FlushCacheReqInput, made.ClearHiCacheReqInput = (lambda: "flush"), (lambda: "clear")
    scheduler.tree_cache = SimpleNamespace(enable_storage=True)
    scheduler.server_args = SimpleNamespace(
        hicache_storage_backend="file",
        hicache_storage_backend_extra_config="{}",
        hicache_storage_prefetch_policy="timeout",
    )
    files = acts_of(scheduler)
    assert [*files["flush"]()] == ["flush", "detach", ["file", "{}", "timeout"]]
    assert [*files["flush retracted"]()] == ["flush"]
    scheduler.is_fully_idle = lambda: True
    del runner.__dict__[capture]
    assert not {"flush retracted", "recapture"} & {*acts_of(scheduler)}


@pytest.mark.parametrize("seed", [3, 231])
def test_no_two_requests_of_a_script_have_one_name(seed: int) -> None:
    """Else, what is known of the first one is held against the second one."""
    served = VllmServed(seed=seed, actions=True, offload=True, priorities=True)
    names = [one.name for wave in islice(served.traffic(), 24) for one in wave.requests]
    assert len(names) == len({*names})


@pytest.mark.parametrize("name", ["weights", "weights kept"])
def test_new_weights_drop_what_older_ones_made_of_images(name: str) -> None:
    names = "collective_rpc", "pause_scheduler", "reset_encoder_cache", "reset_prefix_cache"
    core = SimpleNamespace(
        **{one: partial(print, one) for one in (*names, "resume_scheduler")}, scheduler=None
    )
    assert core.reset_encoder_cache in vllm.acts_of(core, lambda: True)[name]()
