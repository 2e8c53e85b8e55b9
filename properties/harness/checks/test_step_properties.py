"""Each property of a step, judged on an observation made by hand: when it is violated, and how.

Nothing is played here. `test_planted_faults` shows that what a fault does reaches an observation.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from paritybit.harness.checks.property import Description, judge_step
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.batch import Mode
from paritybit.reference.config import Kind, Role

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


def violated(observed: Observation) -> set[str]:
    """Return the properties that a step violates."""
    return {violation.property for violation in judge_step(PROPERTIES.values(), observed)}


def described(property_id: str, observed: Observation) -> Description:
    """Return how a property that is violated describes it."""
    found = {one.property: one for one in judge_step(PROPERTIES.values(), observed)}
    return found[property_id].message, found[property_id].where


def with_facts(observed: Observation, **changes: Any) -> Observation:
    """Return an observation with some of the replay's facts replaced."""
    assert observed.facts is not None
    return replace(observed, facts=replace(observed.facts, **changes))


def live_output(observed: Observation) -> Mapping[str, torch.Tensor]:
    """Return the graph run's live output."""
    assert observed.graph.output is not None
    return observed.graph.output


# One fault for each kind of thing that a property is for; no other property sees it.


def padded_row_with_a_history(observed: Observation) -> None:
    """A padded row of the output that has other bits than without earlier replays."""
    flip(first_of(observed.extra["hermetic_replay"]), -1, 0)


def kv_that_noise_changed(observed: Observation) -> None:
    """KV that depends on bytes nobody owns."""
    noisy = replace(observed.graph, after=observed.extra["padding_noninterference"].storage)
    slot = observed.graph.spans[1].swa_slots[0]
    flip(arena_of(noisy, Role.TARGET, Kind.SWA), 0, 1, slot, 0, 0)


def retyped_buffer(observed: Observation) -> Observation:
    """A static buffer of another dtype than was captured."""
    assert observed.facts is not None
    now = replace(observed.facts.buffers["seq_lens"], dtype=torch.int64)
    return with_facts(observed, buffers={**observed.facts.buffers, "seq_lens": now})


def input_of_another_dtype(observed: Observation) -> Observation:
    """Positions as int32, where the batch has int64."""
    narrow = {"positions": observed.static["positions"].int()}
    return replace(observed, static={**observed.static, **narrow})


def silent_eager_fallback(observed: Observation) -> Observation:
    """No replay, and all the right bits, though a graph was captured for the step."""
    return replace(observed, replay=None, facts=None, extra={})


def no_attention(observed: Observation) -> Observation:
    """A full graph whose attention is missing."""
    return with_facts(observed, holds_attention=False)


def attention_in_pieces(observed: Observation) -> Observation:
    """Attention in the graphs of a runner whose attention runs between them."""
    return with_facts(observed, expects_attention=False)


def token_of_another(observed: Observation) -> None:
    """A token of the second request differs in the eager run."""
    owner = observed.end.eager.holders[1]
    observed.end.eager.tokens[owner.token_row, owner.known - 1] -= 1


FAULTS: list[tuple[str, Spoil]] = [
    ("hermetic_replay", padded_row_with_a_history),
    ("padding_noninterference", kv_that_noise_changed),
    ("index_contract", retyped_buffer),
    ("index_contract", input_of_another_dtype),
    ("captured_path", silent_eager_fallback),
    ("captured_path", no_attention),
    ("captured_path", attention_in_pieces),
    ("next_tokens", token_of_another),
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


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("plane", [0, 1], ids=["K", "V"])
@pytest.mark.parametrize("side", ["eager", "graph"])
def test_a_wrong_element_of_kv_is_described_with_its_model_and_place(
    side: str, plane: int, role: Role, kind: Kind
) -> None:
    """In whichever side it is wrong."""
    spoiled = observation(Mode.DECODE)
    slot = OWNERS[1].slots(kind)[1]
    flip(arena_of(getattr(spoiled, side), role, kind), 0, plane, slot, 1, 3)
    message, where = described("kv_parity", spoiled)
    layers = spoiled.layout.configs[role].layers_of(kind)
    place = {"model": role, "layer": layers[0], "kind": kind, "tensor": "KV"[plane], "slot": slot}
    assert where.items() >= {**place, "head": 1, "element": 3, "owner": "request 4"}.items()
    assert where["differing_slots"] == [slot]
    assert int(where["eager_bits"], 16) ^ int(where["graph_bits"], 16) == 1
    start = f"{role} layer {layers[0]} ({kind}), {'KV'[plane]}, slot {slot} of request 4"
    assert message.startswith(start)


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
        for side in (spoiled.eager, spoiled.graph):
            arena_of(side, role, kind)[:, :, slot] = 1.5
    right = role is mode.written
    assert ("write_frame" in violated(spoiled)) == (not right)
    if not right:
        where = described("write_frame", spoiled)[1]
        assert (where["run"], where["model"]) == ("graph", role)


@pytest.mark.parametrize("side", ["eager", "graph"])
@pytest.mark.parametrize(("slot", "owner"), [(FREE, "nobody"), (13, "request 4")])
def test_a_stray_write_names_the_run_and_the_owner(side: str, slot: int, owner: str) -> None:
    spoiled = observation()
    arena_of(getattr(spoiled, side), Role.TARGET, Kind.SWA)[-1, 0, slot, 0, 0] = 1.5
    message, where = described("write_frame", spoiled)
    expected = {"run": side, "model": "target", "kind": "swa", "slot": slot, "owner": owner}
    assert where == expected
    assert message == (
        f"the {side} run changed target swa slot {slot} of {owner}, which is not in "
        "the step's out_cache_loc"
    )
