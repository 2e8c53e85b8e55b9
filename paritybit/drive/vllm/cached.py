"""LMCache in the engine's process, without a GPU: its copies, and when they are made.

The package is not part of a release. It must be in the engine's folder, or on `PYTHONPATH`.
"""

import ctypes
import importlib
import importlib.util
from collections.abc import Callable, Coroutine
from typing import Any

import torch
from torch import Tensor

from paritybit.drive.configs import LackingError
from paritybit.drive.stand_ins.packages import replaced
from paritybit.drive.vllm.host import CHANCE, LATEST

PACKAGE = "lmcache"

UNUSED = (
    *("aiofile", "aiofiles", "awscrt", "blake3", "cryptography", "cupy", "fastapi", "grpc"),
    *("httpx", "nvtx", "opentelemetry", "prometheus_client", "redis", "sortedcontainers"),
    *("uvicorn", "xxhash"),
)
"""Packages that it imports for other storage."""

CONNECTORS = f"{PACKAGE}.v1.gpu_connector"
DISK = f"{PACKAGE}.v1.storage_backend.local_disk_backend"

HEADS_FIRST = "NL_X_NB_NH_BS_CS", "NL_X_NB_NH_BS_TWO_HS"
TOKENS_FIRST = "NL_X_NB_BS_NH_CS", "NL_X_NB_BS_NH_TWO_HS"
"""Its names of layouts with K and V of a head side by side, by what comes first in a block."""


def transfer(
    held: Tensor,
    pointers: Tensor,
    slots: Tensor,
    device: object,
    size: int,
    direction: Any,
    layout: Any,
    block_size: int = 0,
    head_size: int = 0,
    skip_prefix_n_tokens: int = 0,
    block_stride_elems: int = 0,
) -> None:
    """Copy KV between slots and memory on the host, as its kernel computes the addresses.

    `held` has shape [1 or 2, layers, tokens, values]. For these layouts, the kernel uses only
    `held[0]`, and takes `head_size` for the size of a head's K.
    """
    if layout.name not in HEADS_FIRST + TOKENS_FIRST:
        raise NotImplementedError(f"the layout {layout.name}")
    values, both = held.shape[3], 2 * head_size
    slots = slots[skip_prefix_n_tokens:].long()
    place = torch.arange(values)
    block, offset = slots[:, None] // block_size, slots[:, None] % block_size
    if layout.name in HEADS_FIRST:
        step = block_stride_elems or values // both * block_size * both
        within = place // both * block_size * both + offset * both + place % both
    else:
        step = block_stride_elems or block_size * values
        within = offset * values + place
    at, known = block * step + within, slots >= 0
    if not known.any():
        return
    for layer, pointer in enumerate(pointers.tolist()):
        count = int(at[known].max()) + 1
        memory = (ctypes.c_byte * (count * held.element_size())).from_address(pointer)
        cache = torch.frombuffer(memory, dtype=held.dtype)
        mine = held[0, layer, skip_prefix_n_tokens:][known]
        if direction.name == "H2D":
            cache[at[known]] = mine
        else:
            held[0, layer, skip_prefix_n_tokens:][known] = cache[at[known]]


class Writes:
    """The writes of chunks to files, each made some polls late."""

    def __init__(self) -> None:
        self.waiting, self.polls = list[Coroutine[Any, Any, Any]](), 0

    def submit(self, work: Coroutine[Any, Any, Any], loop: object) -> None:
        """Accept a write."""
        self.waiting.append(work)

    def poll(self) -> None:
        """Make the next write if it is time."""
        self.polls -= 1
        if self.waiting and self.polls <= 0:
            work, self.polls = self.waiting.pop(0), CHANCE.randint(0, LATEST)
            try:
                work.send(None)
            except StopIteration:
                return
            raise RuntimeError("a write waits for something")


async def perform(one: Any, kind: str, task: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Do the work of a file now."""
    return task(*given, **named)


class Direct:
    """Carries the questions of a scheduler to the worker in the same process, without threads."""

    world_size = 1
    engine: Any = None

    def __init__(self, *_: object) -> None:
        pass

    def send_and_recv_all(self, message: list[Any]) -> list[bytes]:
        """Return the answer of the worker: how many tokens it has."""
        hashes, offsets, name, _ = message
        asked = {"hashes": hashes, "offsets": offsets, "lookup_id": name, "pin": True}
        return [Direct.engine.lookup(**asked).to_bytes(4, "big")]

    def close(self) -> None:
        """Do nothing."""


def answers(engine: Any, *_: object) -> None:
    """Let a worker answer the questions."""
    Direct.engine = engine


def cache_here() -> None:
    """Let LMCache run without a GPU and threads. Raises LackingError if it is not there."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise LackingError(f"the package {PACKAGE} is not installed")
    replaced(UNUSED)
    made: Any = importlib.import_module(CONNECTORS)
    connectors: Any = importlib.import_module(f"{CONNECTORS}.gpu_connectors")
    made.torch_device_type, made.need_gpu_interm_buffer = "cuda", lambda config: False
    kind = connectors.VLLMPagedMemGPUConnectorV2
    code = kind._initialize_pointers.__code__  # It requires a GPU.
    known = tuple("cpu" if one == "cuda" else one for one in code.co_consts)
    kind._initialize_pointers.__code__ = code.replace(co_consts=known)
    operators = getattr(connectors, "device_ops", None) or connectors.lmc_ops
    operators.multi_layer_kv_transfer = transfer
    disk: Any = importlib.import_module(DISK)
    writes = Writes()
    disk.asyncio = type("asyncio", (), {"run_coroutine_threadsafe": writes.submit})
    disk.LocalDiskWorker.submit_task = perform
    adapter: Any = importlib.import_module(f"{PACKAGE}.integration.vllm.vllm_v1_adapter")
    finished = adapter.LMCacheConnectorV1Impl.get_finished

    def polled(one: Any, names: Any) -> Any:
        writes.poll()
        return finished(one, names)

    adapter.LMCacheConnectorV1Impl.get_finished = polled
    lookups: Any = importlib.import_module(f"{PACKAGE}.v1.lookup_client.factory")
    factory = lookups.LookupClientFactory
    factory._create_zmq_client_transport = staticmethod(Direct)
    factory.create_lookup_server = staticmethod(answers)
