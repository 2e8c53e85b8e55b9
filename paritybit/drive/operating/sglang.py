"""The acts of an operator for sglang, as its own requests."""

import base64
import functools
import importlib
import inspect
import io
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch import Tensor
from torch.multiprocessing import reductions

from paritybit.drive.engine import Acts
from paritybit.drive.models import Model
from paritybit.drive.operating.adapters import config_of, name_of
from paritybit.drive.operating.weights import adapter_weights, other_weights
from paritybit.engines.loading import named
from paritybit.watch import journal


def acts_of(scheduler: Any, ranks: int = 1, stages: int = 1) -> Acts:
    """Return the acts that a scheduler has, as its own requests.

    There are `ranks` in each of the `stages`. Graphs of several ranks are captured together, and
    the weights of a stage are its own, so there are no such acts.
    """
    structures: Any = importlib.import_module("sglang.srt.managers.io_struct")
    weights = Weights(scheduler, structures, ranks)
    again = list[Any]()
    files = getattr(getattr(scheduler, "tree_cache", None), "enable_storage", False)
    if files and hasattr(structures, "AttachHiCacheStorageReqInput"):
        again = second_start(structures, scheduler.server_args)
    acts: dict[str, Any] = {
        "flush": lambda: [structures.FlushCacheReqInput(), *again],
        "pause": lambda: [structures.PauseGenerationReqInput(mode="in_place")],
        "retract": lambda: [structures.PauseGenerationReqInput(mode="retract")],
        "continue": lambda: [structures.ContinueGenerationReqInput()],
    }
    if stages == 1:
        # Files of other weights have the same keys.
        clear = [structures.ClearHiCacheReqInput()] if files else []
        acts["weights"] = lambda: [*weights.update(flush=True), *clear]
        acts["weights kept"] = lambda: weights.update(flush=False)
    # Older releases cannot empty the cache while retracted requests wait.
    if "ignore_waiting" in inspect.signature(scheduler.is_fully_idle).parameters:
        acts["flush retracted"] = lambda: [structures.FlushCacheReqInput()]
    if ranks * stages > 1:
        return acts
    runner = scheduler.tp_worker.model_runner
    if capture := next(filter(None, (getattr(runner, name, None) for name in CAPTURES)), None):
        for within in ("recapture", "recapture kept", "recapture retracted"):
            acts[within] = functools.partial(recapture, capture)
    return acts


def second_start(structures: Any, given: Any) -> list[Any]:
    """Return the requests after which an empty cache reads files as another start would do."""
    attach = structures.AttachHiCacheStorageReqInput(
        hicache_storage_backend=given.hicache_storage_backend,
        hicache_storage_backend_extra_config_json=given.hicache_storage_backend_extra_config,
        hicache_storage_prefetch_policy=given.hicache_storage_prefetch_policy,
    )
    return [structures.DetachHiCacheStorageReqInput(), attach]


CAPTURES = ("recapture_decode_cuda_graph", "init_decode_cuda_graph", "init_device_graphs")
"""Methods of the model runner that capture graphs after a weight update, by release."""


def recapture(capture: Callable[[], None]) -> Sequence[Any]:
    """Capture the graphs of the target model again. The cache is kept."""
    lines = journal.of_process()
    if lines is not None:
        lines.stand_in(
            "recapture_cuda_graph: the graphs are captured again, and the weights stay",
            "the engine's request loads a checkpoint",
        )
    capture()
    return []


class Weights:
    """Makes new weights for a scheduler. Update n always has the same."""

    def __init__(self, scheduler: Any, structures: Any, ranks: int) -> None:
        self.scheduler, self.structures, self.ranks = scheduler, structures, ranks
        self.updates = 0

    def update(self, *, flush: bool) -> Sequence[Any]:
        """Return the engine's requests that update the weights of the target model."""
        structures = self.structures
        self.updates += 1
        others = other_weights(self.scheduler.tp_worker.model_runner.model, self.updates)
        kind = structures.UpdateWeightsFromTensorReqInput
        known = inspect.signature(kind).parameters
        target = {"selector": "target"} if "selector" in known else {"disable_draft_model": True}
        update = named(kind, **target)(
            serialized_named_tensors=[packed(one) for one in [others] * self.ranks],
            load_format="direct",
            flush_cache=flush,
        )
        if not hasattr(structures, "BeginWeightUpdateReqInput"):
            return [update]
        begin = structures.BeginWeightUpdateReqInput(selector="target")
        return [begin, update, structures.EndWeightUpdateReqInput()]


def id_of(number: int, version: int) -> str:
    """Return sglang's identifier of an adapter, which is another one each time it is loaded."""
    return f"{name_of(number)} version {version}"


def loads(structures: Any, model: Model, count: int, ranks: int = 1, version: int = 0) -> list[Any]:
    """Return sglang's own requests that load the adapters for the attention of a model.

    Each rank unpacks an adapter of its own. They first unload those of the version before.
    """
    kind = structures.LoadLoRAAdapterFromTensorsReqInput
    many = "serialized_named_tensors" in inspect.signature(kind).parameters
    made = []
    for number in range(1, count + 1):
        data = [
            packed(adapter_weights(model, number, version)) for _ in range(ranks if many else 1)
        ]
        name, tensors = name_of(number), base64.b64encode(data[0]).decode()
        given = {"serialized_named_tensors": data} if many else {"serialized_tensors": tensors}
        if version:
            old = {"lora_name": name, "lora_id": id_of(number, version - 1)}
            made.append(structures.UnloadLoRAAdapterReqInput(**old))
        more = {"lora_id": id_of(number, version), "config_dict": config_of(number)}
        made.append(kind(lora_name=name, **given, **more))
    return made


def packed(named: object) -> bytes:
    """Pack tensors as a trainer in another process does."""
    buffer = io.BytesIO()
    packer: Any = ForkingPickler(buffer)
    # The engine may have changed how this process packs tensors, for CUDA only.
    reduce = getattr(reductions, "_reduce_tensor_original", reductions.reduce_tensor)
    packer.dispatch_table = {**packer.dispatch_table, Tensor: reduce}
    packer.dump(named)
    return buffer.getvalue()
