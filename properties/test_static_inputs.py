"""Static inputs: what the padding resets, what it leaves, and that a graph reads every one.

The padding table stands here a second time, written from the engine's runners and not
from the contract, so that a slip in the contract shows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.arms import Arms
from harness.bits import bits
from harness.schedule import Admit, Decode, Step
from harness.trial import Trial
from reference.batch import ENCODER_ROWS, MROPE_SECTIONS, TRACK_ROWS, ForwardBatch
from reference.config import PRESETS, Kind
from subjects.behaviour import Era
from subjects.buffers import BufferPool, StaticInputs, tail_view
from subjects.bugs import BUGS, broken_subject
from subjects.contracts import (
    LISTED_CONVERSIONS,
    Axis,
    Contract,
    Policy,
    StaticInput,
    contract,
    keep,
    reset,
)
from subjects.graphs import Graph

RESET_TO = {
    "positions": 0,
    "req_pool_indices": 0,
    "seq_lens": 1,
    "seq_lens_cpu": 1,
    "out_cache_loc": 0,
    "mamba_track_indices": 0,
    "mamba_track_mask": 0,
}
"""What the decode runner's padding branch writes, by buffer."""

LEFT_STALE = {"input_ids", "mrope_positions", "encoder_lens"}
"""The buffers whose tails the decode runner's padding branch leaves."""

SCALARS = {"num_token_non_padded", "global_num_tokens"}

WIDTH = 6
LIVE = 2


def reset_values(era: Era) -> dict[str, int]:
    """Return what the padding branch writes in an era, by buffer."""
    return RESET_TO | ({"out_cache_loc_swa": 0} if era is Era.PRESET else {})


def stained(rows: Contract, device: str) -> StaticInputs:
    """Return static inputs whose every element holds what no padding writes."""
    inputs = StaticInputs(rows, WIDTH, WIDTH, BufferPool(torch.device(device)))
    for row in rows:
        inputs.buffers[row.name].fill_(stain(row))
    return inputs


def stain(row: StaticInput) -> int:
    """Return what an earlier batch left in a buffer: nothing that any padding would write."""
    return 1 if row.dtype is torch.bool else 7


def heads_of(rows: Contract, device: str) -> dict[str, Tensor]:
    """Return live values of `LIVE` rows, each element its own: 2, 3, … or False."""
    heads = {}
    for row in rows:
        shape = row.shape(LIVE, LIVE)
        count = torch.Size(shape).numel()
        values = torch.arange(2, 2 + count).view(shape)
        values = torch.zeros(shape) if row.dtype is torch.bool else values
        heads[row.name] = values.to("cpu" if row.host else device, row.dtype)
    return heads


def tails(inputs: StaticInputs) -> dict[str, list[int]]:
    """Return what stands beyond the live part of each buffer that has a tail, flat."""
    found = {}
    for row in inputs.contract:
        if row.axis is not Axis.SCALAR:
            tail = tail_view(row, inputs.buffers[row.name], LIVE, WIDTH)
            found[row.name] = [int(value) for value in tail.flatten().tolist()]
    return found


@pytest.mark.parametrize("era", Era)
def test_the_padding_table_covers_the_contract(era: Era) -> None:
    names = {row.name for row in contract("decode", era)}
    assert names == reset_values(era).keys() | LEFT_STALE | SCALARS


@pytest.mark.parametrize("era", Era)
def test_populating_a_padded_batch_resets_what_the_table_says_and_nothing_else(
    era: Era, device: str
) -> None:
    rows, wanted = contract("decode", era), reset_values(era)
    inputs = stained(rows, device)
    inputs.populate(heads_of(rows, device), padded=True)
    found = tails(inputs)
    assert found.keys() == wanted.keys() | LEFT_STALE
    for row in rows:
        if row.name in found:
            assert set(found[row.name]) == {wanted.get(row.name, stain(row))}, row.name


@pytest.mark.parametrize("era", Era)
def test_populating_a_full_batch_resets_nothing(era: Era, device: str) -> None:
    rows = contract("decode", era)
    inputs = stained(rows, device)
    inputs.populate(heads_of(rows, device), padded=False)
    found = tails(inputs)
    assert found.keys() == reset_values(era).keys() | LEFT_STALE
    for row in rows:
        if row.name in found:
            assert set(found[row.name]) == {stain(row)}, row.name


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "full"])
@pytest.mark.parametrize("era", Era)
def test_every_head_is_copied(era: Era, padded: bool, device: str) -> None:
    rows = contract("decode", era)
    inputs, heads = stained(rows, device), heads_of(rows, device)
    inputs.populate(heads, padded=padded)
    for row in rows:
        live = inputs.buffers[row.name][..., : heads[row.name].shape[-1]]
        assert torch.equal(live, heads[row.name]), row.name


def test_a_row_without_a_head_keeps_or_resets_all_of_itself(device: str) -> None:
    """An idle step has no live values: what is reset is all padding, what is kept all stale."""
    rows = contract("decode", Era.MEMO)
    inputs = stained(rows, device)
    inputs.populate({}, padded=True)
    for row in rows:
        wanted = row.value if row.policy is Policy.RESET else stain(row)
        assert set(inputs.buffers[row.name].flatten().tolist()) == {wanted}, row.name


def test_what_is_filled_once_is_filled_at_allocation_and_stale_ever_after(device: str) -> None:
    rows = (StaticInput("lens", Axis.REQUEST, torch.int32, Policy.FILL_ONCE, value=9),)
    inputs = StaticInputs(rows, 4, 4, BufferPool(torch.device(device)))
    lens = inputs.buffers["lens"]
    assert lens.tolist() == [9, 9, 9, 9]
    for live, wanted in ((3, [1, 1, 1, 9]), (1, [2, 1, 1, 9])):
        head = torch.full((live,), wanted[0], dtype=torch.int32, device=device)
        inputs.populate({"lens": head}, padded=True)
        assert lens.tolist() == wanted


def test_conversions_are_done_and_recorded(device: str) -> None:
    rows = (
        keep("narrow", Axis.TOKEN, torch.int32),
        keep("wide", Axis.TOKEN, torch.int64),
        keep("same", Axis.TOKEN, torch.int64),
        reset("host", Axis.REQUEST, torch.int32, host=True),
    )
    inputs = StaticInputs(rows, 4, 4, BufferPool(torch.device(device)))
    values = torch.tensor([5, 6], device=device)
    heads = {"narrow": values, "wide": values.int(), "same": values, "host": values.cpu()}
    inputs.populate(heads, padded=True)
    assert inputs.conversions == {
        ("narrow", torch.int64, torch.int32),
        ("wide", torch.int32, torch.int64),
        ("host", torch.int64, torch.int32),
    }
    assert all(inputs.buffers[row.name][:2].tolist() == [5, 6] for row in rows)


def test_a_smaller_buffer_of_a_name_is_the_start_of_the_pooled_one(device: str) -> None:
    pool = BufferPool(torch.device(device))
    large = pool.get("ids", (3, 4), torch.int64, 5)
    small = pool.get("ids", (6,), torch.int64, 9)
    assert large.tolist() == [[5] * 4] * 3
    assert small.tolist() == [5] * 6
    assert small.data_ptr() == large.data_ptr()
    small.zero_()
    assert large.flatten().tolist() == [0] * 6 + [5] * 6


def test_a_larger_buffer_of_a_name_becomes_the_pooled_one_and_holders_keep_theirs(
    device: str,
) -> None:
    pool = BufferPool(torch.device(device))
    held = pool.get("ids", (2,), torch.int64, 5)
    larger = pool.get("ids", (4,), torch.int64, 6)
    again = pool.get("ids", (2,), torch.int64, 7)
    assert larger.tolist() == [6] * 4
    assert again.data_ptr() == larger.data_ptr() != held.data_ptr()
    again.zero_()
    assert held.tolist() == [5, 5]


def test_buffers_of_other_names_are_apart(device: str) -> None:
    pool = BufferPool(torch.device(device))
    first, second = pool.get("a", (2,), torch.int64, 1), pool.get("b", (2,), torch.int64, 2)
    assert first.data_ptr() != second.data_ptr()
    assert (first.tolist(), second.tolist()) == ([1, 1], [2, 2])


def test_a_name_has_one_dtype(device: str) -> None:
    pool = BufferPool(torch.device(device))
    pool.get("ids", (2,), torch.int64, 0)
    with pytest.raises(ValueError, match=r"ids is shared as torch\.int64, not torch\.int32"):
        pool.get("ids", (2,), torch.int32, 0)


def test_a_host_buffer_is_on_the_host(device: str) -> None:
    pool = BufferPool(torch.device(device))
    assert pool.get("lens", (2,), torch.int32, 1, host=True).device.type == "cpu"
    assert pool.get("ids", (2,), torch.int32, 1).device.type == torch.device(device).type


def test_a_stale_tail_may_hold_the_bytes_of_another_runner(device: str) -> None:
    pool, rows = BufferPool(torch.device(device)), (keep("ids", Axis.TOKEN, torch.int64),)
    larger, smaller = StaticInputs(rows, 4, 4, pool), StaticInputs(rows, 3, 3, pool)
    larger.populate({"ids": torch.full((4,), 8, device=device)}, padded=False)
    smaller.populate({"ids": torch.full((1,), 1, device=device)}, padded=True)
    assert smaller.buffers["ids"].tolist() == [1, 8, 8]


def test_a_row_of_a_bug_replaces_its_fields_alone() -> None:
    """The broken contracts of the padding bugs differ from the right one in one row each."""
    for name, field in (("swa_pad", "policy"), ("swa_int64", "dtype"), ("req_pool_pad", "policy")):
        bug = BUGS[name]
        right, broken = contract("decode", bug.era), broken_subject(bug, "decode").contract
        changed = [pair for pair in zip(right, broken, strict=True) if pair[0] != pair[1]]
        assert [before.name for before, _ in changed] == list(bug.rows)
        ((before, after),) = changed
        assert {key for key in vars(before) if vars(before)[key] != vars(after)[key]} == {field}


# Below: every buffer of the decode runner, changed under a replay about to read it.


@dataclass(frozen=True)
class Launched:
    """What one replay left: live logits on the host, and the full and SWA slots it wrote."""

    logits: Tensor
    full: set[int]
    swa: set[int]

    def moved(self, other: "Launched") -> set[int]:
        """Return the live rows whose logits have other bits."""
        different = (bits(self.logits) != bits(other.logits)).any(-1)
        return set(different.nonzero().flatten().tolist())


class Meddled:
    """A graph whose static buffers are changed right before each launch."""

    def __init__(self, graph: Graph, change: Callable[[], None]) -> None:
        self.graph = graph
        self.output = graph.output
        self.operations = graph.operations
        self.change = change

    def replay(self) -> None:
        """Change the buffers, then launch."""
        self.change()
        self.graph.replay()


def nothing() -> None:
    """Change no buffer."""


class Scene:
    """Three live rows in a bucket of four, each of them about to decode its next token.

    Row 0 is state-tracked in this step. Row 1 alone is longer than the window.
    """

    def __init__(self, trial: Trial) -> None:
        self.arms = Arms(trial)
        self.runner = self.arms.subject.runner
        for prompt in (5, self.arms.config.window + 3, 4):
            admitted = self._plan(Admit(prompt, chunk=prompt))
            self.arms.graph.sample(admitted, self.arms.subject.forward(admitted).logits)
        self.batch = self._plan(Decode(tuple(range(ROWS))))
        self.before = self.arms.graph_pool.storage.clone()
        self.plain = self.launch()
        allocator = self.arms.graph.allocator
        self.free = {Kind.FULL: allocator.free_full[0], Kind.SWA: allocator.free_swa[0]}

    def _plan(self, step: Step) -> ForwardBatch:
        work = self.arms.graph.plan(step)
        assert work is not None and work.batch is not None
        return work.batch

    def buffer(self, name: str) -> Tensor:
        """Return a static buffer."""
        return self.runner.static_buffers()[name]

    def own(self, kind: Kind, row: int) -> int:
        """Return the slot that a row's token is to be written to."""
        span = self.batch.spans[row]
        return (span.full_slots if kind is Kind.FULL else span.swa_slots)[0]

    def launch(
        self, at_plan: Callable[[], None] = nothing, at_launch: Callable[[], None] = nothing
    ) -> Launched:
        """Decode the batch and take it back.

        `at_plan` runs once the inputs are populated, `at_launch` once the metadata is written.
        """
        self.arms.subject.recapture()
        metadata, graphs = self.runner.metadata, self.runner.graphs
        write = metadata.write

        def write_meddled(*arguments: Any) -> None:
            at_plan()
            write(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metadata, "write", write_meddled)
            meddled = {bs: Meddled(graph, at_launch) for bs, graph in graphs.items()}
            patch.setattr(self.runner, "graphs", meddled)
            forward = self.arms.subject.forward(self.batch)
        assert forward.replay is not None and forward.replay.bs == ROWS + 1
        logits = forward.logits.to("cpu", copy=True)
        storage = self.arms.graph_pool.storage
        changed = self.arms.graph_pool.arenas_of(bits(storage) != bits(self.before))
        written = {
            kind: set(arena.any(dim=(0, 1, 3, 4)).nonzero().flatten().tolist()) - {0}
            for kind, arena in changed.items()
        }
        launched = Launched(logits, written[Kind.FULL], written[Kind.SWA])
        storage.copy_(self.before)
        return launched


ROWS = 3


@dataclass(frozen=True)
class Flip:
    """A change of one live row's element of `buffer`, and the live rows whose logits it moves.

    With `at_plan` it comes before the attention metadata is written, which alone reads it.
    """

    buffer: str
    change: Callable[[Scene, int], None]
    moved: Callable[[Scene, int], set[int]] = lambda scene, row: {row}
    at_plan: bool = False


def bump(buffer: str, modulus: int, section: int | None = None) -> Callable[[Scene, int], None]:
    """Return a change of a row's element to the next valid value."""

    def change(scene: Scene, row: int) -> None:
        values = scene.buffer(buffer)
        place = values[row : row + 1] if section is None else values[section, row : row + 1]
        place.copy_((place + 1) % modulus)

    return change


def negate(scene: Scene, row: int) -> None:
    """Track a row that is not tracked, and the other way round."""
    mask = scene.buffer("mamba_track_mask")[row : row + 1]
    mask.logical_not_()


def tracked(scene: Scene, row: int) -> set[int]:
    """Return the row if it is state-tracked: no other reads its index."""
    return {row} if bool(scene.batch.mamba_track_mask[row]) else set()


def follow_another(scene: Scene, row: int) -> None:
    """Point a row at the slots of the longest request, or that one at those of row 0."""
    rows = scene.buffer("req_pool_indices")
    rows[row] = rows[0 if row == 1 else 1].clone()


def see_one_key_less(scene: Scene, row: int) -> None:
    """Shorten a row, on the device and on the host."""
    scene.buffer("seq_lens")[row] -= 1
    scene.buffer("seq_lens_cpu")[row] -= 1


def gather_two_keys_less(scene: Scene, row: int) -> None:
    """Shorten a row on the host, which says how many listed slots are written in all.

    What is then not written is the padded row's key and the last key of the last live row.
    """
    scene.buffer("seq_lens_cpu")[row] -= 2


def last_row(scene: Scene, row: int) -> set[int]:
    """Return the last live row."""
    return {ROWS - 1}


def stop_at(buffer: str) -> Callable[[Scene, int], None]:
    """Return a change that makes `row` the first row that does not count."""

    def change(scene: Scene, row: int) -> None:
        scene.buffer(buffer).fill_(row)

    return change


def from_row_on(scene: Scene, row: int) -> set[int]:
    """Return the live rows from `row` on."""
    return set(range(row, ROWS))


def move_boundary(buffer: str) -> Callable[[Scene, int], None]:
    """Return a change that gives one key of a row to the next, or takes one of it.

    Row 1 gives: its window is full.
    """

    def change(scene: Scene, row: int) -> None:
        scene.buffer(buffer)[row + 1] += -1 if row == 1 else 1

    return change


def both_sides(scene: Scene, row: int) -> set[int]:
    """Return the live rows at the boundary behind `row`."""
    return {row, row + 1} & set(range(ROWS))


def list_a_free_slot(name: str, kind: Kind) -> Callable[[Scene, int], None]:
    """Return a change of a row's first listed slot to one that nobody owns."""

    def change(scene: Scene, row: int) -> None:
        first = int(scene.buffer(f"{name}_indptr")[row])
        scene.buffer(f"{name}_indices")[first] = scene.free[kind]

    return change


def write_elsewhere(buffer: str, kind: Kind) -> Callable[[Scene, int], None]:
    """Return a change of a row's write location to a slot that nobody owns."""

    def change(scene: Scene, row: int) -> None:
        scene.buffer(buffer)[row] = scene.free[kind]

    return change


VOCAB = {preset.tiny.vocab for preset in PRESETS.values()}
CONTEXT = {preset.tiny.max_context for preset in PRESETS.values()}

FLIPS = {
    "input_ids": Flip("input_ids", bump("input_ids", min(VOCAB))),
    "positions": Flip("positions", bump("positions", min(CONTEXT))),
    "req_pool_indices": Flip("req_pool_indices", follow_another, at_plan=True),
    "seq_lens": Flip("seq_lens", see_one_key_less, at_plan=True),
    "seq_lens_cpu": Flip("seq_lens_cpu", gather_two_keys_less, last_row, at_plan=True),
    "out_cache_loc": Flip("out_cache_loc", write_elsewhere("out_cache_loc", Kind.FULL)),
    "out_cache_loc_swa": Flip("out_cache_loc_swa", write_elsewhere("out_cache_loc_swa", Kind.SWA)),
    **{
        f"mrope_positions, section {section}": Flip(
            "mrope_positions", bump("mrope_positions", min(CONTEXT), section)
        )
        for section in range(MROPE_SECTIONS)
    },
    "mamba_track_indices": Flip(
        "mamba_track_indices", bump("mamba_track_indices", TRACK_ROWS), tracked
    ),
    "mamba_track_mask": Flip("mamba_track_mask", negate),
    "encoder_lens": Flip("encoder_lens", bump("encoder_lens", ENCODER_ROWS)),
    "num_token_non_padded": Flip(
        "num_token_non_padded", stop_at("num_token_non_padded"), from_row_on
    ),
    "global_num_tokens": Flip("global_num_tokens", stop_at("global_num_tokens"), from_row_on),
    "kv_indptr": Flip("kv_indptr", move_boundary("kv_indptr"), both_sides),
    "kv_indices": Flip("kv_indices", list_a_free_slot("kv", Kind.FULL)),
    "window_kv_indptr": Flip("window_kv_indptr", move_boundary("window_kv_indptr"), both_sides),
    "window_kv_indices": Flip("window_kv_indices", list_a_free_slot("window_kv", Kind.SWA)),
}

SCENES = [(preset, era) for preset in PRESETS for era in Era]

CASES = [
    pytest.param((preset, era), name, id=f"{preset}-{era}-{name}")
    for preset, era in SCENES
    for name, flip in FLIPS.items()
    if flip.buffer != "out_cache_loc_swa" or era is Era.PRESET
]
"""Every flip of every buffer that a scene's era has."""


@pytest.fixture(scope="module", autouse=True)
def inference() -> Iterator[None]:
    """Live in inference mode, as the harness does."""
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def scenes(inference: None, device: str) -> Callable[[tuple[str, Era]], Scene]:
    """Return a function that makes the scene of a preset and era, once."""

    @cache
    def made(named: tuple[str, Era]) -> Scene:
        preset, era = named
        return Scene(Trial(preset=preset, era=era, device=device))

    return made


@pytest.fixture(params=SCENES, ids=["-".join(each) for each in SCENES])
def scene(request: pytest.FixtureRequest, scenes: Callable[[tuple[str, Era]], Scene]) -> Scene:
    """Return the scene of one preset and era."""
    return scenes(request.param)


def test_every_static_buffer_has_a_flip(scene: Scene) -> None:
    flipped = {flip.buffer for flip in FLIPS.values()}
    if scene.arms.trial.era is not Era.PRESET:
        flipped -= {"out_cache_loc_swa"}
    assert scene.runner.static_buffers().keys() == flipped


def test_the_same_launch_twice_gives_the_same_bits(scene: Scene) -> None:
    """Else a flip would move logits by doing nothing."""
    again = scene.launch()
    assert again.moved(scene.plain) == set()
    assert again.full == scene.plain.full == {scene.own(Kind.FULL, row) for row in range(ROWS)}
    assert again.swa == scene.plain.swa == {scene.own(Kind.SWA, row) for row in range(ROWS)}


@pytest.mark.parametrize(("scene", "name"), CASES, indirect=["scene"])
def test_no_static_buffer_is_inert(scene: Scene, name: str) -> None:
    """A live element changed under the replay moves the logits of its row, and no other's."""
    flip = FLIPS[name]
    moment = "at_plan" if flip.at_plan else "at_launch"
    moved, wanted = {}, {}
    for row in range(ROWS):
        launched = scene.launch(**{moment: partial(flip.change, scene, row)})
        moved[row] = launched.moved(scene.plain)
        wanted[row] = flip.moved(scene, row)
    assert moved == wanted
    assert any(wanted.values())


@pytest.mark.parametrize("row", range(ROWS))
def test_kv_is_written_where_the_static_location_points(scene: Scene, row: int) -> None:
    """An era without a static SWA location follows the full one through the mapping."""
    change = write_elsewhere("out_cache_loc", Kind.FULL)
    launched = scene.launch(at_launch=partial(change, scene, row))
    own = {scene.own(Kind.FULL, row)}
    assert launched.full == scene.plain.full - own | {scene.free[Kind.FULL]}
    unmapped = set() if scene.arms.trial.era is Era.PRESET else {scene.own(Kind.SWA, row)}
    assert launched.swa == scene.plain.swa - unmapped


@pytest.mark.parametrize("row", range(ROWS))
@pytest.mark.parametrize(
    "scene", [(preset, Era.PRESET) for preset in PRESETS], ids=list(PRESETS), indirect=True
)
def test_swa_kv_is_written_where_the_static_swa_location_points(scene: Scene, row: int) -> None:
    change = write_elsewhere("out_cache_loc_swa", Kind.SWA)
    launched = scene.launch(at_launch=partial(change, scene, row))
    own = {scene.own(Kind.SWA, row)}
    assert launched.swa == scene.plain.swa - own | {scene.free[Kind.SWA]}
    assert launched.full == scene.plain.full


@pytest.mark.parametrize("era", Era)
def test_a_decode_converts_exactly_what_is_listed(era: Era, device: str) -> None:
    runner = Scene(Trial(era=era, device=device)).runner
    assert runner.inputs.conversions | runner.metadata.conversions == LISTED_CONVERSIONS


def test_a_decode_of_the_int64_location_converts_what_is_not_listed(device: str) -> None:
    runner = Scene(Trial(device=device).with_bug("swa_int64")).runner
    unlisted = (runner.inputs.conversions | runner.metadata.conversions) - LISTED_CONVERSIONS
    assert unlisted == {("out_cache_loc_swa", torch.int32, torch.int64)}
