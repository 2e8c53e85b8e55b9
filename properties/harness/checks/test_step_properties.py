"""Each property of a step, judged on an observation made by hand: when it is violated, and how.

Nothing is played here. `test_planted_faults` shows that what a fault does reaches an observation.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from paritybit.harness.checks.property import Description, judge
from paritybit.harness.checks.step_properties.batch_invariance import Variant
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.batch import Mode
from paritybit.reference.config import Kind, Role
from paritybit.subjects.protocol import BufferFacts, GraphFacts

from properties.support.harness.observations import (
    FREE,
    OWNERS,
    arena_of,
    idle,
    observation,
)
from properties.support.harness.tensors import first_of, flip

Spoil = Callable[[Observation], Observation | None]
"""Spoils an observation in place, or returns a spoiled one."""

OF_STEPS = [name for name, rule in PROPERTIES.items() if rule.judge or rule.judge_end]


def violated(observed: Observation) -> set[str]:
    """Return the properties that a step violates."""
    return {violation.property for violation in judge(PROPERTIES.values(), observed)}


def described(property_id: str, observed: Observation) -> Description:
    """Return how a property that is violated describes it."""
    found = {one.property: one for one in judge(PROPERTIES.values(), observed)}
    return found[property_id].message, found[property_id].where


def with_facts(observed: Observation, **changes: Any) -> Observation:
    """Return an observation with some of the replay's facts replaced."""
    assert observed.facts is not None
    return replace(observed, facts=replace(observed.facts, **changes))


def with_graph_facts(observed: Observation, **changes: Any) -> Observation:
    """Return an observation with some of the graph's facts replaced."""
    assert observed.facts is not None
    return with_facts(observed, graph=replace(observed.facts.graph, **changes))


def with_extra(observed: Observation, property_id: str, found: object) -> Observation:
    """Return an observation with what one property's extra run gave replaced."""
    return replace(observed, extra={**observed.extra, property_id: found})


def live_output(observed: Observation) -> Mapping[str, torch.Tensor]:
    """Return the graph world's live output."""
    assert observed.graph.output is not None
    return observed.graph.output


# One fault for each kind of thing that a property is for; no other property sees it.


def stray_write_of_both_worlds(observed: Observation) -> None:
    """Alike in both: parity forgives it."""
    for world in (observed.eager, observed.graph):
        arena_of(world, Role.DRAFT, Kind.SWA)[0, 1, FREE] = 1.5


def padded_row_with_a_history(observed: Observation) -> None:
    """A padded row of the output that has other bits than without earlier replays."""
    flip(first_of(observed.extra["hermetic_replay"]), -1, 0)


def kv_that_noise_changed(observed: Observation) -> None:
    """KV that depends on bytes nobody owns."""
    noisy = replace(observed.graph, after=observed.extra["padding_noninterference"].storage)
    slot = observed.graph.spans[1].swa_slots[0]
    flip(arena_of(noisy, Role.TARGET, Kind.SWA), 0, 1, slot, 0, 0)


def test_a_replay_in_another_bucket_than_without_a_history_is_one_property_s() -> None:
    """Its padded rows cannot be held against those of the poisoned run, nor need they be."""
    right = observation()
    rows = {name: values[:-1] for name, values in right.extra["hermetic_replay"].items()}
    noisy = replace(right.extra["padding_noninterference"], defined=rows)
    extra = {**right.extra, "padding_noninterference": noisy, "hermetic_replay": rows}
    assert violated(replace(right, extra=extra)) == {"hermetic_replay"}


def moved_buffer(observed: Observation) -> Observation:
    """A static buffer that is not where it was captured."""
    assert observed.facts is not None
    now = observed.facts.buffers["seq_lens"]
    buffers = {**observed.facts.buffers, "seq_lens": replace(now, address=now.address + 64)}
    return with_facts(observed, buffers=buffers)


def retyped_buffer(observed: Observation) -> Observation:
    """A static buffer of another dtype than was captured."""
    assert observed.facts is not None
    now = replace(observed.facts.buffers["seq_lens"], dtype=torch.int64)
    return with_facts(observed, buffers={**observed.facts.buffers, "seq_lens": now})


def locations_of_another_dtype(observed: Observation) -> Observation:
    """SWA locations that are handed over as int64, where the pool and its store have int32."""
    assert observed.facts is not None and observed.facts.locations is not None
    return with_facts(observed, locations=replace(observed.facts.locations, handed=torch.int64))


def store_of_another_dtype(observed: Observation) -> Observation:
    """SWA locations that are what the pool translates to, but not what its store reads."""
    assert observed.facts is not None and observed.facts.locations is not None
    wide = replace(observed.facts.locations, handed=torch.int64, translated=torch.int64)
    return with_facts(observed, locations=wide)


def silent_eager_fallback(observed: Observation) -> Observation:
    """No replay, and all the right bits, though a graph was captured for the step."""
    return replace(observed, replay=None, facts=None, extra={})


def no_attention(observed: Observation) -> Observation:
    """A full graph whose attention is missing."""
    return with_graph_facts(observed, holds_attention=False)


def attention_in_pieces(observed: Observation) -> Observation:
    """Attention in the graphs of a runner whose attention runs between them."""
    return with_graph_facts(observed, expects_attention=False)


def logged_warning(observed: Observation) -> Observation:
    """A message at WARNING, every value being right."""
    return replace(observed, warnings=("something is odd", "and again"))


def token_of_another(observed: Observation) -> None:
    """The token that the second request gets in the eager run is not the likeliest one."""
    owner = observed.end.eager.holders[1]
    observed.end.eager.tokens[owner.token_row, owner.known - 1] -= 1


def one_token_more(observed: Observation) -> Observation:
    """In both runs the first request knows a token that no logits say."""
    first, *others = observed.end.graph.holders
    holders = (first._replace(known=first.known + 1), *others)
    worlds = (replace(one, holders=holders) for one in (observed.end.eager, observed.end.graph))
    eager, graph = worlds
    return replace(observed, end=replace(observed.end, eager=eager, graph=graph))


FAULTS: list[tuple[str, Spoil]] = [
    ("hermetic_replay", padded_row_with_a_history),
    ("padding_noninterference", kv_that_noise_changed),
    ("index_contract", retyped_buffer),
    ("index_contract", locations_of_another_dtype),
    ("index_contract", store_of_another_dtype),
    ("captured_path", silent_eager_fallback),
    ("captured_path", no_attention),
    ("captured_path", attention_in_pieces),
    ("next_tokens", token_of_another),
    ("next_tokens", one_token_more),
]
"""What exactly one property sees of a decode step, beside what `test_planted_faults` plants."""


@pytest.mark.parametrize("make", [observation, idle])
@pytest.mark.parametrize("mode", Mode)
def test_a_right_step_of_any_mode_violates_nothing(
    mode: Mode, make: Callable[[Mode], Observation]
) -> None:
    assert violated(make(mode)) == set()


@pytest.mark.parametrize(("property_id", "spoil"), FAULTS, ids=lambda x: getattr(x, "__name__", x))
def test_a_fault_is_seen_by_the_one_property_that_is_for_it(property_id: str, spoil: Spoil) -> None:
    """It is described in words and with places that JSON holds."""
    right = observation()
    spoiled = spoil(right) or right
    assert violated(spoiled) == {property_id}
    message, where = described(property_id, spoiled)
    assert message
    assert json.loads(json.dumps(where)) == where
    assert where


OWNED_ROWS = [
    (Mode.DECODE, "logits", 1, 4),
    (Mode.DECODE, "hidden", 0, 7),
    (Mode.TARGET_VERIFY, "logits", 3, 7),
    (Mode.TARGET_VERIFY, "hidden", 4, 4),
    (Mode.DRAFT, "scores", 1, 4),
    (Mode.DRAFT, "tokens", 0, 7),
    (Mode.FROZEN_DRAFT, "tokens", 1, 4),
    (Mode.DRAFT_EXTEND, "hidden", 2, 4),
    (Mode.DRAFT_EXTEND, "hidden", 1, 7),
    (Mode.DRAFT_EXTEND, "topk_index", 1, 4),
    (Mode.EXTEND, "hidden", 2, 7),
    (Mode.EXTEND, "logits", 0, 7),
]
"""Of a mode's outputs: a row, counted by tokens or by requests, and whose it is."""


@pytest.mark.parametrize(("mode", "tensor", "row", "owner"), OWNED_ROWS)
def test_a_wrong_element_of_an_output_is_described_with_its_row_and_owner(
    mode: Mode, tensor: str, row: int, owner: int
) -> None:
    spoiled = observation(mode)
    flip(live_output(spoiled)[tensor], row, 2)
    message, where = described("logits_parity", spoiled)
    expected = {"tensor": tensor, "row": row, "element": 2, "owner": f"request {owner}"}
    assert where.items() >= expected.items()
    assert int(where["eager_bits"], 16) ^ int(where["graph_bits"], 16) == 1
    assert message == (
        f"live row {row} (request {owner}), {tensor} 2:"
        f" eager {where['eager_bits']}, graph {where['graph_bits']}"
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda output: {**output, "logits": output["logits"].double()},
        lambda output: {**output, "logits": output["logits"][:1]},
        lambda output: {"logits": output["logits"]},
    ],
    ids=["dtype", "shape", "name"],
)
def test_outputs_that_differ_in_form_violate_parity(change: Callable[..., Any]) -> None:
    """No row of theirs can be compared, so that none is named."""
    right = observation()
    spoiled = replace(right, graph=replace(right.graph, output=change(live_output(right))))
    message, where = described("logits_parity", spoiled)
    assert message.startswith("the outputs have different shapes or dtypes: eager ")
    assert where["eager"] != where["graph"]


def test_bits_are_compared_and_not_values() -> None:
    """-0.0 is not 0.0, and a NaN is itself."""
    for left, right, differs in ((0.0, -0.0, True), (float("nan"), float("nan"), False)):
        spoiled = observation()
        for output, value in ((spoiled.eager.output, left), (spoiled.graph.output, right)):
            assert output is not None
            output["logits"][1, 3] = value
        assert ("logits_parity" in violated(spoiled)) == differs


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("plane", [0, 1], ids=["K", "V"])
@pytest.mark.parametrize("world", ["eager", "graph"])
def test_a_wrong_element_of_kv_is_described_with_its_model_and_place(
    world: str, plane: int, role: Role, kind: Kind
) -> None:
    """In whichever world it is wrong."""
    spoiled = observation(Mode.DECODE)
    slot = OWNERS[1].slots(kind)[1]
    flip(arena_of(getattr(spoiled, world), role, kind), 0, plane, slot, 1, 3)
    message, where = described("kv_parity", spoiled)
    layers = spoiled.layout.configs[role].layers_of(kind)
    place = {"model": role, "layer": layers[0], "kind": kind, "tensor": "KV"[plane], "slot": slot}
    assert where.items() >= {**place, "head": 1, "element": 3, "owner": "request 4"}.items()
    assert where["differing_slots"] == [slot]
    assert int(where["eager_bits"], 16) ^ int(where["graph_bits"], 16) == 1
    start = f"{role} layer {layers[0]} ({kind}), {'KV'[plane]}, slot {slot} of request 4"
    assert message.startswith(start)


def test_the_first_differing_layer_is_named_with_all_its_slots_that_differ() -> None:
    spoiled = observation()
    arena = arena_of(spoiled.graph, Role.TARGET, Kind.SWA)
    for slot in (FREE, 2):
        flip(arena, 1, 1, slot, 0, 0)
    flip(arena_of(spoiled.graph, Role.DRAFT, Kind.FULL), 0, 0, 1, 0, 0)
    _, where = described("kv_parity", spoiled)
    second = spoiled.layout.configs[Role.TARGET].layers_of(Kind.SWA)[1]
    assert (where["model"], where["layer"], where["tensor"]) == ("target", second, "V")
    assert (where["slot"], where["differing_slots"]) == (2, [2, FREE])


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("mode", [mode for mode in Mode if mode.written is not None])
def test_a_step_may_write_its_own_slots_in_the_pool_of_the_model_that_writes_alone(
    mode: Mode, role: Role
) -> None:
    """The same slot of the other model's pool is outside its frame."""
    spoiled = observation(mode)
    for kind in Kind:
        span = spoiled.graph.spans[-1]
        slot = (span.full_slots if kind is Kind.FULL else span.swa_slots)[-1]
        for world in (spoiled.eager, spoiled.graph):
            arena_of(world, role, kind)[:, :, slot] = 1.5
    right = role is mode.written
    assert ("write_frame" in violated(spoiled)) == (not right)
    if not right:
        where = described("write_frame", spoiled)[1]
        assert (where["run"], where["model"]) == ("graph", role)


@pytest.mark.parametrize("world", ["eager", "graph"])
@pytest.mark.parametrize(("slot", "owner"), [(FREE, "nobody"), (13, "request 4")])
def test_a_stray_write_of_one_world_is_described_with_that_world_and_the_owner(
    world: str, slot: int, owner: str
) -> None:
    spoiled = observation()
    arena_of(getattr(spoiled, world), Role.TARGET, Kind.SWA)[-1, 0, slot, 0, 0] = 1.5
    message, where = described("write_frame", spoiled)
    expected = {"run": world, "model": "target", "kind": "swa", "slot": slot, "owner": owner}
    assert where == expected
    assert message == (
        f"the {world} run changed target swa slot {slot} of {owner}, which is not in "
        "the step's out_cache_loc"
    )


@pytest.mark.parametrize("slot", [0, FREE], ids=["reserved slot", "free slot"])
@pytest.mark.parametrize("world", ["graph", "eager"])
@pytest.mark.parametrize("role", Role)
def test_a_frozen_draft_that_writes_is_described_with_world_and_slot(
    role: Role, world: str, slot: int
) -> None:
    """The reserved slot too, which any other forward may write."""
    spoiled = observation(Mode.FROZEN_DRAFT)
    arena_of(getattr(spoiled, world), role, Kind.SWA)[-1, 1, slot] = 1.5
    _, where = described("write_frame", spoiled)
    owner = where.pop("owner")
    assert where == {"run": world, "model": role, "kind": "swa", "slot": slot}
    assert owner == "nobody"
    others: set[str] = set() if slot == 0 else {"kv_parity"}
    assert violated(spoiled) == {"write_frame"} | others


def test_what_is_undefined_in_a_static_output_is_not_compared() -> None:
    """A prefill's padded tokens were never initialised; its live ones are compared."""
    right = observation(Mode.EXTEND)
    assert right.replay is not None
    live = replace(right.replay, defined=right.replay.live_output)
    fresh = {name: values.clone() for name, values in live.live_output.items()}
    observed = replace(right, replay=live, extra={"hermetic_replay": fresh})
    live.output["hidden"][-1] += 1
    assert violated(observed) == set()
    live.output["hidden"][0] += 1
    assert "hermetic_replay" in violated(observed)


def test_a_replay_that_is_none_without_a_history_depends_on_it() -> None:
    """Neither is one that was not asked for, nor one that is none with a history."""
    right = observation()
    alone = replace(right, extra={**right.extra, "hermetic_replay": None})
    assert "hermetic_replay" in violated(alone)
    message, where = described("hermetic_replay", alone)
    assert message == "decode replays this batch; a freshly captured runner replays nothing"
    assert where == {}
    assert "hermetic_replay" not in violated(replace(alone, replay=None))


def test_what_no_extra_run_gave_is_not_judged() -> None:
    assert violated(replace(observation(), extra={})) == set()


def test_kv_that_noise_may_change_is_not_compared() -> None:
    right = observation()
    noisy = replace(right.graph, after=right.extra["padding_noninterference"].storage)
    arena_of(noisy, Role.TARGET, Kind.FULL)[:, :, FREE] = -3.0
    assert violated(right) == set()


def test_an_eager_step_that_no_graph_could_run_is_on_its_path() -> None:
    eager = replace(silent_eager_fallback(observation()), expected_graph=False)
    assert violated(eager) == set()


def test_the_rows_of_a_variant_are_held_against_those_of_the_same_requests() -> None:
    """A variant that gives the rows in the usual order, where it ran another, is found out."""
    right = observation()
    assert right.eager.output is not None
    usual = {name: values.clone() for name, values in right.eager.output.items()}
    spoiled = with_extra(right, "batch_invariance", (Variant("in reverse", (1, 0), usual),))
    assert violated(spoiled) == {"batch_invariance"}


def test_red_flags_are_read_in_the_order_of_the_table_whether_on_the_device_or_not() -> None:
    """A flag that is a plain bool takes no place among those that are read together."""
    spoiled = logged_warning(moved_buffer(observation()))
    stray_write_of_both_worlds(spoiled)
    flip(first_of(dict(live_output(spoiled))), 0, 0)
    found = [violation.property for violation in judge(PROPERTIES.values(), spoiled)]
    assert found == [
        name
        for name in OF_STEPS
        if name
        in {
            *("logits_parity", "write_frame", "hermetic_replay", "padding_noninterference"),
            *("index_contract", "log_hygiene"),
        }
    ]
    assert {one.step for one in judge(PROPERTIES.values(), spoiled)} == {3}


def test_the_facts_of_a_buffer_are_its_form_and_its_place() -> None:
    """An equal buffer elsewhere, or a part of it, has other facts."""
    buffer = torch.zeros(4, dtype=torch.int32)
    assert BufferFacts.of(buffer) == BufferFacts.of(buffer.view(4))
    for other in (buffer.clone(), buffer[:2], buffer[1:], buffer.view(torch.float32)):
        assert BufferFacts.of(other) != BufferFacts.of(buffer)


def test_graph_facts_are_of_the_ops_that_the_graph_holds() -> None:
    """A graph breaches nothing if its counts are the expected ones, whatever ops it lists."""
    graph = GraphFacts((), 0, 0, holds_attention=True, expects_attention=True)
    assert violated(with_facts(observation(), graph=graph)) == set()
