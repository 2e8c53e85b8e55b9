"""Names the functions of an engine from which the value of a line may come.

A backward slice of the program begins at the lines of a stack. A statement depends on the functions
that it called, on those that set an attribute that it uses, and on the callers that gave a
parameter. Only functions that ran count. Those that ran before few forward passes, and lately, come
first, as in spectrum-based fault localisation.
"""

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import Any

from paritybit.watch.calls import Calls, calls_of
from paritybit.watch.programs import Function, Statement, function_of, mentioned
from paritybit.watch.stacks import CODES, Stack, brief, name_of, split

LOCAL, CALL, GIVEN, SET = 0.25, 1.0, 0.5, 1.0
"""The length of the steps to another statement, a called function, a caller, and a setter."""

NEAR, FARTHEST, MOST_STATES = 3.5, 6.0, 400
"""The longest ways to results and at all, and the most places that are visited."""

MOST_ASKED, AGAIN = 256, 16
"""The most slices of a process, and the forward passes after which one is made again."""

FRAMES, RESULTS, NAMES = 5, 3, 5
"""The most lines of a stack that are reported, functions whose results it uses, and functions."""

COPIES = frozenset({"__dict__", "__new__", "copy", "deepcopy", "replace"})
"""Names in a function that may copy an object, with all of its attributes."""

Frame = tuple[Function, Sequence[Statement]]
Ways = dict[CodeType, float]
"""The length of the shortest way to each function."""


class Slice:
    """The functions on which lines depend: through `results` of calls, or through `state`."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.results, self.state = Ways(), Ways()
        self.waiting = list[tuple[float, int, Any]]()
        self.known = set[tuple[object, ...]]()
        self.sets: dict[tuple[str, str], list[Frame]] = {}
        """The functions that set an attribute, by its name and the class of those that use it."""
        self.mentions: defaultdict[str, list[CodeType]] = defaultdict(list)
        """The functions that ran, by the names that they mention."""
        for ran in calls.ran.values():
            for name in mentioned(ran.code):
                self.mentions[name].append(ran.code)
        self.numbers = itertools.count()

    def begin(self, stack: Stack, steps: float = 0.0) -> None:
        """Begin at the leading line of a stack and at those before it."""
        frames = [frame for line in stack.lines if (frame := frame_of(line)) is not None]
        for number, frame in enumerate(frames[: stack.lead + 1]):
            self.reach(steps, True, frame, None, frames[number + 1 :])

    def reach(
        self,
        steps: float,
        direct: bool,
        frame: Frame,
        names: frozenset[str] | None,
        callers: Sequence[Frame] = (),
    ) -> None:
        """Note a way to statements of a function: to some names that they use, or to all."""
        code = frame[0].code
        ways = self.results if direct else self.state
        if not frame[0].plain:
            ways[code] = min(steps, ways.get(code, steps))
        if steps < FARTHEST:
            entry = direct, frame, names, callers
            heapq.heappush(self.waiting, (steps, next(self.numbers), entry))

    def follow(self) -> None:
        """Follow the shortest ways first."""
        while self.waiting and len(self.known) < MOST_STATES:
            steps, _, (direct, frame, names, callers) = heapq.heappop(self.waiting)
            state = direct, frame[0], tuple(one.first for one in frame[1]), names
            if state not in self.known:
                self.known.add(state)
                self.expand(steps, direct, frame, names, callers)

    def expand(
        self,
        steps: float,
        direct: bool,
        frame: Frame,
        names: frozenset[str] | None,
        callers: Sequence[Frame],
    ) -> None:
        """Follow what statements of a function depend on."""
        (function, seeds), distance = frame, dict.fromkeys(names or (), steps)
        end, count = max((one.first for one in seeds), default=0), 0
        for one in reversed(function.statements):
            codes = self.calls.called(function.code, one.first, one.last)
            called = list(filter(None, map(function_of, codes)))
            known = [distance[name] for name in one.changes if name in distance]
            known += [distance[name] for name in lent(one, called) if name in distance]
            if one in seeds and names is None:
                near = steps
            elif known and one.first < end:
                near = min(known) + LOCAL * (2 if one.head else 1)
            else:
                continue
            for name in one.uses:
                distance[name] = min(near, distance.get(name, near))
            place = function, [one]
            for other in called:
                self.reach(near + CALL, direct, (other, other.ends), None, (place, *callers))
            count += len(called)
        for name, near in distance.items():
            if "." in name:
                self.set(name, near, function)
            elif name in function.parameters:
                known_callers = callers[:1] or list(self.callers(function))
                more = GIVEN + math.log2(max(1, len(known_callers)) * (1 + count)) / 2
                for caller in known_callers:
                    given = arguments(function, name, caller[1])
                    if given is None:
                        given = frozenset(one for part in caller[1] for one in part.uses)
                    self.reach(near + more, direct, caller, given, callers[1:])

    def set(self, name: str, steps: float, function: Function | None = None) -> None:
        """Follow the functions that set an attribute, which a function uses."""
        kind = "" if function is None else kind_of(function.code)
        if (name, kind) not in self.sets:
            self.sets[name, kind] = self.setters(name, kind)
        found = self.sets[name, kind]
        for setter in found:
            self.reach(steps + SET + math.log2(len(found)) / 2, False, setter, None)

    def setters(self, name: str, kind: str) -> list[Frame]:
        """Return the functions that set an attribute. `self` is an object of a class `kind`."""
        attribute, found = name.rpartition(".")[2], list[tuple[bool, Frame]]()
        for code in self.mentions[attribute]:
            if (setter := function_of(code)) is None:
                continue
            mine = [one for one in setter.statements if f"self.{attribute}" in one.changes]
            other = [one for one in setter.statements if f".{attribute}" in one.changes]
            if mine or other:
                found.append((bool(other) or kind_of(code) == kind, (setter, mine + other)))
        if name.startswith("self.") and any(alike for alike, _ in found):
            found = [one for one in found if one[0]]
        kinds = {kind_of(setter.code) for _, (setter, _) in found} - {""}
        copies = (code for one in sorted(COPIES) for code in self.mentions[one])
        copying = (function_of(code) for code in copies if kind_of(code) in kinds)
        return [one for _, one in found] + [(one, one.ends) for one in copying if one is not None]

    def callers(self, function: Function) -> Iterator[Frame]:
        """Yield the lines that called a function."""
        ran = self.calls.ran.get(id(function.code))
        for caller, line in ran.callers if ran is not None else ():
            given = function_of(self.calls.ran[caller].code)
            if given is not None:
                yield given, given.at(line)

    def told(self, forward: int | None = None, without: Iterable[str] = ()) -> Iterator[str]:
        """Yield texts with the functions, the most suspicious first, at most NAMES.

        `forward` is that of the event, by default the one under way.
        """
        self.follow()
        number, left = self.calls.forward if forward is None else forward, set(without)
        near = {code: steps for code, steps in self.results.items() if steps <= NEAR}
        results = self.ranked(near, number, left, 0.0)[:RESULTS]
        if results:
            yield f"with results of {', '.join(joined(names) for _, names in results)}"
        left.update(name for _, names in results for name in names)
        state = self.ranked(self.state, number, left, 1.0)[: NAMES - len(results)]
        if state:
            ran = (
                f"{joined(names)} (ran before {count} of {number} forwards)"
                for count, names in state
            )
            yield f"which depends on {', '.join(ran)}"

    def ranked(
        self, ways: Ways, forward: int, without: Iterable[str], weight: float
    ) -> list[tuple[int, list[str]]]:
        """Return functions, the most suspicious first, and before how many forwards they ran.

        A function counts less that has many callers, or that ran before many forward passes.
        Methods of one name that are equally near are together.
        """
        best, found = dict[str, tuple[float, int]](), dict[tuple[float, int, str], list[str]]()
        for code, steps in ways.items():
            ran, name = self.calls.ran.get(id(code)), name_of(code)
            if ran is None or name in without:
                continue
            count, last = ran.until(forward)
            if count:
                length = steps + math.log2(1 + forward - last)
                length += math.log2(max(1, len(ran.callers))) / 2 + math.log2(count) * weight
                best[name] = min(best.get(name, (length, count)), (length, count))
        for name, (length, count) in best.items():
            found.setdefault((length, count, name.rpartition(".")[2]), []).append(name)
        return [(one[1], found[one]) for one in sorted(found, key=lambda one: one[0])]


def joined(names: Sequence[str]) -> str:
    """Return methods of one name as text."""
    kinds = "/".join(filter(None, (name.rpartition(".")[0] for name in names)))
    return f"{kinds}.{names[0].rpartition('.')[2]}" if kinds else names[0]


def kind_of(code: CodeType) -> str:
    """Return the class of a method."""
    return name_of(code).rpartition(".")[0]


def frame_of(line: str) -> Frame | None:
    """Return the function with a line of an engine, and its statement. None if unknown."""
    path, number, name = split(line)
    code = CODES.get((path, name))
    function = None if code is None else function_of(code)
    return None if function is None else (function, function.at(number))


def lent(statement: Statement, called: Iterable[Function]) -> Iterator[str]:
    """Yield the names of which a call whose result is not used may change a part."""
    known = False
    for one in called:
        known = True
        for name in {name for _, name in one.altering}:
            yield from statement.given & (arguments(one, name, [statement]) or frozenset())
    if not known:
        yield from statement.given


def arguments(
    function: Function, parameter: str, seeds: Sequence[Statement]
) -> frozenset[str] | None:
    """Return the names that calls in some statements give to a parameter. None if unknown."""
    mine, found = function.code.co_name, list[frozenset[str]]()
    at = function.parameters.index(parameter)
    for call in (two for one in seeds for two in one.calls if two.function == mine):
        if parameter in call.named:
            found.append(call.named[parameter])
        elif call.positional and (at < len(call.positional) or call.starred):
            found.append(call.positional[min(at, len(call.positional) - 1)])
    return frozenset().union(*found) if found else None


def leading(given: Stack, words: Iterable[str] = ()) -> Stack:
    """Return a stack in which the innermost line leads whose statement has one of some names."""
    wanted = set(words)
    for number, line in enumerate(given.lines):
        frame = frame_of(line)
        names = (name for one in frame[1] for name in one.changes | one.uses) if frame else ()
        if not wanted.isdisjoint(name.rpartition(".")[2] for name in names):
            return given._replace(lead=number)
    return given


def told(
    given: Stack,
    forward: int | None = None,
    also: Sequence[Stack] = (),
    values: Sequence[Stack] = (),
) -> tuple[str | None, str | None]:
    """Return the leading line of a stack, and as text the lines around it and what they depend on.

    `forward` is that of the event, by default the one under way. `also` are earlier writes to the
    same memory, and `values` made what was written.
    """
    lines, lead = given
    if not lines:
        return None, None
    place, _, function = lines[lead].partition(" in ")
    inner = list(map(brief, lines[:lead][:-RESULTS:-1]))
    others = dict.fromkeys(one.line for one in also if one.line != given.line)
    callers = list(map(brief, lines[lead + 1 :][: FRAMES - 1 - len(inner)]))
    parts = (
        ("in", [function] if function else []),
        ("which calls", inner),
        ("called at", callers),
        ("also written at", list(map(brief, others))[:RESULTS]),
    )
    texts = [f"{how} {', '.join(some)}" for how, some in parts if some]
    calls = calls_of(lines[0].partition("/")[0])
    since, known = calls.answers.get(given, (calls.forward - AGAIN, []))
    if calls.forward >= since + AGAIN and calls.asked < MOST_ASKED:
        calls.asked += 1
        found = Slice(calls)
        found.begin(given)
        for one in values:
            found.begin(one, CALL / 2)
        known = list(found.told(forward, {split(one)[2] for one in lines}))
        calls.answers[given] = calls.forward, known
    return place, "; ".join([*texts, *known]) or None


def unseen(words: Iterable[str], package: str) -> str:
    """Return what is known of a value that no line was seen to write. `words` are in its name."""
    found = Slice(calls_of(package))
    for word in words:
        found.set(f".{word}", 0.0)
    return "; ".join(["no line was seen that writes it", *found.told()])
