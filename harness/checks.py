"""The checks: one per property. Each has a flag, cheap, and an explanation, asked for if red.

Flags that live on the device are read by the host together, once a step.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.arms import Arms, BufferFacts
from harness.bits import any_set, bits, differ, outputs_differ
from harness.localise import first_index, first_kv_difference, first_output_difference, owner
from harness.trace import Trace
from harness.violation import Violation
from reference.batch import Mode, Span
from reference.config import Kind
from reference.model import Output
from reference.pool import LOC_DTYPE, KVPools
from subjects.contracts import LISTED_CONVERSIONS
from subjects.pool import TRANSLATE
from subjects.runner import GraphRunner

Told = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Check:
    """How one property is judged on one step."""

    property: str
    flag: Callable[[Trace], Tensor | bool]
    explain: Callable[[Trace], Told]


def judge(checks: Iterable[Check], trace: Trace) -> tuple[Violation, ...]:
    """Return the violations of one step, reading the device once."""
    flags = [(check, check.flag(trace)) for check in checks]
    on_device = [flag for _, flag in flags if isinstance(flag, Tensor)]
    read = iter(torch.stack(on_device).tolist() if on_device else [])
    red = [check for check, flag in flags if (next(read) if isinstance(flag, Tensor) else flag)]
    return tuple(_violation(check, trace) for check in red)


def _violation(check: Check, trace: Trace) -> Violation:
    told, where = check.explain(trace)
    return Violation(check.property, trace.step, told, where)


def _logits_differ(trace: Trace) -> Tensor | bool:
    if trace.eager_output is None or trace.graph_output is None:
        return False
    return outputs_differ(trace.eager_output, trace.graph_output)


def _tell_logits(trace: Trace) -> Told:
    assert trace.eager_output is not None and trace.graph_output is not None
    assert trace.batch is not None
    where = first_output_difference(trace.eager_output, trace.graph_output)
    rows = len(trace.eager_output[where["tensor"]])
    span = request_at(trace, rows, where["row"])
    where["owner"] = f"request {trace.arms.graph.request_of(trace.batch.spans[span].row).serial}"
    return (
        f"live row {where['row']} ({where['owner']}), {where['tensor']} {where['element']}:"
        f" eager {where['eager_bits']}, graph {where['graph_bits']}",
        where,
    )


def request_at(trace: Trace, rows: int, row: int) -> int:
    """Return which request of the batch row `row` of an output of `rows` rows is of."""
    assert trace.batch is not None
    return row if rows == trace.batch.raw_bs else int(trace.batch.token_requests[row])


def _kv_differs(trace: Trace) -> Tensor:
    arms = trace.arms
    different = bits(arms.eager_pools.storage) != bits(arms.graph_pools.storage)
    return any_set(different & arms.compared)


def _tell_kv(trace: Trace) -> Told:
    arms = trace.arms
    storages = arms.eager_pools.storage, arms.graph_pools.storage
    where = first_kv_difference(arms.graph_pools, *storages)
    where["owner"] = owner(arms.graph, spans_of(trace), where["kind"], where["slot"])
    return tell_slot(where) + f" eager {where['eager_bits']}, graph {where['graph_bits']}", where


def spans_of(trace: Trace) -> tuple[Span, ...]:
    """Return what the step's batch runs; nothing if it is idle."""
    return trace.batch.spans if trace.batch is not None else ()


def tell_slot(where: dict[str, Any]) -> str:
    """Return a place in a pool, in words."""
    return (
        f"{where['model']} layer {where['layer']} ({where['kind']}), {where['tensor']},"
        f" slot {where['slot']} of {where['owner']}, head {where['head']},"
        f" element {where['element']}:"
    )


def strays(trace: Trace, *, graph: bool) -> tuple[KVPools, Tensor]:
    """Return one world's pools and, in their storage's layout, what elements the step strayed into.

    That is: changed, but in no slot of the step's out_cache_loc in the pool of the model
    that writes, nor in slot 0.
    """
    arms = trace.arms
    pools = arms.graph_pools if graph else arms.eager_pools
    before = trace.before.graph if graph else trace.before.eager
    changed = bits(pools.storage) != bits(before)
    for role, kind, arena in pools.arenas_of(changed):
        arena[:, :, 0] = False
        if trace.batch is not None and role is trace.mode.written:
            full = trace.batch.out_cache_loc
            own = full if kind is Kind.FULL else pools.tables.full_to_swa_index_mapping[full]
            arena.index_fill_(2, own, value=False)
    return pools, changed


def _strayed(trace: Trace) -> Tensor:
    return any_set(torch.stack([strays(trace, graph=graph)[1] for graph in (True, False)]))


def _tell_stray(trace: Trace) -> Told:
    for world in ("graph", "eager"):
        pools, strayed = strays(trace, graph=world == "graph")
        for role, kind, arena in pools.arenas_of(strayed):
            if arena.any():
                slot = first_index(arena.any(dim=(0, 1, 3, 4)))[0]
                where = {"world": world, "model": str(role), "kind": str(kind), "slot": slot}
                where["owner"] = owner(trace.arms.graph, spans_of(trace), kind, slot)
                told = (
                    f"the {world} world changed {role} {kind} slot {slot} of {where['owner']},"
                    " which is not in the step's out_cache_loc"
                )
                return told, where
    raise ValueError("no slot was changed")


def _thawed(trace: Trace) -> Tensor | bool:
    if trace.mode is not Mode.FROZEN_DRAFT:
        return False
    arms, before = trace.arms, trace.before
    return differ(arms.graph_pools.storage, before.graph) | differ(
        arms.eager_pools.storage, before.eager
    )


def _tell_thawed(trace: Trace) -> Told:
    arms, before = trace.arms, trace.before
    worlds = ("graph", arms.graph_pools, before.graph), ("eager", arms.eager_pools, before.eager)
    for world, pools, storage in worlds:
        changed = bits(pools.storage) != bits(storage)
        for role, kind, arena in pools.arenas_of(changed):
            if arena.any():
                slot = first_index(arena.any(dim=(0, 1, 3, 4)))[0]
                where = {"world": world, "model": str(role), "kind": str(kind), "slot": slot}
                told = f"a frozen-KV draft of the {world} world wrote {role} {kind} slot {slot}"
                return told, where
    raise ValueError("no slot was changed")


def _has_history(trace: Trace) -> Tensor | bool:
    if trace.replay is None or trace.probed.fresh_output is None:
        return False
    return outputs_differ(trace.probed.fresh_output, trace.replay.defined)


def _tell_history(trace: Trace) -> Told:
    assert trace.replay is not None and trace.probed.fresh_output is not None
    replay = trace.replay
    where = first_output_difference(trace.probed.fresh_output, replay.defined)
    where["live"] = where["row"] < replay.rows
    row = f"{'live' if where['live'] else 'padded'} row {where['row']}"
    rows = len(replay.defined[where["tensor"]])
    return (
        f"{replay.runner}, {row} of {rows}, {where['tensor']} {where['element']}: just captured"
        f" {where['eager_bits']}, with its history {where['graph_bits']}",
        where,
    )


def contract_breaches(arms: Arms, runner: GraphRunner) -> list[str]:
    """List what is not as it was captured, or of a dtype that is neither the pool's nor listed."""
    breaches = []
    for name, buffer in runner.static_buffers().items():
        facts, captured = BufferFacts.of(buffer), arms.subject.facts[runner.name, name]
        if facts != captured:
            breaches.append(f"static buffer {name} was captured as {captured} and is now {facts}")
    swa_loc = runner.static_buffers().get("out_cache_loc_swa")
    wanted = {arms.subject.translated_dtype, LOC_DTYPE[Kind.SWA]}
    if swa_loc is not None and {swa_loc.dtype} != wanted:
        breaches.append(
            f"out_cache_loc_swa is {swa_loc.dtype}, but the pool translates to"
            f" {arms.subject.translated_dtype} and its store reads {LOC_DTYPE[Kind.SWA]}"
        )
    conversions = runner.conversions
    breaches += [
        f"{name} is converted on copy from {source} to {destination}, which is not listed"
        for name, source, destination in sorted(conversions - LISTED_CONVERSIONS, key=str)
    ]
    return breaches


def _breaks_contract(trace: Trace) -> bool:
    if trace.replay is None:
        return False
    return bool(contract_breaches(trace.arms, trace.arms.subject.runner_of(trace.replay)))


def _tell_contract(trace: Trace) -> Told:
    assert trace.replay is not None
    breaches = contract_breaches(trace.arms, trace.arms.subject.runner_of(trace.replay))
    return "; ".join(breaches), {"breaches": breaches}


def path_breaches(trace: Trace) -> list[str]:
    """List what shows that the captured path was not taken, or is not the era's."""
    arms, replay = trace.arms, trace.replay
    if replay is None:
        return ["no graph was replayed though one was captured"] if trace.expected_graph else []
    runner = arms.subject.runner_of(replay)
    operations = runner.operations(replay.bucket)
    breaches = []
    wanted, found = runner.translations(arms.trial.era), operations.count(TRANSLATE)
    if found != wanted:
        breaches.append(f"the graph holds {found} translations; its era has {wanted}")
    if ("attention" in operations) != runner.attention_captured:
        held = "no attention" if runner.attention_captured else "attention, which runs between"
        breaches.append(f"the graph holds {held}")
    if trace.allocated:
        breaches.append(f"the allocator handed out {trace.allocated} blocks around the replay")
    moved = [
        name
        for name, each in replay.output.items()
        if runner.captures
        and BufferFacts.of(each) != arms.subject.outputs[runner.name, replay.bucket, name]
    ]
    if moved:
        breaches.append(f"the static output {moved[0]} is not where it was captured")
    return breaches


def _leaves_path(trace: Trace) -> bool:
    return bool(path_breaches(trace))


def _tell_path(trace: Trace) -> Told:
    breaches = path_breaches(trace)
    return "; ".join(breaches), {"breaches": breaches}


def _warned(trace: Trace) -> bool:
    return bool(trace.warnings)


def _tell_warnings(trace: Trace) -> Told:
    path = "graph replay" if trace.replay is not None else "eager forward"
    return f"{path}: {trace.warnings[0]}", {"messages": list(trace.warnings), "path": path}


def _is_interfered(trace: Trace) -> Tensor | bool:
    noisy = trace.probed.noisy
    if noisy is None or trace.graph_output is None:
        return False
    storage = trace.arms.graph_pools.storage
    stored = any_set((bits(noisy.storage) != bits(storage)) & noisy.owned)
    return stored | outputs_differ(noisy.output, trace.graph_output)


def _tell_interference(trace: Trace) -> Told:
    noisy, arms = trace.probed.noisy, trace.arms
    assert noisy is not None and trace.graph_output is not None
    storage = arms.graph_pools.storage
    if ((bits(noisy.storage) != bits(storage)) & noisy.owned).any():
        where = first_kv_difference(arms.graph_pools, storage, noisy.storage, noisy.owned)
        where["owner"] = owner(arms.graph, spans_of(trace), where["kind"], where["slot"])
        return "noise in bytes nobody owns changed " + tell_slot(where) + " it was written", where
    where = first_output_difference(trace.graph_output, noisy.output)
    changed = f"{where['tensor']} of live row {where['row']}"
    return f"noise in bytes nobody owns changed {changed}", where


def _varies(trace: Trace) -> Tensor | bool:
    if trace.eager_output is None or not trace.probed.variants:
        return False
    return torch.stack(
        [
            outputs_differ(in_order(trace, trace.eager_output, each.order), each.output)
            for each in trace.probed.variants
        ]
    ).any()


def in_order(trace: Trace, output: Output, order: tuple[int, ...]) -> Output:
    """Return the rows of an output that belong to some requests of its batch, in their order."""
    assert trace.batch is not None
    requests = trace.batch.token_requests.tolist()
    by_rows = {
        rows: [
            row
            for request in order
            for row in range(rows)
            if (row if rows == trace.batch.raw_bs else requests[row]) == request
        ]
        for rows in {len(each) for each in output.values()}
    }
    return {name: each[by_rows[len(each)]] for name, each in output.items()}


def _tell_variant(trace: Trace) -> Told:
    assert trace.eager_output is not None
    for each in trace.probed.variants:
        usual = in_order(trace, trace.eager_output, each.order)
        if outputs_differ(usual, each.output):
            where = first_output_difference(usual, each.output) | {"variant": each.told}
            row = f"row {where['row']} of {where['tensor']}"
            return f"{row} has other bits when it runs {each.told}", where
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
