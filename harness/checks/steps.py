"""The checks: one per property. Each has a flag, cheap, and an explanation, asked for if red.

Flags that live on the device are read by the host together, once a step.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.checks.differences import (
    first_index,
    first_kv_difference,
    first_output_difference,
    owner,
)
from harness.lockstep.bits import any_set, bits, differ, outputs_differ
from harness.lockstep.observation import Observation
from harness.lockstep.pair import BufferFacts, Pair
from harness.lockstep.violation import Violation
from reference.batch import Mode, Span
from reference.config import Kind
from reference.model import Output
from reference.pool import LOC_DTYPE, KVPools
from subjects.contracts import LISTED_CONVERSIONS
from subjects.pool import TRANSLATE
from subjects.runners.base import GraphRunner

Told = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Check:
    """How one property is judged on one step."""

    property: str
    flag: Callable[[Observation], Tensor | bool]
    explain: Callable[[Observation], Told]


def judge(checks: Iterable[Check], observation: Observation) -> tuple[Violation, ...]:
    """Return the violations of one step, reading the device once."""
    flags = [(check, check.flag(observation)) for check in checks]
    on_device = [flag for _, flag in flags if isinstance(flag, Tensor)]
    read = iter(torch.stack(on_device).tolist() if on_device else [])
    red = [check for check, flag in flags if (next(read) if isinstance(flag, Tensor) else flag)]
    return tuple(_violation(check, observation) for check in red)


def _violation(check: Check, observation: Observation) -> Violation:
    message, where = check.explain(observation)
    return Violation(check.property, observation.step, message, where)


def _logits_differ(observation: Observation) -> Tensor | bool:
    if observation.eager_output is None or observation.graph_output is None:
        return False
    return outputs_differ(observation.eager_output, observation.graph_output)


def _tell_logits(observation: Observation) -> Told:
    assert observation.eager_output is not None and observation.graph_output is not None
    assert observation.batch is not None
    where = first_output_difference(observation.eager_output, observation.graph_output)
    rows = len(observation.eager_output[where["tensor"]])
    span = request_at(observation, rows, where["row"])
    where["owner"] = (
        f"request {observation.pair.graph.request_of(observation.batch.spans[span].row).serial}"
    )
    return (
        f"live row {where['row']} ({where['owner']}), {where['tensor']} {where['element']}:"
        f" eager {where['eager_bits']}, graph {where['graph_bits']}",
        where,
    )


def request_at(observation: Observation, rows: int, row: int) -> int:
    """Return which request of the batch row `row` of an output of `rows` rows is of."""
    assert observation.batch is not None
    return (
        row
        if rows == observation.batch.live_requests
        else int(observation.batch.token_requests[row])
    )


def _kv_differs(observation: Observation) -> Tensor:
    pair = observation.pair
    different = bits(pair.eager_pools.storage) != bits(pair.graph_pools.storage)
    return any_set(different & pair.compared)


def _tell_kv(observation: Observation) -> Told:
    pair = observation.pair
    storages = pair.eager_pools.storage, pair.graph_pools.storage
    where = first_kv_difference(pair.graph_pools, *storages)
    where["owner"] = owner(pair.graph, spans_of(observation), where["kind"], where["slot"])
    return tell_slot(where) + f" eager {where['eager_bits']}, graph {where['graph_bits']}", where


def spans_of(observation: Observation) -> tuple[Span, ...]:
    """Return what the step's batch runs; nothing if it is idle."""
    return observation.batch.spans if observation.batch is not None else ()


def tell_slot(where: dict[str, Any]) -> str:
    """Return a place in a pool, in words."""
    return (
        f"{where['model']} layer {where['layer']} ({where['kind']}), {where['tensor']},"
        f" slot {where['slot']} of {where['owner']}, head {where['head']},"
        f" element {where['element']}:"
    )


def writes_outside_frame(observation: Observation, *, graph: bool) -> tuple[KVPools, Tensor]:
    """Return one world's pools and, in their storage's layout, what elements the step strayed into.

    That is: changed, but in no slot of the step's out_cache_loc in the pool of the model
    that writes, nor in slot 0.
    """
    pair = observation.pair
    pools = pair.graph_pools if graph else pair.eager_pools
    before = observation.before.graph if graph else observation.before.eager
    changed = bits(pools.storage) != bits(before)
    for role, kind, arena in pools.arenas_of(changed):
        arena[:, :, 0] = False
        if observation.batch is not None and role is observation.mode.written:
            full = observation.batch.out_cache_loc
            own = full if kind is Kind.FULL else pools.tables.full_to_swa_index_mapping[full]
            arena.index_fill_(2, own, value=False)
    return pools, changed


def _strayed(observation: Observation) -> Tensor:
    return any_set(
        torch.stack([writes_outside_frame(observation, graph=graph)[1] for graph in (True, False)])
    )


def _tell_stray(observation: Observation) -> Told:
    for world in ("graph", "eager"):
        pools, strayed = writes_outside_frame(observation, graph=world == "graph")
        for role, kind, arena in pools.arenas_of(strayed):
            if arena.any():
                slot = first_index(arena.any(dim=(0, 1, 3, 4)))[0]
                where = {"world": world, "model": str(role), "kind": str(kind), "slot": slot}
                where["owner"] = owner(observation.pair.graph, spans_of(observation), kind, slot)
                message = (
                    f"the {world} world changed {role} {kind} slot {slot} of {where['owner']},"
                    " which is not in the step's out_cache_loc"
                )
                return message, where
    raise ValueError("no slot was changed")


def _thawed(observation: Observation) -> Tensor | bool:
    if observation.mode is not Mode.FROZEN_DRAFT:
        return False
    pair, before = observation.pair, observation.before
    return differ(pair.graph_pools.storage, before.graph) | differ(
        pair.eager_pools.storage, before.eager
    )


def _tell_thawed(observation: Observation) -> Told:
    pair, before = observation.pair, observation.before
    worlds = ("graph", pair.graph_pools, before.graph), ("eager", pair.eager_pools, before.eager)
    for world, pools, storage in worlds:
        changed = bits(pools.storage) != bits(storage)
        for role, kind, arena in pools.arenas_of(changed):
            if arena.any():
                slot = first_index(arena.any(dim=(0, 1, 3, 4)))[0]
                where = {"world": world, "model": str(role), "kind": str(kind), "slot": slot}
                message = f"a frozen-KV draft of the {world} world wrote {role} {kind} slot {slot}"
                return message, where
    raise ValueError("no slot was changed")


def _has_history(observation: Observation) -> Tensor | bool:
    if observation.replay is None or observation.extra.fresh_output is None:
        return False
    return outputs_differ(observation.extra.fresh_output, observation.replay.defined)


def _tell_history(observation: Observation) -> Told:
    assert observation.replay is not None and observation.extra.fresh_output is not None
    replay = observation.replay
    where = first_output_difference(observation.extra.fresh_output, replay.defined)
    where["live"] = where["row"] < replay.live_rows
    row = f"{'live' if where['live'] else 'padded'} row {where['row']}"
    rows = len(replay.defined[where["tensor"]])
    return (
        f"{replay.runner}, {row} of {rows}, {where['tensor']} {where['element']}: just captured"
        f" {where['eager_bits']}, with its history {where['graph_bits']}",
        where,
    )


def contract_breaches(pair: Pair, runner: GraphRunner) -> list[str]:
    """List what is not as it was captured, or of a dtype that is neither the pool's nor listed."""
    breaches = []
    for name, buffer in runner.static_buffers().items():
        facts, captured = BufferFacts.of(buffer), pair.subject.facts[runner.name, name]
        if facts != captured:
            breaches.append(f"static buffer {name} was captured as {captured} and is now {facts}")
    swa_loc = runner.static_buffers().get("out_cache_loc_swa")
    wanted = {pair.subject.translated_dtype, LOC_DTYPE[Kind.SWA]}
    if swa_loc is not None and {swa_loc.dtype} != wanted:
        breaches.append(
            f"out_cache_loc_swa is {swa_loc.dtype}, but the pool translates to"
            f" {pair.subject.translated_dtype} and its store reads {LOC_DTYPE[Kind.SWA]}"
        )
    conversions = runner.conversions
    breaches += [
        f"{name} is converted on copy from {source} to {destination}, which is not listed"
        for name, source, destination in sorted(conversions - LISTED_CONVERSIONS, key=str)
    ]
    return breaches


def _breaks_contract(observation: Observation) -> bool:
    if observation.replay is None:
        return False
    return bool(
        contract_breaches(observation.pair, observation.pair.subject.runner_of(observation.replay))
    )


def _tell_contract(observation: Observation) -> Told:
    assert observation.replay is not None
    breaches = contract_breaches(
        observation.pair, observation.pair.subject.runner_of(observation.replay)
    )
    return "; ".join(breaches), {"breaches": breaches}


def path_breaches(observation: Observation) -> list[str]:
    """List what shows that the captured path was not taken, or is not the era's."""
    pair, replay = observation.pair, observation.replay
    if replay is None:
        return (
            ["no graph was replayed though one was captured"] if observation.expected_graph else []
        )
    runner = pair.subject.runner_of(replay)
    operations = runner.operations(replay.bucket)
    breaches = []
    wanted, found = runner.translations(pair.trial.scheme), operations.count(TRANSLATE)
    if found != wanted:
        breaches.append(f"the graph holds {found} translations; its era has {wanted}")
    if ("attention" in operations) != runner.attention_captured:
        held = "no attention" if runner.attention_captured else "attention, which runs between"
        breaches.append(f"the graph holds {held}")
    if observation.allocated:
        breaches.append(
            f"the allocator handed out {observation.allocated} blocks around the replay"
        )
    moved = [
        name
        for name, each in replay.output.items()
        if runner.captures
        and BufferFacts.of(each) != pair.subject.outputs[runner.name, replay.bucket, name]
    ]
    if moved:
        breaches.append(f"the static output {moved[0]} is not where it was captured")
    return breaches


def _leaves_path(observation: Observation) -> bool:
    return bool(path_breaches(observation))


def _tell_path(observation: Observation) -> Told:
    breaches = path_breaches(observation)
    return "; ".join(breaches), {"breaches": breaches}


def _warned(observation: Observation) -> bool:
    return bool(observation.warnings)


def _tell_warnings(observation: Observation) -> Told:
    path = "graph replay" if observation.replay is not None else "eager forward"
    return f"{path}: {observation.warnings[0]}", {
        "messages": list(observation.warnings),
        "path": path,
    }


def _is_interfered(observation: Observation) -> Tensor | bool:
    noisy = observation.extra.noisy
    if noisy is None or observation.graph_output is None:
        return False
    storage = observation.pair.graph_pools.storage
    stored = any_set((bits(noisy.storage) != bits(storage)) & noisy.owned)
    return stored | outputs_differ(noisy.output, observation.graph_output)


def _tell_interference(observation: Observation) -> Told:
    noisy, pair = observation.extra.noisy, observation.pair
    assert noisy is not None and observation.graph_output is not None
    storage = pair.graph_pools.storage
    if ((bits(noisy.storage) != bits(storage)) & noisy.owned).any():
        where = first_kv_difference(pair.graph_pools, storage, noisy.storage, noisy.owned)
        where["owner"] = owner(pair.graph, spans_of(observation), where["kind"], where["slot"])
        return "noise in bytes nobody owns changed " + tell_slot(where) + " it was written", where
    where = first_output_difference(observation.graph_output, noisy.output)
    changed = f"{where['tensor']} of live row {where['row']}"
    return f"noise in bytes nobody owns changed {changed}", where


def _varies(observation: Observation) -> Tensor | bool:
    if observation.eager_output is None or not observation.extra.variants:
        return False
    return torch.stack(
        [
            outputs_differ(in_order(observation, observation.eager_output, each.order), each.output)
            for each in observation.extra.variants
        ]
    ).any()


def in_order(observation: Observation, output: Output, order: tuple[int, ...]) -> Output:
    """Return the rows of an output that belong to some requests of its batch, in their order."""
    assert observation.batch is not None
    requests = observation.batch.token_requests.tolist()
    by_rows = {
        rows: [
            row
            for request in order
            for row in range(rows)
            if (row if rows == observation.batch.live_requests else requests[row]) == request
        ]
        for rows in {len(each) for each in output.values()}
    }
    return {name: each[by_rows[len(each)]] for name, each in output.items()}


def _tell_variant(observation: Observation) -> Told:
    assert observation.eager_output is not None
    for each in observation.extra.variants:
        usual = in_order(observation, observation.eager_output, each.order)
        if outputs_differ(usual, each.output):
            where = first_output_difference(usual, each.output) | {"variant": each.message}
            row = f"row {where['row']} of {where['tensor']}"
            return f"{row} has other bits when it runs {each.message}", where
    raise ValueError("no variant differs")


STEP_CHECKS = (
    Check("logits_parity", _logits_differ, _tell_logits),
    Check("kv_parity", _kv_differs, _tell_kv),
    Check("write_frame", _strayed, _tell_stray),
    Check("frozen_kv", _thawed, _tell_thawed),
    Check("hermetic_replay", _has_history, _tell_history),
    Check("padding_noninterference", _is_interfered, _tell_interference),
    Check("index_contract", _breaks_contract, _tell_contract),
    Check("captured_path", _leaves_path, _tell_path),
    Check("log_hygiene", _warned, _tell_warnings),
    Check("batch_invariance", _varies, _tell_variant),
)
"""The checks of a step, in the order they are told."""
