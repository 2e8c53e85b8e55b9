"""State that a graph has from its capture, replaced outputs, and the lines responsible."""

from functools import partial
from typing import Any

from paritybit.harness.explain.counterfactuals.given import First
from paritybit.harness.explain.counterfactuals.lines import handed_on_at
from paritybit.harness.explain.counterfactuals.replaced import CACHE
from paritybit.harness.explain.counterfactuals.setters import own_file, with_setters
from paritybit.harness.explain.first_difference import Side, first_difference
from paritybit.harness.explain.origins.arguments import baked_in, named_arguments
from paritybit.harness.explain.origins.source_lines import line_of
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.harness.explain.static_origin import static_buffers
from paritybit.harness.explain.tracing import Sources, calling
from paritybit.reference.ops import OpCall
from torch import Tensor

SPOILED = -12345.0
"""A number that occurs in no output."""

GRAPHS = "subjects/graphs/"
"""Files that capture and replay graphs."""


def handed_on(recorded: RecordedForward) -> tuple[str, str, Sources] | None:
    """Return the output that a replay returns although its graph does not write it, if any.

    The result also has what it is instead, and the lines that take it.
    """
    run, runner = recorded.again(), recorded.runner
    replay = None if run.forward is None else run.forward.replay
    own = None if runner is None else runner.captured.get(recorded.bucket or 0)
    if replay is None or own is None:
        return None
    for name, values in replay.output.items():
        right = own.output.get(name)
        another = right is not None and right.data_ptr() != values.data_ptr()
        if another or not _written(recorded, name, values):
            held = "another tensor" if another else "a tensor that the graph does not write"
            lines = handed_on_at(lambda seen: recorded.again(seen=seen), values)
            return name, held, with_setters(runner, lines)
    return None


def _written(recorded: RecordedForward, name: str, values: Tensor) -> bool:
    """Whether a replay writes a tensor of numbers that it returns."""
    if not values.is_floating_point():
        return True
    before = values.clone()

    def spoil() -> None:
        values.fill_(SPOILED)

    run = recorded.again(prepare=spoil)
    written = not bool((run.output.get(name, before) == SPOILED).all())
    values.copy_(before)
    return written


def cache_of(call: OpCall) -> int | None:
    """Return the address of the cache that an op is given, or None."""
    cache = named_arguments(call).get(CACHE)
    return cache.data_ptr() if isinstance(cache, Tensor) else None


def other_indices(one: Any, other: Any) -> bool:
    """Whether two arguments are integers that differ."""
    both = isinstance(one, Tensor) and isinstance(other, Tensor)
    return both and not one.is_floating_point() and not one.equal(other)


def captured_at(recorded: RecordedForward) -> Sources:
    """Return the lines that call the first op that differs between a graph and its function.

    If the engine's own code replays the graph, these are the calls of the replay. Otherwise they
    are the calls of the function. Lines in the runner's file come first. If the ops are in another
    order, the line that replays them comes first.
    """
    runs, first, met = list[tuple[Side, dict[int, Sources]]](), First(), list[tuple[Any, ...]]()
    for captured in (False, True):
        called: dict[int, Sources] = {}

        def meet(name: str, arguments: tuple[Any, ...], at: dict[int, Sources]) -> tuple[Any, ...]:
            at[len(recorded.engine.ops.calls or ())] = calling(f"given to {name}")
            met.append(arguments)
            return arguments

        seen = None if captured else first
        run = recorded.again(captured=captured, given=partial(meet, at=called), seen=seen)
        runs.append((Side(recorded.pair.graph_pools, recorded.graph_before, run.calls), called))
    (function, in_function), (graph, in_graph) = runs
    baked = baked_in(graph.calls, function.calls, static_buffers(recorded))
    difference = first_difference(function, graph)
    own = own_file(recorded)
    if baked is not None and baked.argument is None:
        replayed = (line for lines in in_graph.values() for line in lines)
        lines = tuple(line for line in replayed if line.file.startswith(GRAPHS))[:1]
        left_out = in_function.get(baked.place, ())
        return (*lines, *sorted(left_out, key=lambda line: line.file != own))
    calls = enumerate(zip(function.calls, graph.calls, strict=False))
    places = [at for at, (one, other) in calls if cache_of(one) != cache_of(other)][:1]
    if not places:
        places = [] if baked is None else [baked.place]
        places += [] if difference is None else [difference.call]
    place = min(places, default=-1)
    lines = in_graph.get(place) or in_function.get(place) or ()
    if place in in_function and place not in in_graph:
        made = [first.lines_of(value) for value in met[place]]
        if baked is None:
            both = zip(function.calls[place].inputs, graph.calls[place].inputs, strict=True)
            made = [one for one, pair in zip(made, both, strict=True) if other_indices(*pair)]
        lines = (*lines[:1], *(line for one in made for line in one), *lines[1:])
    ranked = sorted(lines, key=lambda line: line.file != own)
    capture = getattr(type(recorded.runner), "capture", None)
    if place in in_graph and capture is not None:
        ranked.insert(1, line_of(f"captured in {capture.__qualname__}", capture))
    return with_setters(recorded.runner, tuple(dict.fromkeys(ranked)))
