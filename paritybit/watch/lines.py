"""Learns which line of the engine fills each input, from the bytes of the inputs.

While the engine prepares one of its first forward passes, the bytes of its inputs are compared
after each line of the engine. The line that has just run filled an input whose bytes changed. A
tensor that the engine makes anew for each forward pass is followed from the line that binds it to
the name of the input, and counts only if the forward pass then gets this very memory.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import c_char
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, TypeGuard

import torch
from torch import Tensor

from paritybit.watch.fills import OWN, Fills
from paritybit.watch.flow import sources
from paritybit.watch.sources import (
    GIVEN,
    NAMED,
    TARGET,
    line_of,
    name_of,
    named_in,
    split,
    text_of,
    value_of,
    wraps,
)
from paritybit.watch.weak import ReleasedError, WeakTensor

TRIES, MOST_TRIES = 3, 12
"""The number of forward passes in which an input is followed, and the most if it never changes."""

LARGEST = 2**20
"""The most bytes of an input that is followed."""

MOST_IDLE = 100
"""The number of forward passes in which an input is sought and does not occur."""

MOST_CALLS = 100
"""The most calls of a function that are considered."""

MOST_CALLERS = 12
"""The most callers of a line that are considered."""

CALLERS = 3
"""The callers of a line that are reported."""

SLOTS = "slots"
"""The kind of a table from which rows get their slots. Its name ends with that of the group."""


def listed(lines: Sequence[str]) -> str | None:
    """Return text about further lines that write an input, or None for none."""
    return f"also written at {', '.join(lines[-CALLERS:])}" if lines else None


Line = tuple[str, str | None]
"""A line such as `engine/runner.py:12 in Runner.prepare`, and as text the lines around it."""

PREPARED = "prepared here; no change of its bytes was seen"
"""Says that a line is only known to name an input."""

Key = tuple[str, str, str]
"""The kind of an input, such as its graph runner, the kind of the forward pass, and its name."""


@dataclass
class Followed:
    """A tensor, the words in the names of its input, and the line that changed it last.

    `earlier` are all lines that changed it for one forward pass.
    """

    tensor: Tensor
    words: set[str] = field(default_factory=set)
    line: "Line | None" = None
    earlier: dict[str, None] = field(default_factory=dict)
    before: bytes = b""
    live: Any = None

    def __post_init__(self) -> None:
        if self.tensor.device.type == "cpu":
            self.live = (c_char * self.tensor.nbytes).from_address(self.tensor.data_ptr())
        self.before = self.now()

    def now(self) -> bytes:
        """Return the bytes of the tensor, after all work on its device."""
        if self.live is not None:
            return bytes(self.live)
        torch.cuda.synchronize(self.tensor.device)
        return self.tensor.detach().cpu().view(torch.uint8).numpy().tobytes()

    def changed(self) -> bool:
        """Return whether the bytes changed since the last call."""
        if self.live is not None and self.before == self.live:  # Faster than a copy.
            return False
        before, self.before = self.before, self.now()
        return before != self.before


def followable(value: object) -> TypeGuard[Tensor]:
    """Return whether a value is a tensor that is small enough, and can be compared."""
    if not isinstance(value, Tensor) or not value.dim() or not value.is_contiguous():
        return False
    return 0 < value.nbytes <= LARGEST and (value.device.type == "cpu" or alone(value))


def alone(tensor: Tensor) -> bool:
    """Return whether the work on a GPU may be waited for: no other rank waits for this one."""
    if tensor.device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return False
    groups = torch.distributed
    return not groups.is_initialized() or groups.get_world_size() == 1


class Lines:
    """The lines of an engine that fill its inputs. `known` has them by kind and name.

    `package` is the top-level package of the engine. A connector calls `start` when the engine
    begins to prepare a forward pass and `stop` before it runs; the watcher does the rest. `forward`
    is the kind of the current forward pass: an engine prepares each kind at other lines.
    """

    def __init__(self, package: str) -> None:
        self.folder, self.forward = f"/{package}/", ""
        self.fills: Fills | None = None
        self.known: dict[Key, Line] = {}
        self.also: dict[Key, dict[str, None]] = {}
        self.tries, self.idle = Counter[Key](), Counter[Key]()
        self.inputs: dict[Key, WeakTensor | None] = {}
        self.followed: dict[int, Followed] = {}
        self.noted: set[Key] = set()
        self.given: set[tuple[str, int]] = set()
        self.named: dict[str, tuple[bool, Line]] = {}
        self.prepared: dict[Key, Line] = {}
        self.tried: set[Key] = set()
        self.open = 0
        self.ended = False
        self.last: tuple[FrameType, int] | None = None
        self.ran: dict[FrameType, dict[int, None]] = {}
        self.made: dict[FrameType, list[tuple[int, str]]] = {}
        """The calls that each function has made: the line, and the function that it called."""
        self.used: dict[str, tuple[str, int, tuple[tuple[int, str], ...]]] = {}
        """For a line that is known: its file and number, and the calls before it."""
        self.inside: dict[CodeType, bool] = {}
        self.bound: dict[tuple[CodeType, int], tuple[list[tuple[str, str]], list[str]]] = {}
        self.sought: set[str] = set()

    def of(self, kind: str, name: str) -> tuple[str | None, str | None]:
        """Return the line that fills an input, and text about the lines around it, if known.

        If no line changed it for this kind of forward pass, the result is a line that changed it
        for another kind, or else the last one that names it as a target or as an argument. Without
        such a line, the text names the line that fills the input with the most similar name.
        """
        mine = kind, self.forward, name
        wrote = self._writers(mine)
        alike = [key for key in self.inputs if (key[0], key[2]) == (kind, name) and key != mine]
        for key in (mine, *alike):
            if key in self.known:
                line, via = self.known[key]
                when = None if key == mine else f"that is before {key[1]} forwards"
                also = [one for one in dict.fromkeys((*self.also[key], *wrote)) if one != line]
                return split(line, "; ".join(filter(None, (when, via, listed(also)))))
        if mine in self.prepared:
            line, via = self.prepared[mine]
            more = listed([one for one in wrote if one != line])
            return split(line, "; ".join(filter(None, (PREPARED, via, more))))
        if wrote:
            return split(wrote[-1], listed(wrote[:-1]))
        if not (tries := self.tries[mine]):
            return None, None
        did = "changed or named" if self.inputs.get(mine) else "named"
        near = self.neighbour(mine)
        told = "" if near is None else f"; {near[2]} is filled at {self.known[near][0]}"
        return None, f"no line {did} it before {tries} forwards{told}"

    def with_results(self, cause: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add to a cause the functions whose results its line uses, if they are known."""
        function, *rest = str(cause.get("via") or "").split("; ")
        given = self.used.get(f"{cause.get('source')} {function}")
        found = sources(*given) if given is not None else []
        if not found:
            return cause
        return {**cause, "via": "; ".join((function, f"with results of {', '.join(found)}", *rest))}

    def _writers(self, key: Key) -> list[str]:
        """Return the lines that wrote an input, also those that wrote what it held already."""
        tensor = self._tensor(key) if key in self.inputs else None
        return [] if tensor is None or self.fills is None else self.fills.lines_of(tensor)

    def neighbour(self, key: Key) -> Key | None:
        """Return the input of the same kind with the most similar name whose line is known."""
        words = set(key[2].split("_"))
        known = [one for one in self.known if one[:2] == key[:2]]
        return max(known, key=lambda one: len(words & set(one[2].split("_"))), default=None)

    def of_slots(self, group: str) -> tuple[str | None, str | None]:
        """Return the line that fills the table of a group's slots, and the lines around it."""
        names = (name for kind, _, name in self.inputs if kind == SLOTS)
        name = next((one for one in names if one.split()[-1] == group), "")
        return self.of(SLOTS, name)

    def may_learn(self, key: Key) -> bool:
        """Return whether the line of an input is still sought."""
        most = TRIES if key in self.known else MOST_TRIES
        return self.tries[key] < most and self.idle[key] < MOST_IDLE

    def note(self, kind: str, inputs: Mapping[str, Tensor]) -> None:
        """Note inputs that the engine has prepared."""
        for name, tensor in inputs.items():
            key = kind, self.forward, name
            word = next(iter(named_in(name)), "")
            if self.followed or self.named:
                self.given.add((word, tensor.data_ptr()))
            if not self.may_learn(key):
                continue
            self.noted.add(key)
            if word in self.named:
                self.prepared[key] = self.named[word][1]
            mine = self.followed.get(tensor.data_ptr())
            if mine is not None and mine.line is not None:
                self.known[key] = mine.line
                self.also.setdefault(key, {}).update(mine.earlier)
            before = self.inputs.get(key)
            if before is None or before.storage.expired():
                self.inputs[key] = WeakTensor(tensor) if followable(tensor) else None

    def start(self) -> None:
        """Follow the inputs whose line may still be learned, in this thread."""
        if self.fills is not None:
            self.fills.start()
        sought = [key for key in self.inputs if self.may_learn(key)]
        if not sought or sys.gettrace() is not None:
            return
        self.tried.update(sought)
        for one in self.followed.values():
            one.changed()  # No line did it: a forward pass, for example.
        for key in sought:
            tensor = self._tensor(key)
            if followable(tensor):
                one = self.followed.setdefault(tensor.data_ptr(), Followed(tensor))
                one.words |= set(named_in(key[2]))
        self.sought = {word for *_, name in sought for word in named_in(name)}
        self.bound.clear()
        self.last = None
        sys.settrace(self._called)

    def stop(self) -> None:
        """Stop following until a forward pass has ended, and keep what was seen."""
        if self.fills is not None:
            self.fills.stop()
            if not self.open:
                self.fills.leave()
        if sys.gettrace() == self._called:
            sys.settrace(None)
            self.last = None
            self.ran.clear()
            self.made.clear()

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Follow the inputs within this context, except during a forward pass.

        An engine may prepare several forward passes in one such context.
        """
        self.open += 1
        self.start()
        try:
            yield
        finally:
            self.open -= 1
            self.stop()
            if not self.open and self.ended:
                self.forget()

    def done(self) -> None:
        """Note that a forward pass has ended. The engine may prepare the next one now."""
        self.stop()
        if self.fills is not None:
            self.fills.done()
        self.tries.update(self.noted & self.tried)
        self.idle.update(self.tried - self.noted)
        for name, address in self.given:  # The engine fills it again for the next one.
            self.named.pop(name, None)
            if address in self.followed:
                self.followed[address].line = None
                self.followed[address].earlier.clear()
        self.given.clear()
        self.noted.clear()
        self.tried.clear()
        self.ended = True
        if self.open:
            self.start()
        else:
            self.forget()

    def forget(self) -> None:
        """Drop the tensors of forward passes that have ended."""
        self.ended = False
        self.followed.clear()
        self.named.clear()

    def _tensor(self, key: Key) -> Tensor | None:
        """Return an input, or None if the engine released it."""
        held = self.inputs[key]
        try:
            return None if held is None else held()
        except ReleasedError:
            return None

    # While the engine runs.

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Begin to follow the lines of a function, if it is the engine's."""
        code = frame.f_code
        if code not in self.inside:
            path = code.co_filename
            self.inside[code] = self.folder in path and not path.startswith(OWN)
        if self.inside[code] and not code.co_name.startswith("<"):
            caller = self._caller(frame)
            if caller is not None:
                self.made.setdefault(caller[0], []).append((caller[1], name_of(code)))
        return self._at(frame, event, argument) if self.inside[code] else None

    def _at(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Look at what the last line did, and note the next one."""
        del argument
        try:
            self._look()
            if event in ("line", "return") and self.last is not None and self.last[0] is frame:
                self._bind(frame, self.last[1])
            if event == "return":
                self.ran.pop(frame, None)
                self.made.pop(frame, None)
                self.last = self._caller(frame)
            else:
                ran = self.ran.setdefault(frame, {})
                ran.pop(frame.f_lineno, None)  # The last one that ran comes last.
                ran[frame.f_lineno] = None
                self.last = frame, frame.f_lineno
        except Exception:  # An error here would be raised in the engine.
            self.stop()
            return None
        return self._at

    def _caller(self, frame: FrameType) -> tuple[FrameType, int] | None:
        """Return the line of the engine to which a function returns, or None."""
        caller = frame.f_back
        while caller is not None and not self.inside.get(caller.f_code, False):
            caller = caller.f_back
        return None if caller is None else (caller, caller.f_lineno)

    def _look(self) -> None:
        """Attribute all changes since the last call to the line that has run."""
        for one in self.followed.values():
            if one.changed() and self.last is not None:
                one.line = self._place(*self.last, one.words, one.tensor.data_ptr())
                one.earlier[one.line[0]] = None

    def _place(
        self, frame: FrameType, line: int, words: set[str], address: int | None = None
    ) -> Line:
        """Return the line that led to a change of an input, and those that called it.

        This is the innermost line that names the input, among the line that ran and its callers,
        then among the lines before them in the same functions, where the name must be that of the
        memory at `address`. If none does, it is the line itself.
        """
        found, earlier = [(frame, line)], list[tuple[FrameType, int]]()
        caller: FrameType | None = frame
        while caller is not None and len(found) < MOST_CALLERS:
            inside = self.inside.get(caller.f_code, False) and not wraps(caller.f_code)
            if caller is not frame and inside:
                found.append((caller, caller.f_lineno))
            earlier += [(caller, number) for number in reversed(self.ran.get(caller, {}))]
            caller = caller.f_back
        first = next((one for one in found if not words.isdisjoint(named_in(text_of(*one)))), None)
        if first is None and address is not None:
            holds = (one for one in earlier if self._holds(*one, words, address))
            first = next(holds, None)
        first = first or found[0]
        frames, via = [one for one, _ in found], list[str]()
        if first[0] in frames:
            at = frames.index(first[0])
            inner, outer = found[:at][:-CALLERS:-1], found[at + 1 :][:CALLERS]
            for how, lines in (("which calls", inner), ("called at", outer)):
                if lines:
                    via.append(f"{how} {', '.join(self._shown(*one) for one in lines)}")
        shown = self._shown(*first)
        if first[0] in self.made:
            calls = tuple(self.made[first[0]][-MOST_CALLS:])
            self.used[shown] = first[0].f_code.co_filename, first[1], calls
        return shown, "; ".join(via) or None

    def _holds(self, frame: FrameType, line: int, words: set[str], address: int) -> bool:
        """Return whether a line names a tensor at an address by one of the words."""
        for owner, name in NAMED.findall(text_of(frame, line)):
            if name in words:
                value = value_of(frame, owner, name)
                if isinstance(value, Tensor) and value.data_ptr() == address:
                    return True
        return False

    def _shown(self, frame: FrameType, line: int) -> str:
        """Return a line of the engine as text."""
        path = frame.f_code.co_filename
        return line_of(path[path.rindex(self.folder) + 1 :], line, frame.f_code)

    def _bind(self, frame: FrameType, line: int) -> None:
        """Follow the tensors that a line has bound to the names of inputs, and note these names."""
        code = frame.f_code
        if (code, line) not in self.bound:
            text = text_of(frame, line)
            targets = [one for one in TARGET.findall(text) if one[1] in self.sought]
            given = [one for one in GIVEN.findall(text) if one in self.sought]
            self.bound[code, line] = targets, given
        targets, given = self.bound[code, line]
        for owner, name in targets:
            value = value_of(frame, owner, name)
            if followable(value) and value.data_ptr() not in self.followed:
                place = self._place(frame, line, {name})
                self.followed[value.data_ptr()] = Followed(value, {name}, place)
            self.named[name] = True, self._place(frame, line, {name})
        for name in given:
            if not self.named.get(name, (False,))[0]:
                self.named[name] = False, self._place(frame, line, {name})
