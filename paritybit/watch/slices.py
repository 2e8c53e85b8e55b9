"""Names the functions of an engine from which the value of a line may come.

A backward slice of the program begins at the lines of a stack. A statement depends on the functions
that it called, on those that set an attribute that it uses, and on the callers that gave a
parameter. Only functions that ran count. Those that ran before few forward passes, and near the
event, come first, as in spectrum-based fault localisation. Where no line is known, functions are
compared with words of what went wrong.
"""

import heapq
import itertools
import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

from paritybit.watch.calls import FOLLOWED, Calls
from paritybit.watch.programs import Function, Statement, function_of, mentioned
from paritybit.watch.stacks import CODES, Stack, brief, name_of, split

LOCAL, CALL, GIVEN, SET, ALIKE = 0.25, 1.0, 0.5, 1.0, 2.5
"""The length of the steps to another statement, a called function, a caller, a setter, and to
another method of a class."""

FARTHEST, MOST_STATES = 6.0, 400
"""The longest way, and the most places that are visited."""

CALLERS, INNER, NAMES = 6, 2, 5
"""The most callers of a line that are reported, lines that it calls, and suspects."""

SIZE, LARGE, SELDOM, OFTEN = 0.5, 16, 2.0, 0.5
"""The weights of a function's statements, of which LARGE count at most, of seldom calls, and of the
forward passes before which it ran."""

TABLE = 2.0
"""The length of the step to the lines that write the tables of slots."""

UNSEEN = "no line was seen that writes it"
"""What is said of a value whose lines are not known."""

NAME, MENTION = 0.5, 0.35
"""The weights of a word in the name of a function, and of a word in the names that it mentions."""

PART = re.compile("[A-Z]*[a-z]+|[A-Z]+")
"""A word in a name."""

COPIES = frozenset({"__dict__", "__new__", "copy", "deepcopy", "replace"})
"""Names in a function that may copy an object, with all of its attributes."""

Frame = tuple[Function, Sequence[Statement]]
Ways = dict[CodeType, float]
"""The length of the shortest way to each function."""


class Asked(NamedTuple):
    """What suspects depend on: the lines of `stacks`, or else `words` in the names that they use.

    `within` says that they only ran within forward passes. `forward` is that of the event, by
    default the one under way. A finding without the text `needs` is not about it. `steps` is the
    length of the way to the lines.
    """

    stacks: tuple[Stack, ...] = ()
    words: tuple[str, ...] = ()
    within: bool = False
    forward: int | None = None
    needs: str = ""
    steps: float = 0.0


ASKED = deque[Asked](maxlen=16)
"""What was asked of since the last finding."""


class Slice:
    """The functions on which lines depend: through `results` of calls, or through `state`.

    `alike` are the methods of the classes that have the lines.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.results, self.state, self.alike = Ways(), Ways(), Ways()
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
        for number, line in enumerate(stack.lines[: stack.lead + 1 + CALLERS]):
            kind, away = split(line)[2].rpartition(".")[0], max(0, number - stack.lead)
            for ran in self.calls.ran.values() if kind else ():
                if kind_of(ran.code) == kind:
                    length = steps + ALIKE + away * GIVEN
                    self.alike[ran.code] = min(length, self.alike.get(ran.code, length))

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
        own = f"self.{attribute}"
        for code in self.mentions[attribute]:
            setter = function_of(code)
            if setter is None or setter.attributes.isdisjoint((own, f".{attribute}")):
                continue
            changes = [(one, self.changes(setter, one, attribute)) for one in setter.statements]
            mine = [one for one, names in changes if own in names]
            other = [one for one, names in changes if f".{attribute}" in names]
            if mine or other:
                found.append((bool(other) or kind_of(code) == kind, (setter, mine + other)))
        if name.startswith("self.") and any(alike for alike, _ in found):
            found = [one for one in found if one[0]]
        kinds = {kind_of(setter.code) for _, (setter, _) in found} - {""}
        copies = (code for one in sorted(COPIES) for code in self.mentions[one])
        copying = (function_of(code) for code in copies if kind_of(code) in kinds)
        return [one for _, one in found] + [(one, one.ends) for one in copying if one is not None]

    def changes(self, function: Function, one: Statement, attribute: str) -> frozenset[str]:
        """Return what a statement changes, or may change by what it gives to a function."""
        if one.head or one.given.isdisjoint((f".{attribute}", f"self.{attribute}")):
            return one.changes
        called = self.calls.called(function.code, one.first, one.last)
        return one.changes.union(lent(one, filter(None, map(function_of, called))))

    def callers(self, function: Function) -> Iterator[Frame]:
        """Yield the lines that called a function."""
        ran = self.calls.ran.get(id(function.code))
        for caller, line in ran.callers if ran is not None else ():
            given = function_of(self.calls.ran[caller].code)
            if given is not None:
                yield given, given.at(line)

    def lengths(self, *forwards: int) -> Iterator[tuple[str, float]]:
        """Yield the functions on which the lines depend, the most suspicious with the least number.

        `forwards` are those of the event and of the finding. Functions come first that made a
        seldom call for the event, or have many statements, and those last that ran often, or not
        near it.
        """
        self.follow()
        left_out = self.calls.within - self.calls.between
        seldom = self.calls.seldom_at(forwards[0])
        for ways in (self.results, self.state, self.alike):
            for code, steps in ways.items():
                ran, function = self.calls.ran.get(id(code)), function_of(code)
                count, gap = (0, 0) if ran is None else ran.near(*forwards)
                if ran is None or function is None or not count or id(code) in left_out:
                    continue
                length = steps + math.log2(1 + gap) - SELDOM / seldom.get(id(code), 99)
                length += OFTEN * math.log2(count)
                length -= SIZE * math.log2(1 + min(LARGE, len(function.statements)))
                yield name_of(code), length


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
    """Return the leading line of a stack, and as text the lines around it.

    `forward` is that of the event, by default the one under way. `also` are other writes to the
    same value, and `values` made what was written. `suspects` then follows them.
    """
    lines, lead = given
    if not lines:
        return None, None
    place, _, function = lines[lead].partition(" in ")
    inner = list(map(brief, lines[:lead][: -INNER - 1 : -1]))
    others = dict.fromkeys(one.line for one in also if one.line != given.line)
    callers = list(map(brief, lines[lead + 1 :][:CALLERS]))
    parts = (
        ("in", [function] if function else []),
        ("which calls", inner),
        ("called at", callers),
        ("also written at", list(map(brief, others))[:INNER]),
    )
    texts = [f"{how} {', '.join(some)}" for how, some in parts if some]
    stacks = given, *also, *values
    ASKED.append(Asked(stacks, forward=forward, needs=place))
    return place, "; ".join(texts) or None


def unseen(words: Iterable[str]) -> str:
    """Return what is known of a value that no line was seen to write. `words` are in its name."""
    ASKED.append(Asked(words=tuple(words), needs=UNSEEN))
    return UNSEEN


def parts(names: Iterable[str]) -> Counter[str]:
    """Count the words of names, such as `slot` and `free` of `free_slot`."""
    return Counter(one.lower() for name in names for one in PART.findall(name))


@lru_cache(maxsize=16384)
def used_in(code: CodeType) -> Counter[str]:
    """Count the words of the names in a function."""
    return parts(mentioned(code).union(code.co_varnames))


def resembling(asked: Asked, calls: Calls) -> Iterator[tuple[str, float]]:
    """Yield the functions that ran, those with the most of some words with the least number."""
    words, within = tuple(parts(asked.words)), calls.within - calls.between
    for ran in calls.ran.values():
        if id(ran.code) in within or not (asked.within and within):
            name, used = parts([name_of(ran.code)]), used_in(ran.code)
            length = -NAME * sum(one.startswith(words) for one in name)
            for word in words:
                number = sum(count for one, count in used.items() if one.startswith(word))
                length -= MENTION * math.log2(1 + number)
            if length < 0:
                yield name_of(ran.code), length


def suspects(finding: str, forward: int) -> str | None:
    """Return the functions on which depends what a finding tells, the most suspicious first.

    `finding` has all of its text.
    """
    best, shown = dict[str, float](), set[str]()
    for asked in (one for one in ASKED if FOLLOWED and one.needs in finding):
        event = forward if asked.forward is None else asked.forward
        found = Slice(FOLLOWED[0])
        for number, stack in enumerate(asked.stacks):
            found.begin(stack, asked.steps + (CALL / 2 if number else 0.0))
        if asked.needs and asked.stacks:
            lines, lead = asked.stacks[0]
            shown.update(split(one)[2] for one in lines[: lead + 1 + CALLERS])
        lengths = resembling(asked, FOLLOWED[0]) if asked.words else found.lengths(event, forward)
        for name, length in lengths:
            best[name] = min(length, best.get(name, length))
    names = [one for one in sorted(best, key=best.__getitem__) if one not in shown]
    return ", ".join(names[:NAMES]) or None
