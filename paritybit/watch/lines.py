"""Learns which line of the engine fills each input, from the bytes of the inputs.

While the engine prepares one of its first forward passes, the bytes of its inputs are compared
after each line of the engine. The line that has just run filled an input whose bytes changed. A
tensor that the engine makes anew for each forward pass is followed from the line that binds it to
the name of the input, and counts only if the forward pass then gets this very memory.
"""

import linecache
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import c_char
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

TRIES = 3
"""The number of forward passes in which the line of an input is sought."""

LARGEST = 2**20
"""The most bytes of an input that is followed."""

MOST_CALLERS = 12
"""The most callers of a line that are considered."""

OWN = str(Path(__file__).parents[1])
"""The folder of paritybit, whose connectors have the names of engines."""

CALLERS = 2
"""The callers of a line that are reported."""

SLOTS = "slots"
"""The kind of a table from which rows get their slots. Its name ends with that of the group."""

Line = tuple[str, str | None]
"""A line such as `engine/runner.py:12`, and as text what it calls and which lines call it."""

Key = tuple[str, str]
"""The kind of an input, such as its graph runner, and its name."""


@dataclass
class Followed:
    """A tensor, the words in the names of its input, and the line that changed it last."""

    tensor: Tensor
    words: set[str] = field(default_factory=set)
    line: "Line | None" = None
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


@dataclass(frozen=True)
class Remembered:
    """A view of a tensor that does not keep its memory alive."""

    storage: StorageWeakRef
    dtype: torch.dtype
    offset: int
    shape: torch.Size

    @classmethod
    def of(cls, tensor: Tensor) -> "Remembered":
        """Remember a contiguous tensor."""
        storage = StorageWeakRef(tensor.untyped_storage())
        return cls(storage, tensor.dtype, int(tensor.storage_offset()), tensor.shape)

    def tensor(self) -> Tensor | None:
        """Return the tensor, or None if the engine released it."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            return None
        found = torch.empty(0, dtype=self.dtype, device=storage.device)
        return found.set_(storage, self.offset, self.shape, strides_of(self.shape))


def strides_of(shape: torch.Size) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return torch.empty(shape, device="meta").stride()


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


def words_of(name: str) -> set[str]:
    """Return the words in the name of an input that may be names in the engine's source."""
    return set(re.findall(r"[A-Za-z]\w{2,}", name))


class Lines:
    """The lines of an engine that fill its inputs. `known` has them by kind and name.

    `package` is the top-level package of the engine. A connector calls `start` when the engine
    begins to prepare a forward pass and `stop` before it runs; the watcher does the rest.
    """

    def __init__(self, package: str) -> None:
        self.folder = f"/{package}/"
        self.known: dict[Key, Line] = {}
        self.tries = Counter[Key]()
        self.inputs: dict[Key, Remembered] = {}
        self.followed: dict[int, Followed] = {}
        self.noted: set[Key] = set()
        self.armed = False
        self.last: tuple[FrameType, int] | None = None
        self.ran: dict[FrameType, dict[int, None]] = {}
        self.inside: dict[CodeType, bool] = {}
        self.bound: dict[tuple[CodeType, int], list[tuple[str, str]]] = {}
        self.sought: set[str] = set()

    def of(self, kind: str, name: str) -> tuple[str | None, str | None]:
        """Return the line that fills an input, and the lines around it, if they are known."""
        return self.known.get((kind, name), (None, None))

    def of_slots(self, group: str) -> tuple[str | None, str | None]:
        """Return the line that fills the table of a group's slots, and the lines around it."""
        names = (name for kind, name in self.known if kind == SLOTS)
        name = next((one for one in names if one.split()[-1] == group), "")
        return self.of(SLOTS, name)

    def note(self, kind: str, inputs: Mapping[str, Tensor]) -> None:
        """Note inputs that the engine has prepared."""
        for name, tensor in inputs.items():
            key = kind, name
            if self.tries[key] >= TRIES or not followable(tensor):
                continue
            self.noted.add(key)
            mine = self.followed.get(tensor.data_ptr())
            if mine is not None and mine.line is not None:
                self.known[key] = mine.line
            before = self.inputs.get(key)
            if before is None or before.storage.expired():
                self.inputs[key] = Remembered.of(tensor)

    def start(self) -> None:
        """Follow the inputs whose line may still be learned, in this thread."""
        sought = [key for key in self.inputs if self.tries[key] < TRIES]
        if not sought or sys.gettrace() is not None:
            return
        for key in sought:
            tensor = self.inputs[key].tensor()
            if tensor is not None and followable(tensor):
                one = self.followed.setdefault(tensor.data_ptr(), Followed(tensor))
                one.words |= words_of(key[1])
        self.sought = set().union(*(words_of(name) for _, name in sought))
        self.bound.clear()
        self.armed, self.last = True, None
        sys.settrace(self._called)

    def stop(self) -> None:
        """Stop following, and keep what was seen until `done`."""
        if sys.gettrace() == self._called:
            sys.settrace(None)
            self.last = None
            self.ran.clear()

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Follow the inputs within this context, unless `stop` is called."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def done(self) -> None:
        """Forget the tensors of a forward pass that has ended."""
        self.stop()
        if self.armed:
            self.tries.update(self.noted)
        self.armed = False
        self.noted.clear()
        self.followed.clear()

    # While the engine runs.

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Begin to follow the lines of a function, if it is the engine's."""
        code = frame.f_code
        if code not in self.inside:
            path = code.co_filename
            self.inside[code] = self.folder in path and not path.startswith(OWN)
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
                one.line = self._place(*self.last, one.words)

    def _place(self, frame: FrameType, line: int, words: set[str]) -> Line:
        """Return the line that led to a change of an input, and those that called it.

        This is the innermost line that names the input, among the line that ran and its callers,
        then among the lines before them in the same functions. If none does, it is the line itself.
        """
        found, earlier = [(frame, line)], list[tuple[FrameType, int]]()
        caller: FrameType | None = frame
        while caller is not None and len(found) < MOST_CALLERS:
            if caller is not frame and self.inside.get(caller.f_code, False):
                found.append((caller, caller.f_lineno))
            earlier += [(caller, number) for number in reversed(self.ran.get(caller, {}))]
            caller = caller.f_back
        named = (one for one in (*found, *earlier) if words & words_of(text_of(*one)))
        first = next(named, found[0])
        frames, via = [one for one, _ in found], list[str]()
        if first[0] in frames:
            at = frames.index(first[0])
            inner, outer = found[max(0, at - 1) : at], found[at + 1 :][:CALLERS]
            for how, lines in (("which calls", inner), ("called at", outer)):
                if lines:
                    via.append(f"{how} {', '.join(self._shown(*one) for one in lines)}")
        return self._shown(*first), "; ".join(via) or None

    def _shown(self, frame: FrameType, line: int) -> str:
        """Return a line of the engine as text."""
        path = frame.f_code.co_filename
        return f"{path[path.rindex(self.folder) + 1 :]}:{line}"

    def _bind(self, frame: FrameType, line: int) -> None:
        """Follow the tensors that a line has bound to the names of inputs."""
        code = frame.f_code
        if (code, line) not in self.bound:
            text = linecache.getline(code.co_filename, line)
            found = re.findall(r"(?:\b(\w+)\.)?\b(\w+)\s*(?::[^=]+)?=(?!=)", text)
            self.bound[code, line] = [one for one in found if one[1] in self.sought]
        for owner, name in self.bound[code, line]:
            held = frame.f_locals.get(owner or name)
            value = getattr(held, name, None) if owner else held
            if followable(value) and value.data_ptr() not in self.followed:
                place = self._place(frame, line, {name})
                self.followed[value.data_ptr()] = Followed(value, {name}, place)


def text_of(frame: FrameType, line: int) -> str:
    """Return a line of the source of a frame."""
    return linecache.getline(frame.f_code.co_filename, line)
