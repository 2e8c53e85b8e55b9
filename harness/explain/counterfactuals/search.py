"""The search for the one thing that, changed back, makes the violated property hold.

A cause read off a forward is kept only if that is true for what it names. If there is none, these
are changed in turn, each alone: attributes of Python objects, cells of the index tables, static
inputs that their contract rejects, the capture, and arguments of ops.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from paritybit.harness.explain.build_faults import unlisted_conversion, unlisted_conversions
from paritybit.harness.explain.counterfactuals.arguments import (
    extended,
    failing_replacements,
    replacements,
    wrong_arguments,
)
from paritybit.harness.explain.counterfactuals.captured import captured_at, handed_on
from paritybit.harness.explain.counterfactuals.dispatch import decided_at, path_chosen_at
from paritybit.harness.explain.counterfactuals.elements import Element, overlapping
from paritybit.harness.explain.counterfactuals.judge import (
    Judge,
    Right,
    WrongInput,
    holds,
    inputs_seen,
    together,
)
from paritybit.harness.explain.counterfactuals.lines import (
    Holds,
    Lines,
    first_held_at,
    last_held_at,
    last_listed,
    not_written_at,
)
from paritybit.harness.explain.counterfactuals.listed import MASK, MASK_START
from paritybit.harness.explain.counterfactuals.made import Wanted, made_at
from paritybit.harness.explain.counterfactuals.replaced import (
    LIST,
    Replaced,
    value_given,
    wrong_outputs,
)
from paritybit.harness.explain.counterfactuals.setters import (
    overwritten_at,
    read_at,
    set_at,
    with_part,
    with_setters,
)
from paritybit.harness.explain.facts import Cause, GivenValue, HeldState, SourceLine
from paritybit.harness.explain.first_difference import Side, first_difference
from paritybit.harness.explain.origins.given import tried_element
from paritybit.harness.explain.origins.source_lines import site_of
from paritybit.harness.explain.origins.tables import differing_cells
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.harness.explain.static_origin import stale_elements, static_buffers
from paritybit.reference.ops import OpCall
from torch import Tensor

NOT_KNOWN: Final = "not known"
STATE: Final = "Python state"
COMPUTED: Final = "what an op is given"
DISPATCH: Final = "dispatch"
READING: Final = frozenset({LIST, MASK, MASK_START})
"""Arguments of attention that decide which keys its rows read."""

BY_COMPARISON: Final = frozenset({COMPUTED, "key lists", "captured state", "captured output"})
"""Blame that follows only from a comparison with another run."""

SEEN: Final = frozenset({"build", "call site", "kept output"})
"""Blame that a forward shows by itself. No change is tried."""


def bare(cause: Cause) -> Cause:
    """Return only what was seen of a cause, without its blame."""
    return replace(cause, index=None, cell=None, given=None, baked=None, listed=cause.listed)


class Search:
    """Runs a forward again with one thing changed each time. `play` plays the whole schedule.

    `holds` returns whether the violated property holds for a run.
    """

    def __init__(self, recorded: RecordedForward, judge: Judge, play: Callable[[], Any]) -> None:
        self.recorded, self.judge, self.play = recorded, judge, play
        self.holds: Holds = partial(holds, recorded, judge)
        self.inputs: Right = judge.wrong_inputs(inputs_seen(recorded))
        self.stale = self._stale_lists()
        self.lines = Lines(recorded, self.holds)

    def settled(self, cause: Cause | None) -> Cause | None:
        """Return the cause if what it names is to blame, else the real cause, if any."""
        if cause is not None and (cause.blame in SEEN or cause.compared):
            return cause
        found = None
        if not self.holds(self.recorded.again()):  # Otherwise no change shows anything.
            found = self.state(cause) or self.dispatch(cause)
            found = found or self.kept(cause) or self.by_changes(cause)
        if found is not None and not self.holds(self.recorded.again()):
            return found  # Otherwise the run itself has changed something that decides.
        return None if cause is None else replace(bare(cause), blame=NOT_KNOWN)

    def _stale_lists(self) -> Right:
        """Return elements of static lists, not of inputs, in which a fresh runner differs.

        They are by buffer name, with the fresh runner's values.
        """
        runner = self.recorded.runner
        lists = runner.metadata.buffers if runner is not None else {}
        found: dict[str, list[Element]] = {}
        for name, element in stale_elements(self.recorded):
            if name in lists:
                value = self.recorded.fresh[name].flatten()[element]
                found.setdefault(name, []).append((name, element, value))
        return {name: WrongInput(tuple(elements)) for name, elements in found.items()}

    def _unwritten_lists(self) -> Right:
        """Return the elements of static lists that differ from this forward's lists."""
        found: dict[str, WrongInput] = {}
        for name, listed in last_listed(self.recorded).items():
            held, right = self.recorded.static[name].flatten(), listed.flatten()
            right = right[: len(held)].to(held)
            places = (held[: len(right)] != right).nonzero().flatten().tolist()
            if places:
                found[name] = WrongInput(tuple((name, at, right[at].clone()) for at in places))
        return found

    def state(self, shown: Cause | None) -> Cause | None:
        """Blame an attribute that has changed since the schedule began and survives resets."""
        recorded = self.recorded
        for attribute in recorded.captured.changed_by(recorded.objects):
            if self.holds(recorded.again(attributes=[attribute])):
                change = attribute.change
                held = HeldState(change.path, change.captured, change.now)
                lines = set_at(recorded, attribute)
                lines = lines or read_at(recorded, self.lines.again, attribute)
                return self._blaming(shown, STATE, state=held, made=lines)
        return None

    def dispatch(self, shown: Cause | None) -> Cause | None:
        """Blame the choice of path, graph or eager, that a batch must not take."""
        recorded = self.recorded
        lines = path_chosen_at(recorded, self.holds)
        if not lines:
            return None
        wrong = wrong_outputs(recorded.eager_output or {}, recorded.run.output)
        given = value_given(wrong[0]) if wrong else None
        return self._blaming(shown, DISPATCH, given=given, made=lines)

    def kept(self, cause: Cause | None) -> Cause | None:
        """Return a cause read off the forward, if what it names is to blame."""
        if cause is None:
            return None
        if cause.cell is not None:
            return cause if self.tables_hold() else None
        name = named_input(cause)
        if cause.blame == "inputs" and name is not None:
            return self._input(cause, name)
        if cause.blame == "captured state":
            holds_uncaptured = self.holds(self.recorded.again(captured=False))
            return self._captured(cause) if holds_uncaptured else None
        return None

    def tables_hold(self) -> bool:
        """Whether the property holds with the index tables of the eager world."""
        recorded = self.recorded
        cells = differing_cells(recorded.tables, recorded.eager_tables)
        return bool(cells) and self.holds(recorded.again(cells=cells))

    def _input(self, cause: Cause, name: str) -> Cause | None:
        """Return the cause, which blames a static buffer, if that has wrong values."""
        wrong = self.inputs.get(name) or self.stale.get(name)
        if wrong is None or not self.holds(self.recorded.again(wrong.elements)):
            return None
        return replace(cause, made=self.lines_of_input(wrong))

    def by_changes(self, shown: Cause | None) -> Cause | None:
        """Blame what makes the property hold when changed: inputs, the capture, arguments."""
        lists = (self.stale, self._unwritten_lists())
        everything = [wrong for found in (self.inputs, *lists) for wrong in found.values()]
        everything += (wrong for found in (self.inputs, *lists) for wrong in together(found))
        computed = [wrong for wrong in everything if wrong.elements[0][2].is_floating_point()]
        # A computed argument may come from a wrong argument of an earlier op.
        found = self._inputs(
            shown, [wrong for wrong in everything if not any(wrong is one for one in computed)]
        )
        found = found or self._code(shown) or self._inputs(shown, computed)
        return found or self.by_origins(shown)

    def _inputs(self, shown: Cause | None, candidates: Sequence[WrongInput]) -> Cause | None:
        """Blame a static input with which the property holds once it is right."""
        for wrong in candidates:
            if self.holds(self.recorded.again(wrong.elements)):
                given = tried_element(self.recorded, wrong.elements[0])
                lines = self.lines_of_input(wrong)
                return self._blaming(shown, "inputs", given=given, made=lines)
        return None

    def _code(self, shown: Cause | None) -> Cause | None:
        """Blame the capture, memory shared by two buffers, or an op's argument."""
        recorded = self.recorded
        if recorded.runner is not None and self.holds(recorded.again(captured=False)):
            return self._captured(shown)
        return self._shared(shown) or self._converted(shown) or self.by_arguments(shown)

    def _captured(self, shown: Cause | None) -> Cause:
        """Blame the graph's state from its capture, or what replaces its output."""
        recorded = self.recorded
        output = handed_on(recorded)
        if output is not None:
            name, held, lines = output
            given = GivenValue(
                f"the output {name}", held, "the graph's own", stale=False, left_by=None, how=None
            )
            return self._blaming(shown, "captured output", given=given, made=lines)
        lines = captured_at(recorded)
        if shown is not None and shown.blame == "captured state":
            return replace(shown, made=lines)
        return self._blaming(shown, "captured state", made=lines)

    def _shared(self, shown: Cause | None) -> Cause | None:
        """Blame two static buffers of a runner that share memory but should not."""
        recorded, runner = self.recorded, self.recorded.runner
        if runner is None:
            return None
        for holder in (runner.inputs, runner.metadata):
            for name, other in overlapping(holder.buffers):
                own = {name: holder.buffers[name].clone()}
                update = partial(holder.buffers.update, own)
                if self.holds(recorded.again(captured=False, prepare=update)):
                    message = f"{name} and {other} of {runner.name} lie in one memory"
                    site = site_of(type(holder).__init__, message)
                    return self._blaming(shown, "build", site=site)
        return None

    def _converted(self, shown: Cause | None) -> Cause | None:
        """Blame a static input that converts its values but should not."""
        recorded, runner = self.recorded, self.recorded.runner
        cause = unlisted_conversion(recorded)
        if runner is None or cause is None:
            return None
        name, source, _ = unlisted_conversions(runner)[0]
        own = {name: runner.inputs.buffers[name].to(source)}
        update = partial(runner.inputs.buffers.update, own)
        if not self.holds(recorded.again(captured=False, prepare=update)):
            return None
        return self._blaming(shown, cause.blame, site=cause.site, made=cause.made)

    def lines_of_input(self, wrong: WrongInput) -> tuple[SourceLine, ...]:
        """Return the lines that made the values copied into a static input.

        If the batch's value, or a list, was not copied, return the last line that holds it, if any.
        """
        recorded, (name, place, _) = self.recorded, wrong.elements[0]
        write = recorded.ledger.of(static_buffers(recorded)[name])[place]
        if recorded.runner is not None and name in recorded.runner.metadata.buffers:
            right = {element: value for one, element, value in wrong.elements if one == name}
            return not_written_at(recorded, name, lambda listed: has(listed, right))
        if wrong.held is None or wrong.right is None:
            return ()
        if write.how != "copied" or write.forward_id.forward != recorded.forward_id.forward:
            lines = decided_at(recorded, self.holds) or last_held_at(recorded, name)
            return with_part(name, lines)
        wanted = Wanted(wrong.held, wrong.right, known=True)
        lines = made_at(wanted, lambda seen: recorded.again(seen=seen), self.holds)
        lines = lines or first_held_at(recorded, name)  # It may lie in other memory.
        overwritten = overwritten_at(recorded.runner, lines, wrong.right, self.play)
        return (*lines[:1], *overwritten, *with_setters(recorded.runner, lines)[1:])

    def by_arguments(self, shown: Cause | None) -> Cause | None:
        """Blame arguments of ops with which the property holds if they are as in the other run."""
        recorded = self.recorded
        if recorded.run.failed is not None:
            return self._failing_argument(shown)
        for pools, before, calls in self._others():
            right = Side(recorded.pair.graph_pools, recorded.graph_before, recorded.run.calls)
            recorded.again()  # Restore the tensors of the ops.
            left = Side(pools, before, calls)
            difference = first_difference(left, right)
            for one in tuple(replacements(recorded, calls, recorded.run.calls, difference)):
                found = self._fixing(one, left)
                if found is not None:
                    recorded.again()
                    return self._argument(shown, found)
        return None

    def _fixing(self, one: Replaced, left: Side) -> Replaced | None:
        """Return a replacement with which the property holds, or None.

        It is extended while the same argument of a later op of its name differs first, because the
        wrong value is made again in each layer.
        """
        found: Replaced | None = one
        while found is not None:
            run = self.recorded.again(captured=False, given=found.given())
            if holds(self.recorded, self.judge, run, lists=found.argument in READING):
                return found
            done = run.failed is not None
            found = None if done else extended(self.recorded, left, run.calls, found)
        return None

    def by_origins(self, shown: Cause | None) -> Cause | None:
        """Blame a value from which several ops, or an output, are made, at the line that made it.

        The property holds if it is corrected there. An output is blamed only if all ops gave the
        right results.
        """
        recorded = self.recorded
        for pools, before, calls in self._others():
            right = Side(recorded.pair.graph_pools, recorded.graph_before, recorded.run.calls)
            recorded.again()
            wrong = list(wrong_arguments(recorded, calls))
            eager = calls is recorded.eager_calls
            if eager and first_difference(Side(pools, before, calls), right) is None:
                wrong += wrong_outputs(recorded.eager_output or {}, recorded.run.output)
            for one in wrong:
                lines = self.lines.made(one)
                if lines:
                    return self._told(shown, one, lines)
        return None

    def _failing_argument(self, shown: Cause | None) -> Cause | None:
        """Blame an argument of the failing op, if the op succeeds with the eager world's."""
        recorded, met = self.recorded, list[tuple[str, tuple[Any, ...]]]()

        def meet(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            met.append((name, arguments))
            return arguments

        if recorded.again(captured=False, given=meet).failed is None or not met:
            return None
        calls = [OpCall(name, arguments, None) for name, arguments in met]
        for one in failing_replacements(recorded, calls):
            if self.holds(recorded.again(captured=False, given=one.given())):
                return self._argument(shown, one)
        return None

    def _others(self) -> Iterator[tuple]:  # type: ignore[type-arg]
        recorded, pair = self.recorded, self.recorded.pair
        yield pair.eager_pools, recorded.eager_before, recorded.eager_calls
        if recorded.fresh_calls:
            yield pair.graph_pools, recorded.graph_before, recorded.fresh_calls

    def _argument(self, shown: Cause | None, one: Replaced) -> Cause:
        """Return the cause that blames an argument: the line that made it, and its values."""
        return self._told(shown, one, self.lines.of_argument(one))

    def _told(self, shown: Cause | None, one: Replaced, lines: tuple[SourceLine, ...]) -> Cause:
        """Return the cause that blames an argument, made by some lines."""
        given = value_given(one)
        if (
            one.argument not in {MASK, MASK_START}
            and shown is not None
            and shown.listed is not None
        ):
            index = shown.index if shown.blame == "key lists" else None
            fields = {"listed": shown.listed, "index": index, "made": lines}
            return self._blaming(shown, "key lists", **fields)
        if one.argument == LIST:
            return self._blaming(shown, "key lists", given=given, made=lines)
        return self._blaming(shown, COMPUTED, given=given, made=lines)

    def _blaming(self, shown: Cause | None, blame: str, **fields: Any) -> Cause:
        """Return a cause with what was seen, and what is to blame."""
        seen = Cause(NOT_KNOWN) if shown is None else bare(shown)
        if blame != "key lists":
            seen = replace(seen, listed=None)
        return replace(seen, blame=blame, **fields)


def has(listed: Tensor, right: Mapping[int, Tensor]) -> bool:
    """Whether a list has the right elements at their places, up to its length."""
    flat = listed.flatten()
    there = {at: value for at, value in right.items() if at < len(flat)}
    return bool(there) and all(flat[at] == value for at, value in there.items())


def named_input(cause: Cause) -> str | None:
    """Return the static buffer that a cause names, or None."""
    if cause.index is not None:
        return cause.index.buffer
    if cause.given is not None and cause.given.left_by is not None:
        return cause.given.what.partition("[")[0]
    return None
