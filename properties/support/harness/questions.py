"""Whether kernels that answer a question of a check answer as its ops do, where they can differ.

Run as a script, `python -m properties.support.harness.questions` asks them under Triton's
interpreter, which needs TRITON_INTERPRET=1.
"""

import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from paritybit.harness.checks.device import launches
from paritybit.harness.checks.device.host_arrays import on_device
from paritybit.harness.checks.device.storages import storages_differ, strayed
from paritybit.harness.checks.device.unequal import Pairs, Unequal
from paritybit.harness.checks.holdings import right_cells, wrong_cells
from paritybit.harness.checks.step_properties.live_inputs import parts
from paritybit.harness.checks.step_properties.read_frame import (
    allowed,
    blocks_of,
    listed_rows,
    most_listed,
    reads_of,
)
from paritybit.harness.checks.step_properties.write_frame import judged, writes_outside_frame
from paritybit.harness.lockstep.bits import bits
from paritybit.harness.lockstep.observation import Observation, Snapshot
from paritybit.harness.schedules.schedule import Step
from paritybit.reference.allocator import Ownership
from paritybit.reference.pool import PoolSizes
from paritybit.reference.state_pool import Section
from paritybit.subjects.protocol import Keys
from torch import Tensor

from paritybit.engines.interpreter import quicken
from properties.support.harness.planting import SCHEDULE, build

ENGINES = {"eagle_draft": 0, "frozen_kv_mtp": 7}
"""Runners of two engines, whose schedule has steps of every mode.

Interpreted kernels, which take long, are asked about one step of each: a prompt, and a verify.
"""

TIMES = 2
"""Differences that are planted for a question in each step."""

Asked = tuple[str, bool, launches.Question | Unequal]
"""What is asked, what the ops answer, and the question that the kernels do."""


def reads_wrongly(seen: Observation) -> Asked:
    """Ask whether a row reads what it must not."""
    keys, reads = seen.keys, reads_of(seen)
    assert keys is not None and reads is not None
    blocks = blocks_of(seen, listed_rows(keys))
    most = most_listed(seen, blocks)
    question = launches.reads_wrong(keys, blocks, allowed(seen, blocks), most)
    return "reads", bool(reads.wrong.any()), question


def writes_astray(seen: Observation) -> Asked:
    """Ask whether a world wrote outside the step's frame."""
    by_world = [writes_outside_frame(seen, world) for world in (seen.eager, seen.graph)]
    found = any(bool(changed.any()) for changed in by_world)
    return "writes", found, strayed(seen, judged(seen))


def worlds_differ(seen: Observation) -> Asked:
    """Ask whether the worlds' storages differ where they are compared."""
    different = bits(seen.eager.after) != bits(seen.graph.after)
    return "parity", bool((different & seen.compared).any()), storages_differ(seen)


def tables_are_wrong(sizes: PoolSizes, *judged: Sequence[Ownership]) -> Asked:
    """Ask whether a table is not as what is held says, of worlds that are alike or are not."""
    by_cells = [(worlds, right_cells(worlds[0], sizes)) for worlds in judged]
    wrong = [
        wrong_cells(worlds, on_device(cells[None], worlds[0].mapping.device)).any()
        for worlds, cells in by_cells
    ]
    return "tables", any(wrong), launches.tables_wrong(by_cells)


def other_reads(seen: Observation, draw: random.Random) -> Observation:
    """Return a step whose lists or mask differ in one number."""
    assert seen.keys is not None
    if seen.keys.mask is not None and draw.random() < 0.3:
        mask = seen.keys.mask.clone()
        mask[draw.randrange(len(mask))] ^= True
        return replace(seen, keys=replace(seen.keys, mask=mask))
    kind = draw.choice(["full", "swa"])
    held: Keys = getattr(seen.keys, kind)
    names = ["begin", "end", "slots", *(["mask_start"] if held.mask_start is not None else [])]
    name = draw.choice(names)
    numbers = getattr(held, name).clone()
    numbers[draw.randrange(len(numbers))] += draw.choice((-1, 1, -500, 500))
    changed: dict[str, Any] = {name: numbers}
    lists: dict[str, Any] = {kind: replace(held, **changed)}
    return replace(seen, keys=replace(seen.keys, **lists))


def other_writes(seen: Observation, draw: random.Random) -> Iterator[Observation]:
    """Yield steps after which one element of a world differs, often one that it may write.

    First of KV, then of each kind of state beside it: of a state's first row, which is its
    request's own, and of the last one, of a node of a tree.
    """
    for _ in range(TIMES):
        step, world, after = other_after(seen, draw)
        held = draw.choice([arena for _, _, arena in seen.layout.arenas_of(after)])
        slots = [draw.randrange(held.shape[2])]
        if world.batch is not None and draw.random() < 0.7:
            full = world.batch.out_cache_loc
            slots += [*full.tolist(), *world.mapping[full].tolist()]
        held[draw.randrange(len(held)), draw.randrange(2), slots[-1] % held.shape[2], 0, -1] += 1
        yield step
    for section, row in product(Section, (0, -1)):
        step, _, after = other_after(seen, draw)
        places = seen.layout.section_of(after, section)
        places[draw.randrange(1, len(places)), row, 0] += 1
        yield step


def other_after(seen: Observation, draw: random.Random) -> tuple[Observation, Snapshot, Tensor]:
    """Return a step whose one world has a storage of its own after it, that world, and this."""
    name = draw.choice(["eager", "graph"])
    world: Snapshot = getattr(seen, name)
    after = world.after.clone()
    worlds: dict[str, Any] = {name: replace(world, after=after)}
    return replace(seen, **worlds), world, after


def other_tables(world: Ownership, draw: random.Random) -> Ownership:
    """Return a world of which one cell of a table is another."""
    mapping, rows = world.mapping.clone(), world.req_to_token.clone()
    table, more = draw.choice([(mapping, 1), (mapping, 2**33), (rows.view(-1), 1)])
    table[draw.randrange(len(table))] += more
    return replace(world, mapping=mapping, req_to_token=rows)


def other_inputs(seen: Observation, draw: random.Random) -> Pairs:
    """Return the parts of a replay's static inputs, one element of one being another."""
    pairs = [
        (part.held, part.right) for part in parts(seen) if part.held.device == seen.compared.device
    ]
    if not pairs:
        return []
    changed = draw.randrange(len(pairs))
    held, right = pairs[changed]
    other = held.clone(memory_format=torch.preserve_format)
    flat = other.flatten()
    place = draw.randrange(len(flat))
    flat[place] = ~flat[place] if other.dtype is torch.bool else flat[place] + 1
    pairs[changed] = other.copy_(flat.view(other.shape)), right
    return pairs


def asked(seen: Observation, draw: random.Random) -> Iterator[Asked]:
    """Yield questions about a step and about what differs from it."""
    others = range(TIMES)
    yield from (writes_astray(seen), worlds_differ(seen))
    for number, other_step in enumerate(other_writes(seen, draw)):
        yield writes_astray(other_step)
        if number < TIMES:
            yield worlds_differ(other_step)
    if seen.keys is not None:
        yield reads_wrongly(seen)
        yield from (reads_wrongly(other_reads(seen, draw)) for _ in others)
    end = seen.end
    yield tables_are_wrong(end.sizes, [end.graph, end.eager])
    for _ in others:
        other = other_tables(end.eager, draw)
        yield tables_are_wrong(end.sizes, [end.graph, other])
        yield tables_are_wrong(end.sizes, [end.graph], [other])


def both_answers(seen: Observation, draw: random.Random) -> Iterator[tuple[str, bool, bool]]:
    """Yield what was asked about a step, all at once, and both answers."""
    inputs = [other_inputs(seen, draw) for _ in range(TIMES)]
    right = [[(one, one) for one, _ in pairs] for pairs in inputs]
    flags = [Unequal(pairs) for pairs in (*inputs, *right) if pairs]
    questions = [*asked(seen, draw), *(("inputs", bool(flag), flag) for flag in flags)]
    # Those of pairs are answered last.
    questions.sort(key=lambda one: isinstance(one[2], Unequal))
    of_kernels = [one for _, _, one in questions if isinstance(one, launches.Question)]
    of_pairs = [one for _, _, one in questions if isinstance(one, Unequal)]
    kernels = launches.answers(of_kernels, of_pairs)
    for (name, ops, _), answer in zip(questions, kernels, strict=True):
        yield name, ops, answer


def check_questions(device: str) -> Counter[tuple[str, bool]]:
    """Ask kernels and ops about steps of the schedule; return how often what was answered.

    Compiled kernels are asked about every step.

    Raises AssertionError where they do not agree, and for a question with one answer alone.
    """
    counts, draw = Counter[tuple[str, bool]](), random.Random(0)

    def observe(place: int, step: Step, seen: Observation | None, new: frozenset[str]) -> None:
        if seen is None or (device != "cuda" and place != ENGINES[engine]):
            return
        for name, ops, kernel in both_answers(seen, draw):
            counts[name, ops] += 1
            if ops != kernel:
                raise AssertionError(f"step {place}, {name}: ops say {ops}, the kernel {kernel}")

    for engine in ENGINES:
        outcome = build(device, engine).play(SCHEDULE, observe)
        if outcome.error or outcome.violations:
            raise AssertionError(outcome.error or outcome.violations)
    for name, _ in [*counts]:
        if not (counts[name, True] and counts[name, False]):
            raise AssertionError(f"{name}: every answer is the same")
    return counts


def main() -> None:
    """Ask about a played schedule on the CPU and print how many answers were compared."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        sys.exit("set TRITON_INTERPRET=1: these questions are for Triton's interpreter")
    quicken()
    sys.stdout.write(f"{check_questions('cpu').total()}\n")


if __name__ == "__main__":
    main()
