"""What a replay reads of its runner's static buffers: all of it, each element in its place.

Every runner runs a padded batch of three requests, whose static buffers are changed
under the replay that is about to read them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

import pytest
import torch

from properties.test_runners_inputs import (
    ENGINE,
    ENGINES,
    PREFILLS,
    REQUESTS,
    RecordedForward,
    arms_of,
    slots_of,
)
from properties.test_static_inputs import TABLE
from reference.batch import ENCODER_ROWS, MROPE_SECTIONS, TRACK_INTERVAL, TRACK_ROWS
from reference.config import PRESETS, SPECULATION, Kind, Role
from subjects.contracts import LISTED_CONVERSIONS
from subjects.runners import RUNNERS
from subjects.toggles import LocationScheme

EVERY = range(REQUESTS)

Change = Callable[[RecordedForward, int], None]
"""A change of what stands in the static buffers for one live request."""

Moved = Callable[[RecordedForward, int], set[int]]


def itself(recorded: RecordedForward, request: int) -> set[int]:
    """Return the request."""
    return {request}


def from_it_on(recorded: RecordedForward, request: int) -> set[int]:
    """Return the live requests from this one on."""
    return set(range(request, REQUESTS))


def the_last(recorded: RecordedForward, request: int) -> set[int]:
    """Return the last live request."""
    return {REQUESTS - 1}


def the_last_if_long(recorded: RecordedForward, request: int) -> set[int]:
    """Return the last live request, if this one is the one whose window is full."""
    return {REQUESTS - 1} if request == 1 else set()


def at_interval(recorded: RecordedForward, request: int) -> set[int]:
    """Return the request if one of its tokens ends an interval of state tracking."""
    mine = recorded.batch.positions[recorded.batch.token_requests == request].tolist()
    ends = any(position % TRACK_INTERVAL == TRACK_INTERVAL - 1 for position in mine)
    return {request} if ends else set()


def tracked(recorded: RecordedForward, request: int) -> set[int]:
    """Return the request if its state is tracked in this step: no other reads its index."""
    return (
        at_interval(recorded, request) if bool(recorded.batch.mamba_track_mask[request]) else set()
    )


def beside(recorded: RecordedForward, request: int) -> set[int]:
    """Return the live requests of a request's first token and of the token after it."""
    after = recorded.first(request) + 1
    owners = recorded.batch.token_requests.tolist()
    return {request, *owners[after : after + 1]}


@dataclass(frozen=True)
class Flip:
    """A change for one live request, and the live requests whose output it moves.

    `early` changes come once the heads are copied, before what is made of them alone.
    """

    buffer: str
    change: Change
    moved: Moved = itself
    early: bool = False


def bump(buffer: str, modulus: int, section: int | None = None) -> Change:
    """Return a change of a request's first element to the next valid value."""

    def change(recorded: RecordedForward, request: int) -> None:
        values = recorded.buffer(buffer) if section is None else recorded.buffer(buffer)[section]
        at = recorded.at(buffer, request)
        values[at : at + 1] = (values[at : at + 1] + 1) % modulus

    return change


def scale(buffer: str) -> Change:
    """Return a change of the first number of a request's first row."""

    def change(recorded: RecordedForward, request: int) -> None:
        recorded.buffer(buffer)[recorded.at(buffer, request), 0] *= 0.5

    return change


def negate(buffer: str) -> Change:
    """Return a change of a request's first bit to the other one."""

    def change(recorded: RecordedForward, request: int) -> None:
        at = recorded.at(buffer, request)
        recorded.buffer(buffer)[at : at + 1].logical_not_()

    return change


def follow_another(recorded: RecordedForward, request: int) -> None:
    """Point a request at the slots of the longest one, or that one at those of the first."""
    rows = recorded.buffer("req_pool_indices")
    other = recorded.at("req_pool_indices", 0 if request == 1 else 1)
    rows[recorded.at("req_pool_indices", request)] = rows[other].clone()


def see_one_key_less(recorded: RecordedForward, request: int) -> None:
    """Shorten a request, on the device and on the host."""
    for name in {"seq_lens", "seq_lens_cpu"} & recorded.rows.keys():
        recorded.buffer(name)[recorded.at(name, request)] -= 1


def shorten(buffer: str, by: int) -> Change:
    """Return a change of a host length, which says how many listed slots are written in all.

    What is then not written is the padded request's and the last of the last live request.
    """

    def change(recorded: RecordedForward, request: int) -> None:
        recorded.buffer(buffer)[recorded.at(buffer, request)] -= by

    return change


def stop_at(buffer: str) -> Change:
    """Return a change that makes a request's first token the first that does not count."""

    def change(recorded: RecordedForward, request: int) -> None:
        recorded.buffer(buffer).fill_(recorded.first(request))

    return change


def move_boundary(buffer: str) -> Change:
    """Return a change that gives a key of a request's first row to the next, or takes one of it.

    Request 1 gives: its window is full.
    """

    def change(recorded: RecordedForward, request: int) -> None:
        recorded.buffer(buffer)[recorded.first(request) + 1] += -1 if request == 1 else 1

    return change


def nudge(buffer: str, by: int) -> Change:
    """Return a change of where something of a request's last token begins or ends."""

    def change(recorded: RecordedForward, request: int) -> None:
        recorded.buffer(buffer)[recorded.last(request)] += by

    return change


def list_a_free_slot(starts: str, slots: str, kind: Kind) -> Change:
    """Return a change of the slot that a request's first row lists first to one nobody owns."""

    def change(recorded: RecordedForward, request: int) -> None:
        first = int(recorded.buffer(starts)[recorded.first(request)])
        recorded.buffer(slots)[first] = recorded.free[kind]

    return change


def write_elsewhere(buffer: str, kind: Kind) -> Change:
    """Return a change of a request's first write location to a slot that nobody owns."""

    def change(recorded: RecordedForward, request: int) -> None:
        recorded.buffer(buffer)[recorded.at(buffer, request)] = recorded.free[kind]

    return change


VOCAB = min(preset.tiny.vocab for preset in PRESETS.values())
CONTEXT = min(preset.tiny.max_context for preset in PRESETS.values())

Flips = dict[str, Flip]


def named(*flips: Flip) -> Flips:
    """Return flips by what they change."""
    return {flip.buffer: flip for flip in flips}


def mrope(*, early: bool = False) -> Flips:
    """Return the flips of the multimodal positions."""
    return {
        f"mrope_positions, section {section}": Flip(
            "mrope_positions", bump("mrope_positions", CONTEXT, section), early=early
        )
        for section in range(MROPE_SECTIONS)
    }


IDS = Flip("input_ids", bump("input_ids", VOCAB))
POSITIONS = Flip("positions", bump("positions", CONTEXT))
LOC = Flip("out_cache_loc", write_elsewhere("out_cache_loc", Kind.FULL))
SWA_LOC = Flip("out_cache_loc_swa", write_elsewhere("out_cache_loc_swa", Kind.SWA))
POOL_ROWS = Flip("req_pool_indices", follow_another, early=True)
SEQ_LENS = Flip("seq_lens", see_one_key_less, early=True)
HIDDEN_STATES = Flip("hidden_states", scale("hidden_states"))
TRACK = named(
    Flip("mamba_track_indices", bump("mamba_track_indices", TRACK_ROWS), tracked),
    Flip("mamba_track_mask", negate("mamba_track_mask"), at_interval),
)
DRAFT_STATE = named(
    Flip("topk_p", scale("topk_p")), Flip("topk_index", bump("topk_index", VOCAB)), HIDDEN_STATES
)
ROW_LISTS = named(
    Flip("kv_indptr", move_boundary("kv_indptr"), beside),
    Flip("kv_indices", list_a_free_slot("kv_indptr", "kv_indices", Kind.FULL)),
    Flip("window_kv_indptr", move_boundary("window_kv_indptr"), beside),
    Flip("window_kv_indices", list_a_free_slot("window_kv_indptr", "window_kv_indices", Kind.SWA)),
)
BOUNDS = named(
    *(Flip(name, nudge(name, 1)) for name in ("key_begin", "window_key_begin")),
    *(Flip(name, nudge(name, -1)) for name in ("key_end", "window_key_end")),
    Flip("kv_indices", list_a_free_slot("key_begin", "kv_indices", Kind.FULL)),
)
DECODED: Flips = {
    **named(IDS, POSITIONS, POOL_ROWS, LOC, SWA_LOC),
    **mrope(),
    **TRACK,
    **named(
        Flip("encoder_lens", bump("encoder_lens", ENCODER_ROWS)),
        Flip("num_token_non_padded", stop_at("num_token_non_padded"), from_it_on),
        Flip("global_num_tokens", stop_at("global_num_tokens"), from_it_on),
    ),
}
PREFILLED: Flips = {
    **named(IDS, POSITIONS, LOC, SWA_LOC, Flip("input_embeds", scale("input_embeds"))),
    **mrope(),
    **{name: replace(flip, early=True) for name, flip in TRACK.items()},
}

FLIPS: Mapping[str, Flips] = {
    "decode": {
        **DECODED,
        **ROW_LISTS,
        **named(SEQ_LENS, Flip("seq_lens_cpu", shorten("seq_lens_cpu", 2), the_last, early=True)),
    },
    "target_verify": {
        **DECODED,
        **BOUNDS,
        **named(
            # The masks of the requests behind lie one row of bits further on.
            Flip("seq_lens", see_one_key_less, from_it_on, early=True),
            Flip("seq_lens_cpu", shorten("seq_lens_cpu", 6), the_last, early=True),
            Flip("custom_mask", negate("custom_mask")),
            Flip(
                "swa_page_table", list_a_free_slot("window_key_begin", "swa_page_table", Kind.SWA)
            ),
            Flip("mask_indptr", nudge("mask_indptr", 1)),
            Flip("window_kv_offsets", bump("window_kv_offsets", 64)),
        ),
    },
    "cpu_graph": {
        name: replace(flip, early=True)
        for name, flip in {
            **named(IDS, POSITIONS, LOC, POOL_ROWS, SEQ_LENS),
            **mrope(),
        }.items()
    },
    "eagle_draft": {
        **named(POSITIONS, LOC, POOL_ROWS, SEQ_LENS),
        **named(Flip("seq_lens_cpu", shorten("seq_lens_cpu", 2), the_last, early=True)),
        **DRAFT_STATE,
        **ROW_LISTS,
    },
    "eagle_draft_extend": {
        **BOUNDS,
        **named(IDS, POSITIONS, LOC, POOL_ROWS, SEQ_LENS, HIDDEN_STATES),
        **named(
            Flip("seq_lens_cpu", shorten("seq_lens_cpu", 2), the_last, early=True),
            Flip(
                "extend_seq_lens_cpu",
                shorten("extend_seq_lens_cpu", 2),
                the_last_if_long,
                early=True,
            ),
            Flip("num_correct_drafts", bump("num_correct_drafts", SPECULATION.extend_tokens)),
            Flip("num_accept_tokens", bump("num_accept_tokens", 8), from_it_on, early=True),
            Flip("extend_seq_lens", bump("extend_seq_lens", 8), from_it_on),
            Flip(
                "window_kv_indices",
                list_a_free_slot("window_key_begin", "window_kv_indices", Kind.SWA),
            ),
        ),
    },
    "frozen_kv_mtp": {
        **named(POSITIONS, POOL_ROWS, SEQ_LENS),
        **named(Flip("seq_lens_cpu", shorten("seq_lens_cpu", 3), the_last, early=True)),
        **mrope(),
        **DRAFT_STATE,
        **ROW_LISTS,
    },
    "piecewise": PREFILLED,
    "breakable": PREFILLED,
}

INERT = {
    ("eagle_draft", "input_ids"): "never populated: the draft reads the tokens of topk_index",
    ("eagle_draft", "mrope_positions"): "never populated: all sections are the positions",
    ("eagle_draft", "extend_seq_lens"): "never populated: each branch runs one token",
}
"""The static buffers that a graph does not read, each with the reason."""

SCENES = [
    (runner, preset, scheme)
    for runner, engine in ENGINE.items()
    for turn, (preset, scheme) in enumerate(product(PRESETS, LocationScheme))
    if runner == "decode" or (turn // 3 + ENGINES.index(engine)) % 3 == turn % 3
]
"""Every runner in every era, each era on another preset; decode on all of them."""


def exists(name: str, scheme: LocationScheme) -> bool:
    """Whether an era has a static buffer."""
    return name != "out_cache_loc_swa" or scheme is LocationScheme.PRESET


CASES = [
    pytest.param((runner, preset, scheme), name, id=f"{runner}-{preset}-{scheme}-{name}")
    for runner, preset, scheme in SCENES
    for name, flip in FLIPS[runner].items()
    if exists(flip.buffer, scheme)
]
"""Every flip of every buffer that a scene's era has."""


@pytest.fixture(scope="module", autouse=True)
def inference() -> Iterator[None]:
    """Live in inference mode, as the harness does."""
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def scenes(
    inference: None, device: str
) -> Callable[[tuple[str, str, LocationScheme]], RecordedForward]:
    """Return a function that makes the scene of a runner, preset and era, once."""

    @cache
    def made(named: tuple[str, str, LocationScheme]) -> RecordedForward:
        runner, *shape = named
        return RecordedForward(runner, arms_of(ENGINE[runner], *shape, device))

    return made


@pytest.fixture(params=SCENES, ids=["-".join(each) for each in SCENES])
def recorded(
    request: pytest.FixtureRequest,
    scenes: Callable[[tuple[str, str, LocationScheme]], RecordedForward],
) -> RecordedForward:
    """Return one scene."""
    return scenes(request.param)


def test_every_runner_has_a_scene_in_every_era() -> None:
    assert {(runner, scheme) for runner, _, scheme in SCENES} == set(
        product(RUNNERS, LocationScheme)
    )
    assert TABLE.keys() == FLIPS.keys()


def test_every_static_buffer_has_a_flip_or_a_reason(recorded: RecordedForward) -> None:
    scheme = recorded.pair.trial.scheme
    flipped = {flip.buffer for flip in FLIPS[recorded.name].values() if exists(flip.buffer, scheme)}
    inert = {name for runner, name in INERT if runner == recorded.name}
    inert |= set(attention_outputs(recorded))
    assert not flipped & inert
    assert recorded.runner.static_buffers().keys() == flipped | inert


def test_the_same_launch_twice_gives_the_same_bits(recorded: RecordedForward) -> None:
    """Else a flip would move outputs by doing nothing. It writes its own slots and no others."""
    again = recorded.launch()
    assert again.moved(recorded.plain) == set()
    written = {(role, kind): set[int]() for role in Role for kind in Kind}
    if recorded.batch.mode.written is not None:
        written |= {(recorded.batch.mode.written, kind): set(recorded.owned(kind)) for kind in Kind}
    assert again.written == recorded.plain.written == written


@pytest.mark.parametrize(("recorded", "name"), CASES, indirect=["recorded"])
def test_no_static_buffer_is_inert(recorded: RecordedForward, name: str) -> None:
    """A live element changed under the replay moves the output of its request, and no other's."""
    flip = FLIPS[recorded.name][name]
    timeline_entry = "at_populate" if flip.early else "at_launch"
    moved, wanted = {}, {}
    for request in EVERY:
        launched = recorded.launch(**{timeline_entry: partial(flip.change, recorded, request)})
        moved[request] = launched.moved(recorded.plain)
        wanted[request] = flip.moved(recorded, request)
    assert moved == wanted
    assert any(wanted.values())


@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        pytest.param(each, name, id=f"{'-'.join(each)}-{name}")
        for each in SCENES
        for runner, name in INERT
        if runner == each[0]
    ],
    indirect=["recorded"],
)
def test_a_buffer_named_as_inert_is(recorded: RecordedForward, name: str) -> None:
    """Whatever it holds at the launch, no bit of a live output or of KV follows it."""

    def fill() -> None:
        recorded.buffer(name).fill_(3)

    launched = recorded.launch(at_launch=fill)
    assert launched.moved(recorded.plain) == set()
    assert launched.written == recorded.plain.written


def attention_outputs(recorded: RecordedForward) -> list[str]:
    """Return the buffers in which attention leaves what the next segment reads."""
    return [
        name for name in recorded.runner.static_buffers() if name.startswith("attention_output")
    ]


PREFILLING = [each for each in SCENES if each[0] in PREFILLS]


@pytest.mark.parametrize(
    "recorded", PREFILLING, ids=["-".join(each) for each in PREFILLING], indirect=True
)
def test_no_live_token_reads_what_stood_in_an_attention_output(recorded: RecordedForward) -> None:
    """Attention writes the live part before a segment reads it; the rest is the padding's."""
    names = attention_outputs(recorded)
    layers = len(recorded.pair.config.layers)
    assert len(names) == layers * len(recorded.runner.buckets)

    def fill() -> None:
        for name in names:
            recorded.buffer(name).fill_(torch.nan)

    launched = recorded.launch(at_launch=fill)
    assert launched.moved(recorded.plain) == set()
    assert launched.written == recorded.plain.written


STORING = [each for each in SCENES if "out_cache_loc" in TABLE[each[0]]]


def moved_slot(recorded: RecordedForward, request: int, kind: Kind) -> dict[Kind, set[int]]:
    """Return the slots written once a request's first one of a kind is another, by kind.

    An era without a static SWA location follows the full one through the mapping: to the
    reserved slot, for the free one is unmapped.
    """
    wanted = {each: set(recorded.owned(each)) for each in Kind}
    followed = [kind, *([Kind.SWA] if "out_cache_loc_swa" not in recorded.rows else [])]
    for each in dict.fromkeys(followed):
        wanted[each] -= {slots_of(recorded.batch.spans[request], each)[0]}
    wanted[kind] |= {recorded.free[kind]}
    return wanted


@pytest.mark.parametrize(
    "recorded", STORING, ids=["-".join(each) for each in STORING], indirect=True
)
def test_kv_is_written_where_the_static_location_points(recorded: RecordedForward) -> None:
    role = recorded.batch.mode.written
    assert role is not None
    for request in EVERY:
        for name, kind in (("out_cache_loc", Kind.FULL), ("out_cache_loc_swa", Kind.SWA)):
            if name not in recorded.rows:
                continue
            change = partial(write_elsewhere(name, kind), recorded, request)
            early = recorded.name == "cpu_graph"
            launched = recorded.launch(**{"at_populate" if early else "at_launch": change})
            found = {each: launched.written[role, each] for each in Kind}
            assert found == moved_slot(recorded, request, kind), (name, request)


I64_TO_I32 = (torch.int64, torch.int32)
LENGTHS = {("seq_lens", *I64_TO_I32), ("seq_lens_cpu", *I64_TO_I32)}
LISTS = {(name, torch.int32, torch.int64) for name in ("kv_indices", "window_kv_indices")}
CONVERTED = {
    "decode": LENGTHS | LISTS | {("encoder_lens", *I64_TO_I32)},
    "target_verify": LENGTHS
    | {("encoder_lens", *I64_TO_I32), ("kv_indices", torch.int32, torch.int64)},
    "cpu_graph": set(),
    "eagle_draft": LENGTHS | LISTS,
    "eagle_draft_extend": LENGTHS | LISTS,
    "frozen_kv_mtp": LENGTHS | LISTS,
    "piecewise": set(),
    "breakable": set(),
}
"""What a replay of each runner converts on copy: (buffer, from, to)."""


def test_a_replay_converts_exactly_what_is_listed(recorded: RecordedForward) -> None:
    recorded.runner.forget_conversions()
    recorded.forward()
    assert recorded.runner.conversions == CONVERTED[recorded.name]


def test_every_listed_conversion_is_some_runner_s() -> None:
    assert set[tuple[str, torch.dtype, torch.dtype]]().union(*CONVERTED.values()) == (
        LISTED_CONVERSIONS
    )
