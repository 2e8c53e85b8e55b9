"""Follows which entries of its tensors an engine fills before each replay of a graph.

A graph reads tensors at fixed addresses, of which the engine fills the first entries for a batch.
What an earlier batch left in the entries after them must not matter. Each write by an operation of
torch is seen while the engine prepares a forward pass, so no names of tensors are needed. A tensor
that anything else changes, or that is not filled from its first entries on, is left out.
"""

import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from paritybit.watch.facts import StaticInput
from paritybit.watch.stacks import (
    NOWHERE,
    Stack,
    described,
    engine_file,
    line_of,
    of_connector,
    stack,
)
from paritybit.watch.statements import changed_at, stored_by
from paritybit.watch.weak import ByObject, ReleasedError, WeakTensor, span

LARGEST = 2**16
"""The most bytes of a tensor that is followed."""

MOST_WRITES = 24
"""The most writes to a memory that are remembered."""

MOST_POINTERS = 256
"""The most elements of a tensor of pointers."""

MOST = 1024
"""The most tensors that are followed."""

EARLIER = 16
"""The number of replays of a graph before which a tensor's content is kept."""

FAILED = "what the engine fills could not be followed"
UNSEEN = "not every change of {} was seen"
SCATTERED = "{} is not filled from its first entries on"


@cache
def written_by(operation: Any) -> tuple[tuple[int, str], ...]:
    """Return the places and names of the arguments that an operation changes."""
    arguments = enumerate(operation._schema.arguments)
    writes = ((n, one.name) for n, one in arguments if one.alias_info and one.alias_info.is_write)
    return tuple(writes)


@cache
def makes(operation: Any) -> bool:
    """Return whether an operation returns new tensors, and no views."""
    lifts = operation._schema.name == "aten::lift_fresh"  # `torch.tensor` has made one.
    return lifts or all(one.alias_info is None for one in operation._schema.returns)


class Write(NamedTuple):
    """A write to the bytes from `first` to `last` of a memory, by a stack."""

    first: int
    last: int
    stack: Stack


def tensors_in(given: Any) -> Iterator[Tensor]:
    """Yield the tensors in an argument or a result of an operation, without those of subclasses."""
    for one in given if isinstance(given, list | tuple) else (given,):
        if type(one) is Tensor and one.layout == torch.strided and one.device.type != "meta":
            yield one


class Filled:
    """The memory of a tensor, whose first `ever` entries were filled.

    `spans` are the entries that were filled since the last look, `content` is what it held then,
    and `held` what it held before the last replays of each graph.
    """

    def __init__(self, tensor: Tensor) -> None:
        count = tensor.untyped_storage().nbytes() // tensor.element_size()
        flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        self.memory = WeakTensor(flat.set_(tensor.untyped_storage(), 0, (count,), (1,)))
        self.spans: list[tuple[int, int]] = []
        self.name = "a tensor"
        self.ever, self.content = 0, self.memory().clone()
        self.held: ByObject[deque[Tensor]] = ByObject()
        self.reason: str | None = None
        """Why it is not followed any more."""

    def note(self, tensor: Tensor) -> None:
        """Note that a view of the memory was written."""
        first = int(tensor.storage_offset())
        if tensor.dtype == self.memory.dtype and tensor.is_contiguous():
            self.spans.append((first, first + tensor.numel()))
        else:
            self.reason = SCATTERED.format(self.name)

    def filled(self) -> int:
        """Return how many first entries were filled since the last look, and forget it."""
        end = 0
        for first, last in sorted(self.spans):
            if first > max(end, 1):  # Entry 0 may be a constant, as where offsets begin.
                self.reason = SCATTERED.format(self.name)
            end = max(end, last)
        self.spans.clear()
        return end

    def look(self) -> tuple[Tensor, int]:
        """Return the memory, and how many of its first entries were filled since the last look."""
        now, end = self.memory(), self.filled()
        if not torch.equal(now[end:], self.content[end:]):
            self.reason = UNSEEN.format(self.name)
        if end:
            self.content = now.clone()
        self.ever = max(self.ever, end)
        return now, end


FOLLOWING: WeakSet[Any] = WeakSet()
"""What follows the launches of Triton kernels in this process."""

LAUNCHES = (
    ("triton.runtime.interpreter", "GridExecutor", "__call__"),
    ("triton.runtime.jit", "JITFunction", "run"),
)
"""The modules, the classes and the methods that launch Triton kernels."""


def follow_launches() -> None:
    """Tell FOLLOWING of each launch of a Triton kernel from now on."""
    for module, name, method in LAUNCHES:
        owner: Any = getattr(sys.modules.get(module), name, None)
        original = getattr(owner, method, None)
        if original is None or hasattr(original, "followed"):
            continue

        def launch(kernel: Any, *args: Any, original: Any = original, **named: Any) -> Any:
            result = original(kernel, *args, **named)
            for one in tuple(FOLLOWING):
                try:
                    one.launched(kernel, args, named)
                except Exception:  # It would be raised in the engine.
                    FOLLOWING.discard(one)
            return result

        launch.followed = True  # type: ignore[attr-defined]
        setattr(owner, method, launch)


def leave_uncompiled() -> None:
    """Let torch's compiler leave the mode alone, once the engine has imported the compiler."""
    dispatch: Any = Fills.__torch_dispatch__
    if "torch._dynamo" in sys.modules and not hasattr(dispatch, "__wrapped__"):
        Fills.__torch_dispatch__ = _disable_dynamo(dispatch)  # type: ignore[method-assign]


def followed(on: bool) -> None:
    """Set whether torch dispatches the operations of this thread to modes."""
    torch._C._dispatch_tls_set_dispatch_key_included("Python", on)


class Fills(TorchDispatchMode):
    """The tensors that an engine fills, by the address of their memory."""

    def __init__(self, package: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.package, self.known = package, dict[int, Filled]()
        self.judging = False
        """Whether entries that are not filled are judged."""
        self.written: dict[int, tuple[StorageWeakRef, list[Write]]] = {}
        """The writes to each memory by its address, the latest first."""
        FOLLOWING.add(self)
        self.pointers: dict[int, tuple[StorageWeakRef, list[int]]] = {}
        """The addresses that tensors hold, by the address of the tensor."""
        self.thread: int | None = None
        self.entered = self.active = self.failed = self.inference = self.followed = False
        self.left_out: dict[str, bool] = {}
        """Why tensors are not followed, and whether `reasons` has given it."""

    # While the engine prepares a forward pass.

    def start(self) -> None:
        """Follow what this thread writes."""
        if not self.entered:
            follow_launches()
            leave_uncompiled()
            self.thread, self.entered = threading.get_ident(), True
            self.inference = torch.is_inference_mode_enabled()
            self.__enter__()  # type: ignore[no-untyped-call]
        if self.mine:
            self.active = self.followed = True
            followed(True)

    def stop(self) -> None:
        """Follow nothing until `start`.

        The mode is not left if the engine may have entered an inference mode meanwhile: at its end,
        torch dispatches to modes again, and fails if there is none. `torch.tensor` also makes it do
        so, which slows down all later operations. So this is called often.
        """
        if not self.mine:
            return
        if self.inference or torch.is_inference_mode_enabled():
            self.active = False
            followed(False)
        else:
            self.leave()

    def leave(self) -> None:
        """Leave the mode, where no inference mode is open that the engine began after `start`."""
        if self.mine:
            self.entered = self.active = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @property
    def mine(self) -> bool:
        """Whether this thread dispatches to this mode first, and to no mode of the engine."""
        here = self.entered and self.thread == threading.get_ident()
        return here and _get_current_dispatch_mode() is self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and note what it wrote."""
        result = func(*args, **(kwargs or {}))
        if not self.active or self.failed:
            return result
        try:
            self._note(func, result, args, kwargs or {})
        except Exception:  # It would be raised in the engine.
            self.failed = True
            self.known.clear()
            self.written.clear()
            self.left_out.setdefault(FAILED, False)
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would import its compiler for this, which takes seconds."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: what the engine compiles stays compiled. Its writes are not seen."""
        return True

    def _note(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        """Note which lines of the engine wrote or made tensors by an operation."""
        changed = [
            one
            for place, name in written_by(func)
            for one in tensors_in(args[place] if place < len(args) else kwargs.get(name))
        ]
        made = changed or (list(tensors_in(result)) if makes(func) else [])
        here = self._here() if made else NOWHERE
        if not here.lines:
            return
        for tensor in made:
            if not changed:
                self.written.pop(tensor.untyped_storage().data_ptr(), None)
            self._add(tensor, here)
        if self.judging:
            for tensor in changed:
                self._fill(tensor, here)

    def _here(self) -> Stack:
        """Return the lines of the engine that call now. None if the sanitizer is inside."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        while frame is not None and engine_file(frame.f_code.co_filename, self.package) is None:
            frame = None if of_connector(frame.f_code.co_filename) else frame.f_back
        return NOWHERE if frame is None else stack(self.package, frame)

    def _add(self, tensor: Tensor, here: Stack) -> None:
        memory = tensor.untyped_storage()
        self._note_write(memory.data_ptr(), memory, Write(*span(tensor), here))

    def _note_write(self, address: int, owner: torch.UntypedStorage, write: Write) -> None:
        """Note a write to the memory at an address until `owner` is released."""
        held, writes = self.written.get(address, (None, []))
        if held is None or held.expired():
            held, writes = StorageWeakRef(owner), []
        writes = [one for one in writes if one != write]
        self.written[address] = held, [write, *writes][:MOST_WRITES]

    def _pointed(self, tensor: Tensor) -> list[int]:
        """Return the addresses that a tensor holds, which are read from a GPU once."""
        memory = tensor.untyped_storage()
        if tensor.dtype != torch.uint64 or tensor.numel() > MOST_POINTERS:
            return []
        held, addresses = self.pointers.get(tensor.data_ptr(), (None, []))
        if held is None or held.expired():
            held, addresses = StorageWeakRef(memory), tensor.flatten().tolist()
            self.pointers[tensor.data_ptr()] = held, addresses
        return addresses

    def launched(self, kernel: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Note a launch of a Triton kernel, which writes to the tensors that it stores to."""
        if not self.active or self.failed or not self.mine or not (here := self._here()).lines:
            return
        code = kernel.fn.__code__
        path = engine_file(code.co_filename, self.package)
        given = {**dict(zip(kernel.arg_names, arguments, strict=False)), **named}
        for name, line in stored_by(code, self.package).items():
            inside = Stack((line_of(str(path), line, code), *here.lines))
            for tensor in tensors_in(given.get(name)):
                self._add(tensor, inside)
                for address in self._pointed(tensor):
                    write = Write(0, sys.maxsize, inside)
                    self._note_write(address, tensor.untyped_storage(), write)

    def _fill(self, tensor: Tensor, here: Stack) -> None:
        """Note that a line of the engine wrote a tensor whose entries are judged."""
        memory = tensor.untyped_storage()
        if not 0 < memory.nbytes() <= LARGEST or not tensor.numel():
            return
        mine = self.known.get(memory.data_ptr())
        if mine is None or mine.memory.storage.expired():
            if len(self.known) >= MOST:
                return
            mine = self.known[memory.data_ptr()] = Filled(tensor)
        if mine.reason is None:
            mine.name = changed_at(here.lines[0]) or mine.name
            mine.note(tensor)

    def writes(self, tensor: Tensor) -> list[Write]:
        """Return the writes to a tensor that were seen, the latest first."""
        held, writes = self.written.get(tensor.untyped_storage().data_ptr(), (None, []))
        if held is None or held.expired():
            return []
        first, last = span(tensor)
        return [one for one in writes if one.first < last and first < one.last]

    # Around forward passes.

    def inputs(self, graph: object) -> Iterator[StaticInput]:
        """Yield the tensors with entries that were not filled for a replay that begins now.

        `earlier` has other values that they had before an earlier replay of the same graph.
        """
        names = Counter[str]()
        for filled, now, end in self.looked():
            before = filled.held.get(graph)
            if before is None:
                before = filled.held[graph] = deque(maxlen=EARLIER)
            before.append(filled.content)
            tail = now[end : filled.ever]
            if not 0 < end < filled.ever:
                continue
            others = (one[end : filled.ever] for one in reversed(before))
            earlier = next((one for one in others if not torch.equal(one, tail)), None)
            if earlier is not None:
                last = next((one.stack for one in self.writes(now)), NOWHERE)
                names[filled.name] += 1
                number = f" ({names[filled.name]})" if names[filled.name] > 1 else ""
                name = f"entries of {filled.name} that were not filled{number}"
                learned = partial(described, last)
                yield StaticInput(name, now, end, filled.ever, learned=learned, earlier=earlier)

    def looked(self) -> Iterator[tuple[Filled, Tensor, int]]:
        """Look at all tensors. Yield each that is followed, and how much of it was filled."""
        for address, mine in list(self.known.items()):
            if mine.memory.storage.expired():
                del self.known[address]
            elif mine.reason is None:
                try:
                    now, end = mine.look()
                except ReleasedError:
                    del self.known[address]
                    continue
                if mine.reason is None:
                    yield mine, now, end
            else:  # It does not live for one batch only.
                self.left_out.setdefault(mine.reason, False)

    def reasons(self) -> list[str]:
        """Return why tensors are not followed, each reason once."""
        new = [reason for reason, given in self.left_out.items() if not given]
        self.left_out |= dict.fromkeys(new, True)
        return new

    def done(self) -> None:
        """Note that a forward pass has ended."""
        if not self.followed:
            return
        self.followed = False
        for _ in self.looked():
            pass
        for noted in (self.written, self.pointers):
            for address in [key for key, one in noted.items() if one[0].expired()]:
                noted.pop(address)
