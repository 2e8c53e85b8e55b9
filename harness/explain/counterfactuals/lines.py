"""The lines of the engine that made an op's arguments or a forward's outputs.

A line is named if the property holds when the values are corrected at that line alone.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from types import FrameType

import numpy as np
from paritybit.harness.explain.counterfactuals.given import (
    First,
    called_at,
    given_to,
    rows_cut_at,
    unmasked_at,
)
from paritybit.harness.explain.counterfactuals.listed import MASK, elsewhere
from paritybit.harness.explain.counterfactuals.made import Wanted, made_at
from paritybit.harness.explain.counterfactuals.replaced import LIST, ROWS, Replaced
from paritybit.harness.explain.counterfactuals.setters import own_file
from paritybit.harness.explain.facts import SourceLine
from paritybit.harness.explain.origins.tables import both
from paritybit.harness.explain.recorded import RecordedForward, Run
from paritybit.harness.explain.static_origin import element_at, static_buffers
from paritybit.harness.explain.tracing import (
    Seen,
    Sources,
    arguments_of,
    callers_of,
    held_in,
    lines_of,
    made_by,
    names_used,
    shown_file,
    values_of,
)
from torch import Tensor

INPUTS = frozenset({"subjects/buffers.py", "subjects/contracts.py"})
"""Files that write static inputs and return views of them."""

FIRST = 3
"""The number of lines to examine first."""

MADE = "made in "
"""The words for a line of a function that made something."""

VIEW, PLAN = "view", "plan"
"""Methods of a runner: one returns a view of a static input, one runs after all are written."""

Holds = Callable[[Run], bool]


class Lines:
    """Runs a forward again while following its lines. `holds` judges such a run."""

    def __init__(self, recorded: RecordedForward, holds: Holds) -> None:
        self.recorded, self.holds = recorded, holds

    def of_argument(self, one: Replaced) -> Sources:
        """Return the lines that made an argument of ops, or took it from elsewhere."""
        apart = self._apart(one)
        if apart:
            return apart
        lines = self.made(one)
        if not lines and one.argument == LIST:
            lines = self._kept(one) or self._listed(one)
        if lines:
            taken = self._taken(one)
            made = [line for line in lines[1:FIRST] if taken and line.what.startswith(MADE)]
            return tuple(dict.fromkeys((*lines[:1], *taken, *made, *lines[1:])))
        ranked = self._ranked(called_at(self.recorded, one))
        calls = given_to(self.recorded, one)[1][:1]
        return (*ranked[:2], *(line for line in calls if line not in ranked[:2]), *ranked[2:])

    def _apart(self, one: Replaced) -> Sources:
        """Return the lines for missing rows or a missing mask, which have no wrong values."""
        if one.argument == ROWS:
            return rows_cut_at(self.recorded, one)
        if one.argument == MASK:
            return unmasked_at(self.recorded, one, own_file(self.recorded))
        return ()

    def made(self, one: Replaced) -> Sources:
        """Return the first line at which correcting an argument makes the property hold.

        Lines that populate static inputs come last, because their values are known to be right.
        Further lines come with it, in the order of `_ranked`.
        """
        lists = self._static_lists()
        for again in (self.after_inputs, self.again):
            for (wrong, fixed), *others in one.spellings(self.recorded.tables[1]):
                wanted = Wanted(
                    wrong,
                    fixed,
                    others=tuple(others),
                    passed_over=lists,
                    alone=one.whole is not None,
                )
                lines = made_at(wanted, again, self.holds) if wanted.fixable else ()
                if lines:
                    return self._ranked(lines)
        return ()

    def _ranked(self, lines: Sources) -> Sources:
        """Rank the lines to look at: the line that made something, and its callers.

        1. The innermost line that had only inputs, which are right. It makes or requests the wrong
           values. A function that it calls may have other callers too.
        2. The line at which the wrong values first exist, and the lines that made what it uses.
        3. The callers, innermost first. Outer callers serve every forward.
        4. Lines that only return a view of a static input, because they make nothing.

        The third place goes to a function that made what the first line depends on, or else to the
        innermost line in the runner's own file, because functions that it calls have other callers.
        """
        if not lines:
            return ()
        used = _Used(lines, self._inputs())
        self.again(used)
        asking = lines[used.asking]
        asked = (replace(asking, what=asking.what.replace("called", "asked for", 1)),)
        further = (line for line in lines[1:] if line is not asking)
        made = (lines[0], *self._made_of(used))
        ranked = [*(asked if used.asking else ()), *made, *further]
        ranked.sort(key=_gives_view)
        if used.view is not None and used.asking and _gives_view(lines[0]):
            ranked.insert(1, used.view)
        own = [line for line in ranked if line.file == own_file(self.recorded)]
        third = (*used.callees, *own)[:1]
        if not {*third, *own[:1]} <= {*ranked[:3]}:
            ranked = [*ranked[:2], *third, *(line for line in ranked[2:] if line not in third)]
        return tuple(ranked)

    def _inputs(self) -> set[int]:
        """Return the addresses of the batch, the index tables, and static inputs that match it."""
        recorded = self.recorded
        runner, batch = recorded.runner, recorded.planned.graph.batch
        buffers = {} if runner is None else runner.inputs.buffers
        inputs = [one for name, one in buffers.items() if self._as_in_batch(name)]
        inputs += [] if batch is None else vars(batch).values()
        inputs += both(recorded.pair.graph_pools.tables)
        return {one.untyped_storage().data_ptr() for one in inputs if isinstance(one, Tensor)}

    def _as_in_batch(self, name: str) -> bool:
        """Whether a static input begins with the batch's value, if the batch has one."""
        batch, held = self.recorded.planned.graph.batch, self.recorded.static[name]
        live = None if batch is None else batch.value(name)
        return live is None or held.flatten()[: live.numel()].equal(live.flatten().to(held))

    def _static_lists(self) -> set[int]:
        """Return the addresses of static lists. Their values were made before they were written."""
        return {values.untyped_storage().data_ptr() for values in self._lists().values()}

    def again(self, seen: Seen) -> Run:
        """Run the captured function eagerly while following its lines."""
        return self.recorded.again(captured=False, seen=seen)

    def after_inputs(self, seen: Seen) -> Run:
        """Do the same, without the lines that write static inputs or return views of them."""
        written = self.recorded.runner is None

        def look(frame: FrameType, line: int, returned: object) -> None:
            nonlocal written
            code = frame.f_code
            views = code.co_name == VIEW or shown_file(code.co_filename) in INPUTS
            if written and not views:
                seen(frame, line, returned)
            written = written or code.co_name == PLAN

        return self.again(look)

    def _made_of(self, used: "_Used") -> Sources:
        """Return the lines of other functions at which the values that a line uses first exist.

        Values that it reads from a static buffer were made before they were written there.
        """
        found = list[SourceLine]()
        for values, first in used.tensors:
            made: Sources = (first,)
            if element_at(static_buffers(self.recorded), values, 0) is not None:
                made = made_at(Wanted(values.clone(), values[:0]), self.again, self.holds)[:1]
            found += [one for one in made if one.what != used.lines[0].what]
        return tuple(dict.fromkeys(found))

    def _taken(self, one: Replaced) -> Sources:
        """Return the line that takes an argument from a static list, or none.

        Either what was taken or what was listed may be wrong. For keys the line is returned only if
        the list holds the right keys elsewhere, and lines in the runner's own file come first.
        """
        first = First(returned=True)
        arguments, _ = given_to(self.recorded, one, first)
        values = one.values[min(one.values)]
        listed = one.argument == LIST
        place = 2 if listed else next(iter(values))
        if len(arguments) <= place or (listed and not elsewhere(arguments, values)):
            return ()
        own, value = own_file(self.recorded), arguments[place]
        lines = first.lines_of(value)
        if listed:
            lines = tuple(sorted(lines, key=lambda line: line.file != own))
        elif not isinstance(value, Tensor) or element_at(self._lists(), value, 0) is None:
            return ()
        return tuple(replace(one, what=f"taken {one.what.partition(' ')[2]}") for one in lines[:1])

    def _lists(self) -> dict[str, Tensor]:
        """Return the static lists of the runner. Empty without a runner."""
        runner = self.recorded.runner
        return {} if runner is None else runner.metadata.buffers

    def _listed(self, one: Replaced) -> Sources:
        """Return the line that made the static list that attention is given, and its callers."""
        lists = self._lists()
        for values in given_to(self.recorded, one)[0][2:5]:
            at = element_at(lists, values, int(values.storage_offset()))
            lines = first_held_at(self.recorded, at[0]) if at is not None else ()
            if lines:
                return self._ranked(lines)
        return ()

    def _kept(self, one: Replaced) -> Sources:
        """Return the first line that holds an argument that was made before the forward."""
        buffers = static_buffers(self.recorded)
        held, later = (given_to(self.recorded, one)[0] for _ in range(2))
        for values, again in zip(held[2:5], later[2:5], strict=True):
            at = element_at(buffers, values, int(values.storage_offset()))
            if at is None and values.data_ptr() == again.data_ptr():
                return handed_on_at(self.again, values)
        return ()


class _Used(First):
    """Finds where the integer tensors that a line uses by name first exist.

    `lines` are that line and its callers. `asking` is the index of the innermost of them that has
    only tensors in the memory of `inputs`. `callees` made what the line depends on, and `view` is
    the line that returns a view of a static input.
    """

    def __init__(self, lines: Sources, inputs: Collection[int]) -> None:
        super().__init__()
        self.lines, self.inputs = lines, inputs
        self.asking = 0
        self.found = False
        self.tensors: list[tuple[Tensor, SourceLine]] = []
        self.callees: Sources = ()
        self.view: SourceLine | None = None

    def __call__(self, frame: FrameType, line: int, returned: object) -> None:
        """Look for the tensors that the line used, after it has run."""
        super().__call__(frame, line, returned)
        gives = isinstance(returned, Tensor) and shown_file(frame.f_code.co_filename) in INPUTS
        if gives and self.view is None:
            self.view = lines_of(frame, line, "viewed")[0]
        if self.found or line != self.lines[0].line:
            return
        if lines_of(frame, line, "made") == self.lines:
            self.found = True
            self.callees = made_by(frame, line)
            held = (frame.f_locals.get(name) for name in sorted(names_used(frame.f_code, line)))
            whole = [one for one in held if isinstance(one, Tensor) and not one.is_floating_point()]
            self.tensors = [(one, self.first[id(one)][1][0]) for one in whole]
            frames = enumerate((frame, *callers_of(frame)))
            asking = (at for at, one in frames if given_alone(one, self.inputs))
            self.asking = next((at for at in asking if not _gives_view(self.lines[at])), 0)


def _gives_view(line: SourceLine) -> bool:
    """Whether a line only writes static inputs, or returns a view of one."""
    return line.file in INPUTS or line.what.endswith(f".{VIEW}")


def given_alone(frame: FrameType, inputs: Collection[int]) -> bool:
    """Whether all tensors and arrays in a frame's arguments are in some memory."""
    given = (held for name in arguments_of(frame) for held in held_in(frame.f_locals.get(name)))
    held = [one for one in given if isinstance(one, Tensor | np.ndarray)]
    return all(
        isinstance(one, Tensor) and one.untyped_storage().data_ptr() in inputs for one in held
    )


def handed_on_at(again: Callable[[Seen], Run], values: Tensor) -> Sources:
    """Return the first line that holds a tensor of the same memory in a forward."""
    found: list[Sources] = []

    def look(frame: FrameType, line: int, returned: object) -> None:
        held = (one for one in values_of(frame.f_locals, returned) if isinstance(one, Tensor))
        if not found and any(one.data_ptr() == values.data_ptr() for one in held):
            found.append(lines_of(frame, line, "taken"))

    again(look)
    return found[0] if found else ()


def last_held_at(recorded: RecordedForward, name: str) -> Sources:
    """Return the last line of a forward that holds the batch's value of a static input.

    If the batch has no such value, return the first line that holds one, because it makes the
    value.
    """
    batch = recorded.planned.graph.batch
    value = None if batch is None else batch.value(name)
    if value is None:
        return first_held_at(recorded, name)
    found = _held_at(recorded, name, lambda held: held is value)
    return found[-1][1] if found else ()


def first_held_at(recorded: RecordedForward, name: str) -> Sources:
    """Return the first line of a forward that holds a value under a name, among others."""
    own = static_buffers(recorded)
    found = _held_at(recorded, name, lambda held: element_at(own, held, 0) is None, "made")
    return found[0][1] if found else ()


def not_written_at(
    recorded: RecordedForward, name: str, right: Callable[[Tensor], bool]
) -> Sources:
    """Return the last line of a forward that holds a list that is right for a static list.

    If a function was given the list, the line is in that function, because those that made it hold
    it longer. If no line holds one, nothing may have been planned. Then return the line that would
    have called for it.
    """
    found = _held_at(recorded, name, right)
    found.sort(key=lambda one: one[0])
    return found[-1][1] if found else _not_called_at(recorded, PLAN)


def last_listed(recorded: RecordedForward) -> dict[str, Tensor]:
    """Return the last value in a forward under the name of each static list."""
    buffers = {} if recorded.runner is None else recorded.runner.metadata.buffers
    found: dict[str, Tensor] = {}

    def look(frame: FrameType, line: int, returned: object) -> None:
        given = (frame.f_locals.get(one) for one in arguments_of(frame))
        for one in (held for held in given if isinstance(held, dict) and held is not buffers):
            found.update((name, one[name]) for name in buffers.keys() & one)

    recorded.again(seen=look)
    return {name: one for name, one in found.items() if isinstance(one, Tensor)}


def _held_at(
    recorded: RecordedForward,
    name: str,
    right: Callable[[Tensor], bool],
    what: str = "last held",
) -> list[tuple[bool, Sources]]:
    """Return the lines that hold a right value under a name, among others, in order.

    Each is paired with whether its function was given the value.
    """
    found = list[tuple[bool, Sources]]()

    def look(frame: FrameType, line: int, returned: object) -> None:
        given = [frame.f_locals.get(one) for one in arguments_of(frame)]
        for one in (*frame.f_locals.values(), returned):
            value = one.get(name) if isinstance(one, dict) else None
            if isinstance(value, Tensor) and right(value):
                known = any(one is other for other in given)
                found.append((known, lines_of(frame, line, what)))

    recorded.again(seen=look)
    return found


def _not_called_at(recorded: RecordedForward, name: str) -> Sources:
    """Return the last line of a forward, with its callers, of a function that may call a method.

    Returns no lines if the method is called.
    """
    found, called = list[Sources](), False

    def look(frame: FrameType, line: int, returned: object) -> None:
        nonlocal called
        called = called or frame.f_code.co_name == name
        if name in frame.f_code.co_names:
            found.append(lines_of(frame, line, f"no {name}"))

    recorded.again(seen=look)
    return found[-1] if found and not called else ()
