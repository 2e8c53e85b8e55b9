"""Installs stand-ins in an engine's process, and reports them."""

import functools
import importlib
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paritybit.drive.stand_ins.races import look_for_races
from paritybit.watch import journal


@dataclass(frozen=True)
class StandIn:
    """What is replaced, why, and the function that replaces it.

    `install` returns details if they vary, or an empty text if it replaced nothing.
    """

    what: str
    why: str
    install: Callable[[], str | None]


class StandIns(list[StandIn]):
    """Stand-ins in the order of their installation."""

    def add(self, what: str, why: str) -> Callable[[Callable[[], str | None]], Any]:
        """Return a decorator that adds a function which installs a stand-in."""

        def added(install: Callable[[], str | None]) -> Callable[[], str | None]:
            self.append(StandIn(what, why, install))
            return install

        return added


LEFT = 33
"""What new memory holds: a slot, a block or a length that may be in use."""

INTEGERS = torch.int32, torch.int64


def spoil_new_memory() -> None:
    """Fill the integers of memory that is only allocated."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        setattr(owner, name, spoiled(getattr(owner, name)))


def spoiled(made: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that fills the integers of the tensors that it makes."""

    @functools.wraps(made)
    def making(*args: Any, **kwargs: Any) -> Any:
        found = made(*args, **kwargs)
        if type(found) is Tensor and found.dtype in INTEGERS and found.device.type == "cpu":
            found.fill_(LEFT)
        return found

    return making


SPOILED = StandIn(
    f"integers in new memory: {LEFT}", "on a CPU they are often zero by luck", spoil_new_memory
)


def hide_cuda() -> str | None:
    """Let torch answer as a build without CUDA. Returns "" if it is one.

    The answers include devices, streams, memory, and where to find NCCL.
    """
    held: Any = torch
    if not hasattr(held._C, "_cuda_getDeviceCount"):
        return ""
    del held._C._cuda_getDeviceCount  # Without it, torch initialises no CUDA.
    held.version.cuda = None
    held._C._get_accelerator = lambda *_: torch.device("cpu")
    held._C._accelerator_getAccelerator = lambda *_: None
    held.get_device_module.cache_clear()
    return None


WITHOUT_CUDA = StandIn(
    "torch's CUDA: none, as in its build for a CPU",
    "an engine would initialise it, which fails in a fork and without a GPU",
    hide_cuda,
)


DECAYS = {"A": (-0.1, -0.02), "A_log": (-4.0, -2.0)}
"""Parameters by which a state forgets, and values with which it remembers many tokens."""


def initialise(model: Any, *_: object, **__: object) -> None:
    """Fill each parameter of a model by its name and shape, so that activations are near 1.

    Each rank has another part of the vocabulary, so its values differ: tokens with equal embeddings
    would have equal KV in the first layer.
    """
    parts = {
        f"{name}.weight": module.shard_indices.org_vocab_start_index
        for name, module in model.named_modules()
        if hasattr(module, "shard_indices")
    }
    for name, parameter in model.state_dict().items():
        if not torch.is_floating_point(parameter):
            continue
        generator = torch.Generator(device=parameter.device)
        generator.manual_seed(zlib.crc32(name.encode()) + parts.get(name, 0))
        least, most = 0.5, 1.5
        if parameter.dim() > 1:
            most = math.sqrt(3 / parameter.shape[-1])
            least = -most
        elif name.endswith("bias"):
            least, most = -0.1, 0.1
        elif (kind := name.rpartition(".")[2]) in DECAYS:
            least, most = DECAYS[kind]
        parameter.uniform_(least, most, generator=generator)


def install(device: str, anywhere: Sequence[StandIn], on_a_cpu: Sequence[StandIn]) -> None:
    """Install and report the stand-ins for a device, before the engine is imported."""
    if device == "cpu":
        torch.set_num_threads(1)  # Tiny tensors: more threads only wait for one another.
        look_for_races()
        put((WITHOUT_CUDA, *anywhere, SPOILED, *on_a_cpu))
    else:
        put(anywhere)


def put(stand_ins: Sequence[StandIn]) -> None:
    """Install stand-ins in order, and report each."""
    mine = journal.of_process()
    for one in stand_ins:
        detail = one.install()
        if mine is not None and detail != "":
            mine.stand_in(f"{one.what}: {detail}" if detail else one.what, one.why)


def found(name: str) -> Any:
    """Return a module, or None if the release lacks it, or it needs other hardware."""
    try:
        return importlib.import_module(name)
    except (ImportError, NameError):
        return None
