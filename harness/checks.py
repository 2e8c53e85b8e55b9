"""The checks: one per property. Each has a flag, cheap, and an explanation, asked for if red.

Flags that live on the device are read by the host together, once a step.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.arms import Arms, BufferFacts
from harness.bits import any_set, bits, differ
from harness.localise import first_index, first_kv_difference, first_row_difference, owner
from harness.trace import Trace
from harness.violation import Violation
from reference.config import Kind
from reference.pool import LOC_DTYPE, HybridKVPool
from subjects.behaviour import Era
from subjects.contracts import LISTED_CONVERSIONS
from subjects.pool import TRANSLATE

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
    if trace.eager_logits is None or trace.graph_logits is None:
        return False
    return differ(trace.eager_logits, trace.graph_logits)


def _tell_logits(trace: Trace) -> Told:
    assert trace.eager_logits is not None and trace.graph_logits is not None
    assert trace.batch is not None
    where = first_row_difference(trace.eager_logits, trace.graph_logits)
    request = trace.arms.graph.request_of(trace.batch.spans[where["row"]].row)
    where["owner"] = f"request {request.serial}"
    return (
        f"live row {where['row']} ({where['owner']}), logit {where['element']}:"
        f" eager {where['eager_bits']}, graph {where['graph_bits']}",
        where,
    )


def _kv_differs(trace: Trace) -> Tensor:
    arms = trace.arms
    different = bits(arms.eager_pool.storage) != bits(arms.graph_pool.storage)
    return any_set(different & arms.compared)


def _tell_kv(trace: Trace) -> Told:
    arms = trace.arms
    where = first_kv_difference(arms.graph_pool, arms.eager_pool.storage, arms.graph_pool.storage)
    where["owner"] = owner(arms.graph, where["kind"], where["slot"])
    return tell_slot(where) + f" eager {where['eager_bits']}, graph {where['graph_bits']}", where


def tell_slot(where: dict[str, Any]) -> str:
    """Return a place in a pool, in words."""
    return (
        f"layer {where['layer']} ({where['kind']}), {where['tensor']}, slot {where['slot']} of"
        f" {where['owner']}, head {where['head']}, element {where['element']}:"
    )


def strays(trace: Trace, *, graph: bool) -> tuple[HybridKVPool, Tensor]:
    """Return one world's pool and, in its storage's layout, which elements the step strayed into.

    That is: changed, but in no slot of the step's out_cache_loc, nor in slot 0.
    """
    arms = trace.arms
    pool = arms.graph_pool if graph else arms.eager_pool
    before = trace.before.graph if graph else trace.before.eager
    changed = bits(pool.storage) != bits(before)
    for kind, arena in pool.arenas_of(changed).items():
        arena[:, :, 0] = False
        if trace.batch is not None:
            full = trace.batch.out_cache_loc
            own = full if kind is Kind.FULL else pool.full_to_swa_index_mapping[full]
            arena.index_fill_(2, own, value=False)
    return pool, changed


def _strayed(trace: Trace) -> Tensor:
    return any_set(torch.stack([strays(trace, graph=graph)[1] for graph in (True, False)]))


def _tell_stray(trace: Trace) -> Told:
    for world in ("graph", "eager"):
        pool, strayed = strays(trace, graph=world == "graph")
        for kind, arena in pool.arenas_of(strayed).items():
            if arena.any():
                slot = first_index(arena.any(dim=(0, 1, 3, 4)))[0]
                where = {"world": world, "kind": str(kind), "slot": slot}
                where["owner"] = owner(trace.arms.graph, kind, slot)
                told = (
                    f"the {world} world changed {kind} slot {slot} of {where['owner']},"
                    " which is not in the step's out_cache_loc"
                )
                return told, where
    raise ValueError("no slot was changed")


def _has_history(trace: Trace) -> Tensor | bool:
    if trace.replay is None or trace.probed.fresh_output is None:
        return False
    return differ(trace.probed.fresh_output, trace.replay.output)


def _tell_history(trace: Trace) -> Told:
    assert trace.replay is not None and trace.probed.fresh_output is not None
    where = first_row_difference(trace.probed.fresh_output, trace.replay.output)
    where["live"] = where["row"] < trace.replay.raw_bs
    return (
        f"{'live' if where['live'] else 'padded'} row {where['row']} of {trace.replay.bs}, output"
        f" {where['element']}: just captured {where['eager_bits']}, with its history"
        f" {where['graph_bits']}",
        where,
    )


def contract_breaches(arms: Arms) -> list[str]:
    """List what is not as it was captured, or of a dtype that is neither the pool's nor listed."""
    runner = arms.subject.runner
    breaches = []
    for name, buffer in runner.static_buffers().items():
        facts, captured = BufferFacts.of(buffer), arms.subject.facts[name]
        if facts != captured:
            breaches.append(f"static buffer {name} was captured as {captured} and is now {facts}")
    swa_loc = runner.static_buffers().get("out_cache_loc_swa")
    wanted = {arms.subject.translated_dtype, LOC_DTYPE[Kind.SWA]}
    if swa_loc is not None and {swa_loc.dtype} != wanted:
        breaches.append(
            f"out_cache_loc_swa is {swa_loc.dtype}, but the pool translates to"
            f" {arms.subject.translated_dtype} and its store reads {LOC_DTYPE[Kind.SWA]}"
        )
    conversions = runner.inputs.conversions | runner.metadata.conversions
    breaches += [
        f"{name} is converted on copy from {source} to {destination}, which is not listed"
        for name, source, destination in sorted(conversions - LISTED_CONVERSIONS, key=str)
    ]
    return breaches


def _breaks_contract(trace: Trace) -> bool:
    return trace.replay is not None and bool(contract_breaches(trace.arms))


def _tell_contract(trace: Trace) -> Told:
    breaches = contract_breaches(trace.arms)
    return "; ".join(breaches), {"breaches": breaches}


def path_breaches(trace: Trace) -> list[str]:
    """List what shows that the captured path was not taken, or is not the era's."""
    arms, replay = trace.arms, trace.replay
    if replay is None:
        return ["no graph was replayed though one was captured"] if trace.expected_graph else []
    graph = arms.subject.runner.graphs[replay.bs]
    breaches = []
    wanted = {
        Era.PER_LAYER: len(arms.config.layers_of(Kind.SWA)),
        Era.PRESET: 0,
        Era.MEMO: 1,
    }[arms.trial.era]
    found = graph.operations.count(TRANSLATE)
    if found != wanted:
        breaches.append(f"the graph holds {found} translations; its era has {wanted}")
    if "attention" not in graph.operations:
        breaches.append("the graph holds no attention")
    if trace.allocated:
        breaches.append(f"the allocator handed out {trace.allocated} blocks around the replay")
    if BufferFacts.of(replay.output) != arms.subject.outputs[replay.bs]:
        breaches.append("the static output is not where it was captured")
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
    if noisy is None or trace.graph_logits is None:
        return False
    storage = trace.arms.graph_pool.storage
    stored = any_set((bits(noisy.storage) != bits(storage)) & noisy.owned)
    return stored | differ(noisy.logits, trace.graph_logits)


def _tell_interference(trace: Trace) -> Told:
    noisy, arms = trace.probed.noisy, trace.arms
    assert noisy is not None and trace.graph_logits is not None
    storage = arms.graph_pool.storage
    if ((bits(noisy.storage) != bits(storage)) & noisy.owned).any():
        where = first_kv_difference(arms.graph_pool, storage, noisy.storage, noisy.owned)
        where["owner"] = owner(arms.graph, where["kind"], where["slot"])
        return "noise in bytes nobody owns changed " + tell_slot(where) + " it was written", where
    where = first_row_difference(trace.graph_logits, noisy.logits)
    return f"noise in bytes nobody owns changed the logits of live row {where['row']}", where


def _varies(trace: Trace) -> Tensor | bool:
    if trace.eager_logits is None or not trace.probed.variants:
        return False
    return torch.stack(
        [differ(trace.eager_logits[each.row], each.logits) for each in trace.probed.variants]
    ).any()


def _tell_variant(trace: Trace) -> Told:
    assert trace.eager_logits is not None
    for each in trace.probed.variants:
        if differ(trace.eager_logits[each.row], each.logits):
            where = first_row_difference(trace.eager_logits[each.row][None], each.logits[None])
            where |= {"row": each.row, "variant": each.told}
            return f"row {each.row} has other bits when it runs {each.told}", where
    raise ValueError("no variant differs")


STEP_CHECKS = (
    Check("logits_parity", _logits_differ, _tell_logits),
    Check("kv_parity", _kv_differs, _tell_kv),
    Check("write_frame", _strayed, _tell_stray),
    Check("hermetic_replay", _has_history, _tell_history),
    Check("padding_noninterference", _is_interfered, _tell_interference),
    Check("index_contract", _breaks_contract, _tell_contract),
    Check("captured_path", _leaves_path, _tell_path),
    Check("log_hygiene", _warned, _tell_warnings),
    Check("batch_invariance", _varies, _tell_variant),
)
"""The checks of a step, in the order they are told."""
