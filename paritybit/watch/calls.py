"""Notes which functions of an engine run before each forward pass, and which lines call them."""

import sys
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FrameType
from typing import Any

from paritybit.watch.stacks import OWN, engine_file, wraps

REMEMBERED = 64
"""The last forward passes before which a function ran that are remembered."""

MOST_CALLS = 20_000
"""The most calls that are looked at between two forward passes."""


Key = tuple[int, int, int]
"""A call: the ids of the called function and of the caller, and the caller's instruction."""

SANITIZER = tuple(f"{OWN}/{folder}/" for folder in ("connectors", "watch"))
"""The folders of functions that call those of an engine on their own behalf, except CALL."""

CALL = "__call__"
"""The method in which a hook calls the function of an engine that it takes the place of."""

FOLLOWED: list["Calls"] = []
"""What notes the calls of the engine that this process runs, if it does."""

MONITORING: Any = getattr(sys, "monitoring", None)
"""From Python 3.12 on, it notes calls in place of `sys.settrace`, which also stops at each line."""

SELDOM = 8
"""The most forward passes before which a call is made that counts as seldom."""

TOOL, NAME = 4, "paritybit"
"""The number of this tool, and its name. Debuggers and coverage have others."""


@dataclass
class Ran:
    """When a function ran, and which lines called it: the callers' ids with their line numbers."""

    code: CodeType
    forwards: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    count: int = 0
    callers: dict[tuple[int, int], None] = field(default_factory=dict)

    def note(self, forward: int) -> None:
        """Note that it ran before a forward pass."""
        if not self.forwards or self.forwards[-1] != forward:
            self.forwards.append(forward)
            self.count += 1

    def near(self, *forwards: int) -> tuple[int, int]:
        """Return before how many forward passes it ran, and how far from some at the nearest."""
        far = max(forwards, default=0)
        gaps = (abs(one - other) for one in self.forwards for other in forwards)
        return self.count, min(gaps, default=far)


@cache
def calls_of(package: str) -> "Calls":
    """Return what notes the calls of a package in this process."""
    FOLLOWED[:] = [Calls(package)]
    return FOLLOWED[0]


class Calls:
    """The calls of a package's functions, by the ids of their code.

    It lives as long as the process. Python 3.11 does not keep a function that traces alive until it
    has called it, and a collection of garbage in between may stop the tracing.
    """

    def __init__(self, package: str) -> None:
        self.package, self.forward, self.left, self.inside = package, 0, 0, 0
        self.function = self._called
        self.thread: int | None = None
        self.monitoring = False
        self.files: dict[str, bool] = {}
        """Whether files are the package's."""
        self.seldom: dict[Key, list[int]] = {}
        """The forward passes before which each call was made that is made seldom."""
        self.other = set[Key]()
        """The calls that are not, or are not the engine's own."""
        self.now, self.made = set[int](), set[Key]()
        """The ids of the functions that ran since the last note, and the seldom calls."""
        self.within, self.between = set[int](), set[int]()
        """The ids of the functions that ran within a forward pass, and before one."""
        self.ran: dict[int, Ran] = {}
        self.lines: defaultdict[tuple[int, int], dict[int, CodeType]] = defaultdict(dict)
        """The functions that each line has called, by the id of its function and its number."""

    def start(self) -> None:
        """Note the calls of this thread."""
        self.left, self.thread = MOST_CALLS, threading.get_ident()
        if MONITORING is not None and not self.monitoring:
            self.monitoring = True
            if MONITORING.get_tool(TOOL) is None:
                MONITORING.use_tool_id(TOOL, NAME)
            if MONITORING.get_tool(TOOL) == NAME:
                MONITORING.register_callback(TOOL, MONITORING.events.PY_START, self._started)
                MONITORING.set_events(TOOL, MONITORING.events.PY_START)
        self._resume()

    def _resume(self) -> None:
        mine = self.thread == threading.get_ident() and not self.inside
        if MONITORING is None and mine and self.left > 0 and sys.gettrace() is None:
            sys.settrace(self.function)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Note no calls in this context, in which the sanitizer runs."""
        self.inside += 1
        if sys.gettrace() is self.function:
            sys.settrace(None)
        try:
            yield
        finally:
            self.inside -= 1
            self._resume()

    def stop(self) -> None:
        """Note no more calls."""
        self.left = 0
        if sys.gettrace() is self.function:
            sys.settrace(None)

    def note(self, forward: int) -> None:
        """Note that what ran since the last note did so before a forward pass, or within it."""
        ran = self.within if forward == self.forward else self.between
        ran |= self.now
        self.forward = forward
        for key in self.now & self.ran.keys():
            self.ran[key].note(forward)
        self.now.clear()
        for call in self.made:
            forwards = self.seldom[call]
            if forwards[-1:] != [forward]:
                forwards.append(forward)
            if len(forwards) > SELDOM:
                del self.seldom[call]
                self.other.add(call)
        self.made.clear()

    def seldom_at(self, forward: int) -> dict[int, int]:
        """Return the functions that made a seldom call, or got one, around a forward pass.

        They are given by their ids, with the least number of forward passes of such a call.
        """
        found = dict[int, int]()
        for (code, caller, _), forwards in self.seldom.items():
            if any(abs(one - forward) <= 1 for one in forwards):
                for key in (code, caller):
                    found[key] = min(len(forwards), found.get(key, SELDOM))
        return found

    def called(self, code: CodeType, first: int, last: int) -> Iterator[CodeType]:
        """Yield the functions that some lines of a function have called."""
        for number in range(first, last + 1):
            yield from self.lines.get((id(code), number), {}).values()

    def _started(self, code: CodeType, offset: int) -> Any:
        """Note that a function starts. Python never calls it again for functions of others."""
        del offset
        try:
            if not self._own(code):
                return MONITORING.DISABLE
            if self.left > 0 and not self.inside and self.thread == threading.get_ident():
                self.left -= 1
                self._call(code, sys._getframe(1).f_back)
        except Exception:  # It would be raised in the engine.
            self.left = 0
        return None

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note a call, before Python 3.12."""
        del event, argument
        try:
            self.left -= 1
            if self.left < 0:  # The engine is idle, or another thread ended it.
                sys.settrace(None)
            elif self._own(frame.f_code):
                self._call(frame.f_code, frame.f_back)
        except Exception:  # It would be raised in the engine.
            self.left = 0

    def _own(self, code: CodeType) -> bool:
        """Return whether a function is the package's."""
        own = self.files.get(code.co_filename)
        if own is None:
            own = engine_file(code.co_filename, self.package) is not None
            self.files[code.co_filename] = own
        return own

    def _call(self, code: CodeType, caller: FrameType | None) -> None:
        """Note a call of a function of the engine."""
        if caller is not None:
            self.now.add(id(code))
            key = id(code), id(caller.f_code), caller.f_lasti
            if key not in self.other:
                if key not in self.seldom and not self._note(key, code, caller):
                    self.other.add(key)
                else:
                    self.made.add(key)

    def _note(self, key: Key, code: CodeType, caller: FrameType | None) -> bool:
        """Note a new call by a frame, or by the next one that is of a named function.

        Returns False for a call of a function without a name, or by the sanitizer itself.
        """
        if caller is None or not self._named(code):
            return False
        if caller.f_code.co_filename.startswith(SANITIZER) and caller.f_code.co_name != CALL:
            return False
        mine = self.ran.setdefault(id(code), Ran(code))
        while caller is not None and not self._named(caller.f_code):
            caller = caller.f_back
        if caller is None:
            return False
        place = id(caller.f_code), caller.f_lineno
        self.ran.setdefault(place[0], Ran(caller.f_code))
        self.lines[place][id(code)] = code
        mine.callers[place] = None
        self.seldom[key] = []
        return True

    def _named(self, code: CodeType) -> bool:
        """Return whether a function is the engine's, with a name and arguments of its own."""
        mine = engine_file(code.co_filename, self.package) is not None
        return mine and not wraps(code) and not code.co_name.startswith("<")
