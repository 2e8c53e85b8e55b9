"""Stand-ins for sglang, in the order of their installation.

A graph is a tape of torch ops and of launches of interpreted kernels, over their original tensors.
A replay does not run Python code of the engine.
"""

import contextlib
import functools
import importlib
import inspect
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from paritybit.drive.sglang import host, late, states
from paritybit.drive.stand_ins import attention, convolutions, kernels, sparse, trees, turns
from paritybit.drive.stand_ins.collectives import gathered, reduced
from paritybit.drive.stand_ins.installing import StandIns, found, initialise
from paritybit.drive.stand_ins.packages import replaced
from paritybit.engines.graphs import (
    emulate_device,
    implement_on_cpu,
    keep_collectives,
    unpin_memory,
    whole,
)
from paritybit.engines.interpreter import quicken
from paritybit.reference.ops import Ops

ANYWHERE, ON_A_CPU, QUANTISED = StandIns(), StandIns(), StandIns()
"""Stand-ins for every device, and additional ones for a CPU, and for quantised KV on a CPU."""

SLOW = "Triton's interpreter takes a second for each step"

OPTIONAL = (
    *("IPython", "cuda", "cutlass", "gguf", "sentencepiece", "sgl_kernel", "torchvision", "vllm"),
)

MEDIA = "torchvision"
"""This package is imported first, because some releases depend on the order."""

ABSENT = ("vllm.logger",)
"""Modules of these packages that must not exist, because the engine would call them."""


@ANYWHERE.add("packages", "they are not installed and never used here")
def _stand_in_for_packages() -> str:
    missing = replaced(OPTIONAL, ABSENT)
    if MEDIA in missing:
        importlib.import_module(MEDIA)
    return ", ".join(missing)


@ANYWHERE.add(
    "the set of penalties: in the order of their names",
    "its own order, by addresses, differs from run to run, and so does rounding",
)
def _stand_in_for_order() -> str | None:
    module = found("sglang.srt.sampling.penaltylib.orchestrator")
    held = getattr(module, "BatchedPenalizerOrchestrator", None)
    if held is None:
        return ""
    begin = held.__init__

    def ordered(one: Any, *arguments: Any, penalizers: set[type], **named: Any) -> None:
        begin(one, *arguments, penalizers=sorted(penalizers, key=lambda of: of.__name__), **named)

    held.__init__ = ordered
    return None


ON_A_CPU.append(kernels.ON_NUMPY)

WEAK_REFERENCES = "sglang.srt.compilation.weak_ref_tensor"
"""The module of a compiled function that releases the memory of a graph. It raises on a CPU."""


@ON_A_CPU.add(
    "CUDA graphs, streams and events: a tape of torch ops and of launches of interpreted kernels, "
    "replayed over the same tensors",
    "a CPU has none",
)
def _stand_in_for_graphs() -> None:
    quicken()
    # Graphs of prefills keep their outputs, because a tape does not reuse memory.
    references: Any = ModuleType(WEAK_REFERENCES)
    references.weak_ref_tensors = references.weak_ref_tensor = lambda tensors: tensors
    sys.modules.setdefault(WEAK_REFERENCES, references)
    implement_on_cpu("sglang")
    held_tensor: Any = Tensor
    held_tensor.record_stream = lambda tensor, stream: None
    emulate_device(Ops())
    for module in (torch.cuda, torch.cpu):
        held: Any = module
        held.Stream, held.Event = late.LateStream, late.LateEvent
        held.current_stream = late.LateStream.current
        held.default_stream = lambda *arguments: late.DEFAULT
        held.StreamContext = held.stream = late.InStream
        held.device = lambda *arguments: contextlib.nullcontext()
        # torch registers that of each module as another function.
        held.synchronize = lambda *arguments, **named: late.synchronize()
        for name in ("set_stream", "set_device", "empty_cache"):
            setattr(held, name, lambda *arguments, **named: None)


@ON_A_CPU.add(
    "collectives of several ranks: torch's over gloo, each as one step of a graph",
    "a CPU has no other, and a graph of torch ops cannot record them",
)
def _stand_in_for_collectives() -> None:
    keep_collectives()
    shared = getattr(found("sglang.srt.utils.common"), "is_shm_available", None)
    if shared is not None:  # It is a compiled library.
        replace_everywhere(shared, lambda *_, **__: False)
    put_in("sglang.srt.distributed.parallel_state", "_is_cpu", True)
    groups = getattr(found("sglang.srt.distributed.parallel_state"), "GroupCoordinator", None)
    if groups is not None:
        groups.all_gatherv = lambda one, given, sizes=None, output=None: into(
            output, gathered(one, given, sizes=sizes)
        )
        groups.reduce_scatterv = lambda one, given, output=None, sizes=None: into(
            output, reduced(one, given, sizes=sizes)
        )
    nccl = found("sglang.srt.distributed.device_communicators.pynccl")
    if hasattr(nccl, "PyNcclCommunicator"):  # A capture switches it on.
        nccl.PyNcclCommunicator.change_state = lambda *_, **__: contextlib.nullcontext()


def into(output: Any, made: Any) -> Any:
    """Return what was made, in the tensor that is given for it, if there is one."""
    return made if output is None else output.copy_(made)


@ON_A_CPU.add(
    "the rule that ranks share contexts on some devices alone: none", "a CPU computes the same"
)
def _stand_in_for_devices() -> str | None:
    put_in("sglang.srt.distributed.parallel_state", "is_cuda", lambda: True)
    return put_in("sglang.srt.mem_cache.allocation", "_is_cuda", True)


@ON_A_CPU.add(
    "the rule that each rank has a part of the cores to itself: none", "a test machine has few"
)
def _stand_in_for_binding() -> str | None:
    return put_in("sglang.srt.distributed.bootstrap", "_bind_threads_if_cpu", lambda **_: None)


class Passing(torch.nn.Identity):
    """Stands in for a vision model, which gets the embeddings of images as their features."""

    dtype = torch.float32

    def __init__(self, *_: Any, **named: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor, grid_thw: Any = None, **_: Any) -> Tensor:
        """Return the features."""
        return input


@ON_A_CPU.add(
    "the vision model: none, so that the features of images are their embeddings",
    "its arithmetic has no part in which of them a token gets",
)
def _stand_in_for_vision() -> str | None:
    return put_in("sglang.srt.models.qwen2_vl", "Qwen2VisionTransformer", Passing)


ON_A_CPU.add("pinned memory: any memory", "a CPU can pin none")(unpin_memory)


@ON_A_CPU.add(
    "random weights: larger ones, which differ from layer to layer",
    "with the engine's own nearly all tokens are equally likely, and layers are alike",
)
def _stand_in_for_weights() -> str | None:
    return put_in("sglang.srt.model_loader.loader", "initialize_dummy_weights", initialise)


@QUANTISED.add(
    "the scales of quantised KV: random ones, which differ from layer to layer",
    "random weights have none",
)
def _stand_in_for_scales() -> str | None:
    methods: Any = found("sglang.srt.layers.quantization.kv_cache")
    layers: Any = found("sglang.srt.layers.radix_attention")

    def filled(model: Any, *_: object, **__: object) -> None:
        """Fill all weights, and the scales, which the engine then reads as from a checkpoint."""
        method = methods.BaseKVCacheMethod(None)
        for layer in model.modules():
            if isinstance(layer, layers.RadixAttention):
                method.create_weights(layer)
                layer.quant_method = method
        initialise(model)

    return put_in("sglang.srt.model_loader.loader", "initialize_dummy_weights", filled)


def put_in(module: str, name: str, value: object) -> str | None:
    """Replace an attribute of a module. Returns "" if the release lacks it."""
    held = found(module)
    if not hasattr(held, name):
        return ""
    setattr(held, name, value)
    return None


@ON_A_CPU.add(
    "compiled layers: the engine's own torch implementations (forward_native)",
    "they are compiled for CUDA",
)
def _stand_in_for_layers() -> None:
    layers: Any = importlib.import_module("sglang.srt.layers.utils.multi_platform")
    layers.MultiPlatformOp.dispatch_forward = lambda layer: layer.forward_native


ATTENTION: Mapping[str, type[Any]] = {
    "decode_attention.decode_attention_fwd": attention.DecodeAttention,
    "extend_attention.extend_attention_fwd": attention.ExtendAttention,
    "extend_attention.extend_attention_fwd_unified": attention.UnifiedAttention,
}
"""Maps each kernel of the Triton backend to its stand-in, whose fields are arguments of both."""

KERNELS = ("sglang.srt.layers.attention.triton_ops", "sglang.kernels.ops.attention")
"""The packages of these kernels, by release."""

OF_NO_ACCOUNT = frozenset(
    {
        *("attn_logits", "num_kv_splits", "max_kv_splits", "max_len_extend"),
        *("extend_seq_lens_cpu", "page_size", "has_mla", "use_pdl", "enable_lean", "lean_Mp"),
        *("lean_Lp", "lean_Op", "lean_locks", "uneven_batch", "identity_kv_indices"),
    }
)
"""Arguments that affect how a kernel computes, and not its result."""


@ON_A_CPU.add(
    "the arithmetic of the Triton backend's attention: torch over the lists it is given", SLOW
)
def _stand_in_for_attention() -> None:
    for (place, arithmetic), package in product(ATTENTION.items(), KERNELS):
        file, name = place.split(".")
        module = found(f"{package}.{file}")
        if hasattr(module, name):
            setattr(module, name, whole(adapted(getattr(module, name), arithmetic)))


def adapted(kernel: Callable[..., None], arithmetic: type[Any]) -> Callable[..., None]:
    """Return a function with the signature of a kernel that computes with `arithmetic`.

    It raises NotImplementedError for an argument that `arithmetic` lacks, except for a default.
    """
    signature = inspect.signature(kernel)
    known = {one.name for one in fields(arithmetic)}

    def called(*arguments: Any, **named: Any) -> None:
        given = signature.bind(*arguments, **named).arguments
        unknown = [
            name
            for name, value in given.items()
            if name not in known | OF_NO_ACCOUNT and value is not signature.parameters[name].default
        ]
        if unknown:
            raise NotImplementedError(f"attention with {', '.join(unknown)} has no stand-in")
        arithmetic(**{name: value for name, value in given.items() if name in known}).run()

    return called


@ON_A_CPU.add(
    "the arithmetic of FlashAttention: torch over the tables it is given", "it is made for GPUs"
)
def _stand_in_for_flash_attention() -> str | None:
    backends = "sglang.srt.layers.attention"
    put_in(f"{backends}.attention_registry", "get_device_capability", lambda *_: (9, 0))
    plan = torch.zeros(1, dtype=torch.int32)  # How a kernel would divide its work.
    put_in("sgl_kernel.flash_attn", "get_scheduler_metadata", lambda **given: plan)
    return put_in(f"{backends}.flashattention_backend", "flash_attn_with_kvcache", flash)


def flash(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    cache_seqlens: Tensor,
    out: Tensor | None = None,
    **given: Any,
) -> Tensor:
    """Attend as FlashAttention with paged KV."""
    out = q.new_empty(*q.shape[:2], v_cache.shape[-1]) if out is None else out
    weights = q.new_empty(q.shape[1], len(q), dtype=torch.float32)
    given |= {"block_table": page_table, "seqused_k": cache_seqlens}
    attention.attend_in_parts(q, k_cache, v_cache, out, weights, **given)
    return out


SPARSE = "sglang.srt.layers.attention.dsa_backend"
INDEXER = "sglang.srt.layers.attention.dsa.dsa_indexer"


@ON_A_CPU.add("attention to chosen keys: torch over the slots it is given", "it is compiled code")
def _stand_in_for_sparse_attention() -> str | None:
    put_in(SPARSE, "flash_attn_with_kvcache", whole(sparse.attended, returns=True))
    kernels: Any = ModuleType("sglang.kernels.ops.attention.flash_mla_interface")
    kernels.flash_mla_sparse_fwd = sparse.attended_sparsely
    sys.modules.setdefault(kernels.__name__, kernels)
    return None if found(SPARSE) else ""


@ON_A_CPU.add(
    "an indexer: that of CUDA, by the engine's own torch implementations",
    "the rest of it is compiled code",
)
def _stand_in_for_indexer() -> str | None:
    module: Any = found(INDEXER)
    if module is None:
        return ""
    indexer = module.Indexer
    module._is_cuda = True
    module.can_use_dsa_fused_store = lambda *_: False
    module.rotate_activation = sparse.rotated
    module.resolve_num_sms = lambda: 1024
    module.resolve_paged_mqa_logits_metadata_fn = lambda: lambda *_: None
    held: Any = torch
    held.layer_norm = whole(torch.layer_norm, returns=True)  # The operator returns more.
    choices: Any = found(f"{INDEXER.rpartition('.')[0]}.dsa_topk_backend")
    choices._topk_unfused = whole(choices._topk_unfused, returns=True)
    indexer.forward_native = indexer.forward_cuda
    indexer._weights_proj_bf16_in_fp32_out = lambda one, x: linear(
        x.float(), one.weights_proj.weight.float()
    )
    rope = module.get_rope_wrapper

    def rotating(*given: Any, **named: Any) -> Any:
        made = rope(*given, **named)
        rotate = made.forward
        made.forward = lambda positions, *held: [
            one.view_as(old)
            for one, old in zip(rotate(positions, *map(by_head, held)), held, strict=True)
        ]
        return made

    module.get_rope_wrapper = rotating
    ragged = indexer._get_topk_ragged
    indexer._get_topk_ragged = lambda one, streams, batch, layer, q, *rest: ragged(
        one, streams, batch, layer, q.as_subclass(sparse.Indexed), *rest
    )
    return None


def by_head(part: Tensor) -> Tensor:
    """Return queries or keys as [T, heads, width]."""
    return part.view(len(part), -1, part.shape[-1])


MAMBA = "sglang.srt.layers.attention.mamba"
CONVOLUTIONS = (
    f"{MAMBA}.causal_conv1d",
    f"{MAMBA}.mamba",
    "sglang.srt.layers.attention.linear.gdn_backend",
)
"""Modules that convolve. The second one has no such function on a CPU."""


@ON_A_CPU.add("short convolutions: torch over the states they are given", SLOW)
def _stand_in_for_convolutions() -> str | None:
    modules: Any = [module for name in CONVOLUTIONS if (module := found(name)) is not None]
    for module, kind in product(modules, ("", "_triton")):
        setattr(module, f"causal_conv1d_fn{kind}", whole(convolutions.convolved, returns=True))
        update = whole(convolutions.convolved_once, returns=True)
        setattr(module, f"causal_conv1d_update{kind}", update)
    return None if modules else ""


@ON_A_CPU.add("the rule that a CPU keeps no states inside of prompts: none", "CUDA has none")
def _track_as_on_cuda() -> str | None:
    rule = "_platform_supports_mamba_cache_extra_buffer"
    return put_in("sglang.srt.arg_groups.mamba_hook", rule, lambda: True)


@ON_A_CPU.add("states in new memory: ones", "on a CPU they are zero until slots are used again")
def _spoil_states() -> str | None:
    pools = found("sglang.srt.mem_cache.memory_pool")
    if (kind := getattr(pools, "MambaPool", None)) is None:
        return ""
    made = kind.__init__

    def making(pool: Any, *given: Any, **named: Any) -> None:
        made(pool, *given, **named)
        for part in (*pool.mamba_cache.conv, pool.mamba_cache.temporal):
            part[:, 1:] = 1  # Padding has slot 0.

    kind.__init__ = functools.wraps(made)(making)
    return None


DELTAS = "sglang.srt.layers.attention.linear.kernels.gdn_triton"
NORM = "sglang.kernels.ops.attention.fla.fused_norm_gate"


@ON_A_CPU.add(
    "the recurrence of Mamba2 and of gated delta nets: torch over the states it is given", SLOW
)
def _stand_in_for_recurrences() -> str | None:
    put_in(f"{MAMBA}.mamba", "mamba_chunk_scan_combined", whole(states.scanned_prompts))
    put_in(f"{MAMBA}.mamba", "selective_state_update", whole(states.scan_step))
    put_in(NORM, "rms_norm_gated", states.gated_norm)
    put_in("sglang.kernels.ops.attention.fla.layernorm_gated", "_get_sm_count", lambda device: 1)
    put_in(DELTAS, "fused_recurrent_gated_delta_rule_packed_decode", whole(states.delta_packed))
    return put_in(DELTAS, "chunk_gated_delta_rule", whole(states.delta_prompts))


@ON_A_CPU.add("the device of LoRA's kernels: the CPU", "the engine expects CUDA")
def _stand_in_for_lora() -> None:
    """Let LoRA's backends create tensors on the CPU, look up its kernels, and read host tensors."""
    put_in("sglang.srt.utils", "get_device_name", lambda *device: "cpu")
    for name in ("triton", "chunked"):
        put_in(f"sglang.srt.lora.backend.{name}_backend", "torch", TorchOnACpu("torch"))
    backend, name = "sglang.srt.lora.backend.chunked_backend", "chunked_sgmv_lora_expand_forward"
    if (expand := getattr(found(backend), name, None)) is not None:
        put_in(backend, name, reading_on_host(expand))


TOLIST = Tensor.tolist


def reading_on_host(expand: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Let a function read its offsets on the host. A recording tape refuses any `tolist`."""

    def expanded(slice_offsets_cpu: Tensor | None = None, **named: Any) -> Tensor:
        if slice_offsets_cpu is not None:
            offsets = SimpleNamespace(tolist=lambda: TOLIST(slice_offsets_cpu))
            named["slice_offsets_cpu"] = offsets
        return expand(**named)

    return expanded


class TorchOnACpu(ModuleType):
    """The module torch with the CPU as device `cuda`, which older releases use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, kind: Any, *index: int) -> torch.device:
        """Return a device as torch does, but the CPU in place of `cuda`."""
        return torch.device("cpu") if str(kind) == "cuda" else torch.device(kind, *index)


@ON_A_CPU.add(
    "the kernel that bounds logits: torch", "Triton's interpreter has no tanh of libdevice"
)
def _stand_in_for_softcap() -> str | None:

    def softcap(logits: Tensor, cap: float) -> Tensor:
        return logits.copy_((logits / cap).tanh() * cap)

    return put_in("sglang.srt.layers.logits_processor", "fused_softcap", softcap)


RUNNERS = ("model_executor.model_runner", "model_executor.model_runner_components.cuda_graph_setup")
CAPTURING = ("init_device_graphs", "init_decode_cuda_graph", "capture_decode_graph")
"""The modules that choose a graph runner by the kind of device, by release, and the functions of
these modules, or of their model runners, that do so."""


@ON_A_CPU.add(
    "the choice of graph runner for decoding: the one of CUDA", "the engine has another for a CPU"
)
def _use_runner_of_cuda() -> None:
    """Otherwise, an engine builds its graph runner for CPUs, and only if compilation is enabled."""
    platform: Any = getattr(found("sglang.srt.platforms.interface"), "SRTPlatform", None)
    if hasattr(platform, "capabilities"):  # The stand-ins provide both.
        abilities = type(platform.capabilities)
        platform.capabilities = abilities(graph_capture=True, supports_triton=True)
    information: Any = importlib.import_module("sglang.srt.model_executor.forward_batch_info")
    mode = information.ForwardMode
    mode.is_cpu_graph = mode.is_cuda_graph  # Otherwise, a CPU replays only decoding.
    modules: Any = [module for name in RUNNERS if (module := found(f"sglang.srt.{name}"))]
    for module in modules:
        if hasattr(module, "CPUGraphRunner"):
            module.CPUGraphRunner = _runner_of_cuda(module)
            holders = (*modules, getattr(module, "ModelRunner", None))
            for holder, name in product(holders, CAPTURING):
                if hasattr(holder, name):
                    setattr(holder, name, _compiling(module, getattr(holder, name)))


def _runner_of_cuda(module: Any) -> Callable[[Any], Any]:
    def built(model_runner: Any) -> Any:
        if hasattr(model_runner, "_decode_cuda_graph_runner_cls"):
            return model_runner._decode_cuda_graph_runner_cls()(model_runner)
        newer = found("sglang.srt.model_executor.runner.decode_cuda_graph_runner")
        if newer is not None:
            return newer.DecodeCudaGraphRunner(model_runner)
        model_runner.server_args.enable_torch_compile = False
        return module.CudaGraphRunner(model_runner)

    return built


def _compiling(module: Any, capture: Callable[..., Any]) -> Callable[..., Any]:
    """Return a capture that runs as if compilation were enabled, unless graphs are disabled."""

    def captured(*runners: Any, **named: Any) -> Any:
        arguments = next(iter((*runners, *named.values()))).server_args
        if hasattr(module, "check_cuda_graph_backend"):
            off = module.check_cuda_graph_backend(module.Phase.DECODE, module.Backend.DISABLED)
        else:
            off = arguments.disable_cuda_graph
        if off:
            return capture(*runners, **named)
        flags = getattr(module, "get_flags", None)
        if flags is None:
            arguments.enable_torch_compile = True
        else:
            flag = SimpleNamespace(capture=SimpleNamespace(enable_torch_compile=True))
            module.get_flags = lambda: flag
        try:
            return capture(*runners, **named)
        finally:
            if flags is None:
                arguments.enable_torch_compile = False
            else:
                module.get_flags = flags

    return captured


WORKERS = ("eagle_worker", "eagle_worker_v2")
CAPTURING_DRAFTS = ("init_cuda_graphs", "_capture_cuda_graphs")
"""The modules of draft workers, by release, and their methods that choose a graph runner by the
kind of device."""


@ON_A_CPU.add(
    "the choice of graph runners for drafting: those of CUDA", "the engine has none for a CPU"
)
def _use_runners_of_cuda() -> None:
    for module in filter(None, (found(f"sglang.srt.speculative.{name}") for name in WORKERS)):
        for held in list(vars(module).values()):
            if isinstance(held, type) and held.__module__ == module.__name__:
                for method in set(CAPTURING_DRAFTS) & set(vars(held)):
                    setattr(held, method, _as_on_cuda(getattr(held, method), module))


class AsCuda(str):
    """The name of a device that is equal to "cuda" for the engine, but not for torch."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == "cuda" if type(other) is str else self is other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("cuda")


def _as_on_cuda(capture: Any, module: Any) -> Any:
    def captured(worker: Any, *arguments: Any, **named: Any) -> Any:
        target = getattr(worker, "target_worker", None)
        if target is None or target.device == "cuda":
            return capture(worker, *arguments, **named)
        # The branch for MUSA does the same as that for CUDA, without compiled attention.
        flag = "_is_musa" if hasattr(module, "_is_musa") else "_is_cuda"
        device, held = target.device, getattr(module, flag, False)
        target.device = AsCuda(device)
        setattr(module, flag, True)
        try:
            return capture(worker, *arguments, **named)
        finally:
            target.device = device
            setattr(module, flag, held)

    return captured


@ON_A_CPU.add(
    "the rule that batches with drafts do not overlap: none", "the engine has it for a CPU alone"
)
def _overlap_as_on_cuda() -> str | None:
    rules = "sglang.srt.arg_groups.speculative_hook"
    return put_in(rules, "_disable_overlap_schedule_for_cpu", lambda server_args: None)


@ON_A_CPU.add(
    "the experts' torch implementation: one step of a graph, with those of this rank",
    "it reads how many tokens each expert has on the host, and has no expert parallelism",
)
def _stand_in_for_experts() -> str | None:
    place, name = "sglang.srt.layers.moe.fused_moe_native", "moe_forward_native"
    experts = getattr(found(place), name, None)
    put_in("sglang.srt.layers.moe.token_dispatcher.standard", "get_device", lambda: "cpu")
    return "" if experts is None else put_in(place, name, whole(of_rank(experts), returns=True))


HELD = ("w13_weight", "w2_weight", "w13_weight_bias", "w2_weight_bias")
"""The parameters of experts."""


def of_rank(experts: Callable[..., Any]) -> Callable[..., Any]:
    """Return the implementation of experts for those of this rank, by their numbers in it.

    A token has the number -1 where its expert is in another rank, or if the token is padding.
    """

    def computed(layer: Any, x: Any, chosen: Any, *rest: Any) -> Any:
        if layer.moe_ep_size == 1:
            return experts(layer, x, chosen, *rest)
        mine = SimpleNamespace(
            num_experts=layer.num_local_experts,
            **{name: getattr(layer, name, None) for name in HELD},
        )
        weights = chosen.topk_weights * (chosen.topk_ids >= 0)
        # It computes each expert once for a token, so it gets one of the token's at a time.
        parts = zip(weights.split(1, 1), chosen.topk_ids.clamp(min=0).split(1, 1), strict=True)
        return sum(
            experts(mine, x, chosen._replace(topk_weights=weight, topk_ids=ids), *rest)
            for weight, ids in parts
        )

    return computed


TREES = ("sglang.srt.speculative.eagle_utils", "sglang.kernels.ops.speculative.spec_tree")
"""Modules that build and verify trees with compiled kernels, by release."""

VERIFIER, BUILDER = "verify_tree_greedy_func", "sgl_build_tree_kernel_efficient"

KERNELS_OF_CUDA = (
    "sglang.srt.speculative.eagle_info_v2",
    "sglang.srt.speculative.triton_ops.cache_locs",
    "sglang.kernels.ops.speculative.cache_locs",
)
"""Modules that launch Triton kernels only on CUDA. Each has its own flag for this."""


@ON_A_CPU.add(
    "the kernels that build and verify trees of drafts: Python", "they are compiled for CUDA"
)
def _stand_in_for_trees() -> None:
    for module in filter(None, map(found, TREES)):
        if hasattr(module, VERIFIER):
            replace_everywhere(getattr(module, VERIFIER), trees.verify_tree_greedy)
        setattr(module, BUILDER, trees.build_tree)
    for place in KERNELS_OF_CUDA:
        if hasattr(found(place), "_is_cuda"):
            put_in(place, "_is_cuda", True)


def replace_everywhere(original: object, stand_in: object) -> None:
    """Replace an object of the engine in all modules that refer to it."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "sglang":
            for key, held in list(getattr(module, "__dict__", {}).items()):
                if held is original:
                    setattr(module, key, stand_in)


@ON_A_CPU.add(
    "copies between a KV pool and the host: torch, some polls late", "they are compiled for CUDA"
)
def _stand_in_for_host_copies() -> None:
    held: Any = torch.cuda
    held.cudart = lambda: SimpleNamespace(
        cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: 0
    )
    for name in ("memory_pool_host", "pool_host.mha", "pool_host.mla"):  # By release.
        if (module := found(f"sglang.srt.mem_cache.{name}")) is not None:
            for copy in host.COPIES:
                setattr(module, copy.__name__, late.late(copy))
            if (kind := getattr(module, "MHATokenToKVPoolHost", None)) is not None:
                # 0.5.23 runs out of memory while most of the host is copied to files.
                kind.set_from_flat_data_page = late.paused(kind.set_from_flat_data_page)
    for name in ("memory_pool_host", "pool_host.base"):
        if (module := found(f"sglang.srt.mem_cache.{name}")) is not None:
            module.HostKVCache.clear = host.in_any_order(module.HostKVCache.clear)
            module.HostKVCache.free = host.reused_at_once(module.HostKVCache.free)
    if (module := found("sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller")) is not None:
        kind, name = module.HybridCacheController, "_resolve_device_transfers"
        if hasattr(kind, name):
            setattr(kind, name, host.sometimes_without(getattr(kind, name)))


STORING = (
    "managers.cache_controller",
    "mem_cache.hybrid_cache.hybrid_cache_controller",
    "mem_cache.hiradix_cache",
    "mem_cache.unified_radix_cache",
    "utils.poll_timer",
)
"""Modules with the threads, the queues and the time limits of a storage."""


@ON_A_CPU.add(
    "the threads and the clock of a storage behind the host: one after the other, by polls",
    "the same seed must give the same order",
)
def _stand_in_for_threads() -> None:
    for module in filter(None, (found(f"sglang.srt.{name}") for name in STORING)):
        held: Any = module
        if hasattr(held, "threading"):
            held.threading = turns.Altered(threading, Thread=turns.Turns)
        if hasattr(held, "Queue"):
            held.Queue = turns.TurnQueue
        if hasattr(held, "time"):
            held.time = turns.Altered(
                time, monotonic=late.Clock.monotonic, perf_counter=late.Clock.monotonic
            )
    kind: Any = getattr(found(f"sglang.srt.{STORING[0]}"), "HiCacheController", None)
    if hasattr(kind, "_page_backup_or_log"):  # Others may see a note of its end first.
        kind._page_backup_or_log = late.paused(kind._page_backup_or_log, late.BEGUN)
