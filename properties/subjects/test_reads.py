"""What a replay reads of its runner's static buffers: all of it, each element in its place.

Every runner runs a padded batch of three requests, whose static buffers are changed under
the replay that is about to read them. What a buffer is read for does not depend on the
location scheme, but for the write locations: the one that has most buffers does for the rest.
"""

from functools import cache, partial

import pytest
import torch
from paritybit.reference.config import Kind, Role
from paritybit.subjects.contracts import LISTED_CONVERSIONS
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.toggles import LocationScheme

from properties.support.subjects.engines import ENGINE_OF, trial_of
from properties.support.subjects.flips import write_elsewhere
from properties.support.subjects.graph_world import shared_world
from properties.support.subjects.ready_forward import REQUESTS, ReadyForward, slots_of
from properties.support.subjects.runners import EXPECTED, PRESET

EVERY = range(REQUESTS)

each_runner = pytest.mark.parametrize("runner", RUNNERS)
each_prefill = pytest.mark.parametrize(
    "runner", [name for name, row in EXPECTED.items() if not row.attention_captured]
)


@cache
def planned_under(runner: str, scheme: LocationScheme, device: str) -> ReadyForward:
    """Return a padded forward of a runner, which every launch brings back to its beginning."""
    world = shared_world(trial_of(ENGINE_OF[runner], scheme, device))
    return EXPECTED[runner].planned(runner, world)


def attention_outputs(planned: ReadyForward) -> list[str]:
    """Return the buffers in which attention leaves what the next segment reads."""
    return [name for name in planned.runner.static_buffers() if name.startswith("attention_output")]


@each_runner
def test_every_static_buffer_has_a_flip_or_a_reason(runner: str, device: str) -> None:
    row = EXPECTED[runner]
    for scheme in LocationScheme:
        planned = planned_under(runner, scheme, device)
        absent = row.inputs.keys() - planned.inputs.keys()
        flipped = {flip.buffer for flip in row.flips.values()} - absent
        inert = {*row.inert, *attention_outputs(planned)}
        assert not flipped & inert
        assert planned.runner.static_buffers().keys() == flipped | inert, scheme


@each_runner
def test_the_same_launch_twice_gives_the_same_bits(runner: str, device: str) -> None:
    """Else a flip would move outputs by doing nothing. It writes its own slots and no others."""
    for scheme in LocationScheme:
        planned = planned_under(runner, scheme, device)
        again, role = planned.launch(), planned.batch.mode.written
        assert again.moved(planned.plain) == set(), scheme
        written = {(role, kind): set[int]() for role in Role for kind in Kind}
        if role is not None:
            written |= {(role, kind): planned.owned(kind) for kind in Kind}
        assert again.written == planned.plain.written == written, scheme
        assert planned.plain.output.keys() == EXPECTED[runner].outputs.keys()


@each_runner
def test_no_static_buffer_is_inert(runner: str, device: str) -> None:
    """A live element changed under the replay moves the output of its request, and no other's."""
    planned, wrong = planned_under(runner, PRESET, device), {}
    for name, flip in EXPECTED[runner].flips.items():
        entry = "at_populate" if flip.early else "at_launch"
        wanted = {request: flip.moved(planned, request) for request in EVERY}
        moved = {
            request: planned.launch(**{entry: partial(flip.change, planned, request)}).moved(
                planned.plain
            )
            for request in EVERY
        }
        if moved != wanted or not any(wanted.values()):
            wrong[name] = f"moves {moved}, not {wanted}"
    assert wrong == {}


@pytest.mark.parametrize("runner", [name for name, row in EXPECTED.items() if row.inert])
def test_a_buffer_named_as_inert_is(runner: str, device: str) -> None:
    """Whatever it holds at the launch, no bit of a live output or of KV follows it."""
    planned = planned_under(runner, PRESET, device)
    for name in EXPECTED[runner].inert:
        launched = planned.launch(at_launch=partial(planned.buffer(name).fill_, 3))
        assert launched.moved(planned.plain) == set(), name
        assert launched.written == planned.plain.written, name


@each_prefill
def test_no_live_token_reads_what_stood_in_an_attention_output(runner: str, device: str) -> None:
    """Attention writes the live part before a segment reads it; the rest is the padding's."""
    planned = planned_under(runner, PRESET, device)
    names = attention_outputs(planned)
    assert len(names) == len(planned.world.config.layers) * len(planned.runner.buckets)

    def fill() -> None:
        for name in names:
            planned.buffer(name).fill_(torch.nan)

    launched = planned.launch(at_launch=fill)
    assert launched.moved(planned.plain) == set()
    assert launched.written == planned.plain.written


def moved_slot(planned: ReadyForward, request: int, kind: Kind) -> dict[Kind, set[int]]:
    """Return the slots written once a request's first one of a kind is another, by kind.

    A scheme without a static SWA location follows the full one through the mapping: to the
    reserved slot, for the free one is unmapped.
    """
    wanted = {kind: planned.owned(kind) for kind in Kind}
    followed = [kind, *([Kind.SWA] if "out_cache_loc_swa" not in planned.inputs else [])]
    for moved in dict.fromkeys(followed):
        wanted[moved] -= {slots_of(planned.batch.spans[request], moved)[0]}
    wanted[kind] |= {planned.free[kind]}
    return wanted


@pytest.mark.parametrize("scheme", LocationScheme)
@pytest.mark.parametrize(
    "runner", [name for name, row in EXPECTED.items() if "out_cache_loc" in row.inputs]
)
def test_kv_is_written_where_the_static_location_points(
    runner: str, scheme: LocationScheme, device: str
) -> None:
    planned = planned_under(runner, scheme, device)
    role, early = planned.batch.mode.written, EXPECTED[runner].flips["out_cache_loc"].early
    assert role is not None
    for request in EVERY:
        for name, kind in (("out_cache_loc", Kind.FULL), ("out_cache_loc_swa", Kind.SWA)):
            if name not in planned.inputs:
                continue
            change = partial(write_elsewhere(name, kind), planned, request)
            launched = planned.launch(**{"at_populate" if early else "at_launch": change})
            found = {kind: launched.written[role, kind] for kind in Kind}
            assert found == moved_slot(planned, request, kind), (name, request)


@each_runner
def test_a_replay_converts_exactly_what_is_listed(runner: str, device: str) -> None:
    planned = planned_under(runner, PRESET, device)
    planned.runner.forget_conversions()
    planned.forward()
    assert planned.runner.conversions == EXPECTED[runner].conversions


def test_every_listed_conversion_is_some_runner_s() -> None:
    found = {conversion for row in EXPECTED.values() for conversion in row.conversions}
    assert found == LISTED_CONVERSIONS
