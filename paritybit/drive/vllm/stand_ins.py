"""Replacements for compiled code, missing packages and CUDA graphs in vLLM's process."""

import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial, wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from paritybit.drive.models import DEEPSEEK_V32
from paritybit.drive.stand_ins import sparse
from paritybit.drive.stand_ins.collectives import gathered, reduced
from paritybit.drive.stand_ins.convolutions import convolved, convolved_once
from paritybit.drive.stand_ins.installing import StandIn, StandIns, initialise, install, put
from paritybit.drive.stand_ins.kernels import ON_NUMPY
from paritybit.drive.stand_ins.language import LANGUAGE, Value
from paritybit.drive.stand_ins.packages import UnavailableFinder, replaced
from paritybit.drive.vllm import apart, lora, states
from paritybit.drive.vllm.attention import (
    attend,
    attend_compressed,
    corrected,
    flash,
    store,
    store_compressed,
)
from paritybit.drive.vllm.cached import cache_here
from paritybit.drive.vllm.host import CHANCE, fail_loads, keep_on_host, move, reuse_soon
from paritybit.drive.vllm.ranks import compute_experts, on_host, route
from paritybit.drive.vllm.settings import VARIABLES, VllmServed
from paritybit.drive.vllm.shortage import preempt_often
from paritybit.drive.vllm.sleep import MEMORY
from paritybit.engines.graphs import emulate_device, keep_collectives, whole
from paritybit.engines.interpreter import quicken
from paritybit.reference.ops import Ops

ANYWHERE, BEFORE, AFTER, INDEXING = StandIns(), StandIns(), StandIns(), StandIns()
"""Stand-ins for every device, and for a CPU, both before the engine is imported; and those for a
CPU after the engine's configuration is complete, the last ones for an indexer."""

SLOW = "Triton's interpreter takes a second for each step"

COMPILED = "it is compiled"

OPTIONAL = (
    *("cpuinfo", "gguf", "diskcache", "llguidance", "mistral_common", "openai_harmony", "uvloop"),
    "torchvision",
)

HIDDEN = ("vllm.parser", "vllm.reasoning", "vllm.tool_parsers")
"""Modules of the engine that parse the output of models. They import further packages."""

OPERATORS: Any = {
    "init_cpu_memory_env(int[] nodes) -> ()": lambda nodes: None,
    "weak_ref_tensor(Tensor(a) tensor) -> Tensor(a)": lambda tensor: tensor.view_as(tensor),
    "gelu_quick(Tensor(a!) out, Tensor input) -> ()": lambda out, given: out.copy_(
        given * torch.sigmoid(1.702 * given)
    ),
    "greedy_argmax(Tensor logits) -> Tensor": lambda logits: logits.argmax(-1),
}
"""The compiled operators that the engine calls on a CPU, by their schemas."""

SERIES = 2.0**-8
"""Below it, log(1 + x) has fewer correct bits than a series of three terms."""

ATTENTION = "vllm.v1.attention.backends.triton_attn"

COMPRESSED = "vllm.v1.attention.backends.mla.triton_mla"

SPARSE, VARLEN, INDEXER, INDEXED = (
    "vllm.v1.attention.backends.mla.flashattn_mla_sparse",
    "vllm.vllm_flash_attn.flash_attn_interface",
    "vllm.model_executor.layers.sparse_attn_indexer",
    "vllm.model_executor.models.deepseek_v2",
)

FLASH, FLASH_PARTS, FLASH_RANKS = (
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.attention.backends.fa_utils",
    "vllm.v1.attention.ops.dcp",
)

CHOICE = 13
"""The place of the keys that it chooses among its arguments."""

RANKS, COMMUNICATOR = (
    "vllm.distributed.parallel_state",
    "vllm.distributed.device_communicators.cpu_communicator",
)

MODEL = "vllm.model_executor.models.gemma4"

EXPERTS = "vllm.model_executor.layers.fused_moe.experts.cpu_moe"

CONVOLUTION, SCAN, DELTAS = RECURRENT = (
    "vllm.model_executor.layers.mamba.short_conv",
    "vllm.model_executor.layers.mamba.mamba_mixer2",
    "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn",
)
"""The modules of recurrent layers."""

COPIES = "vllm.v1.worker.mamba_utils"

LORA = "vllm.lora.punica_wrapper.punica_gpu"

SAMPLER = "vllm.v1.sample.ops.topk_topp_sampler"

DRAW = 4
"""How far the offset of a generator on a GPU moves if it draws for a token."""

LIBRARY = torch.library.Library("_C", "FRAGMENT")

PLATFORM = """\
[vllm.platform_plugins]
paritybit = paritybit.drive.vllm.stand_ins:platform
"""


@ANYWHERE.add("packages", "they are not installed and never used here")
def _stand_in_for_packages() -> str:
    missing = replaced(OPTIONAL)
    sys.meta_path.insert(0, UnavailableFinder(HIDDEN))
    return ", ".join((*missing, *HIDDEN))


@ANYWHERE.add("numba", "it is not installed")
def _stand_in_for_numba() -> str:
    if importlib.util.find_spec("numba") is not None:
        return ""
    module: Any = ModuleType("numba")
    module.__spec__ = ModuleSpec("numba", None)
    module.jit = module.njit = lambda **options: lambda function: function
    module.prange = range
    module.get_num_threads = lambda: 1
    module.set_num_threads = lambda number: None
    sys.modules["numba"] = module
    return "functions run as they are written"


BEFORE.append(ON_NUMPY)


@BEFORE.add(
    "CUDA graphs, streams and events: a tape of torch ops and of launches of interpreted kernels, "
    "replayed over the same tensors",
    "a CPU has none",
)
def _stand_in_for_graphs() -> None:
    quicken()
    emulate_device(Ops())
    accelerator: Any = torch.accelerator
    accelerator.get_memory_info = lambda *arguments: (0, 0)


@BEFORE.add(
    "log1p of libdevice: the logarithm, and a series for small numbers",
    "Triton's interpreter has none",
)
def _stand_in_for_libdevice() -> None:
    language: Any = importlib.import_module("triton.language")
    libdevice: Any = importlib.import_module("triton.language.extra.libdevice")

    def log1p(value: Any) -> Any:
        series = value * (1 - value * (0.5 - value / 3))
        one = LANGUAGE if isinstance(value, Value) else language
        return one.where(one.abs(value) < SERIES, series, one.log(1 + value))

    libdevice.log1p = log1p


@BEFORE.add("compiled operators: torch", "they are compiled")
def _stand_in_for_operators() -> None:
    for schema, function in OPERATORS.items():
        LIBRARY.define(schema)
        LIBRARY.impl(schema.split("(")[0], function, "CompositeExplicitAutograd")


@BEFORE.add(
    "the platform: a CPU with the runner, the graph wrapper and the Triton attention backend "
    "of CUDA",
    "the engine has others for a CPU, without graphs",
)
def _declare_platform() -> None:
    """Declare the entry point by which the engine finds the platform.

    A source tree may lack the metadata of a package, without which the engine takes Triton for
    missing. Metadata that is there comes first.
    """
    folder = Path(tempfile.mkdtemp(prefix="paritybit-"))
    for name, points in (("paritybit_drive", PLATFORM), ("vllm", "")):
        metadata = folder / f"{name}-0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
        (metadata / "entry_points.txt").write_text(points)
    sys.path.append(str(folder))


def platform() -> str:
    """Return the class of the platform. This is the entry point in `vllm.platform_plugins`."""
    return "paritybit.drive.vllm.platform.Platform"


@AFTER.add(
    "the arithmetic of the Triton backend's attention: torch over the tables it is given", SLOW
)
def _stand_in_for_attention() -> None:
    backend: Any = importlib.import_module(ATTENTION)
    backend.unified_attention = whole(attend)
    backend.triton_reshape_and_cache_flash = whole(store)


@AFTER.add("the arithmetic of attention to compressed KV: torch over the tables it is given", SLOW)
def _stand_in_for_compressed_attention() -> None:
    backend: Any = importlib.import_module(COMPRESSED)
    backend.decode_attention_fwd = whole(attend_compressed)
    operators: Any = importlib.import_module("vllm._custom_ops")
    operators.concat_and_cache_mla = whole(store_compressed)


@INDEXING.add("the arithmetic of an indexer and of attention to its choice: torch", COMPILED)
def _stand_in_for_indexer() -> None:
    kernels: Any = ModuleType(VARLEN)
    kernels.flash_attn_varlen_func = whole(sparse.attended_by_rows, returns=True)
    names = VARLEN.rpartition(".")[0], VARLEN
    sys.modules.update(dict.fromkeys(names, kernels))  # Else, the backend cannot be imported.
    importlib.import_module(SPARSE)
    for name in names:
        del sys.modules[name]
    module: Any = importlib.import_module(INDEXER)
    operators: Any = importlib.import_module("vllm._custom_ops")
    operators.indexer_k_quant_and_cache = whole(sparse.store_index)
    operators.cp_gather_indexer_k_quant_cache = whole(sparse.gather_index)
    operators.top_k_per_row_prefill = lambda scores, starts, ends, found, count, *rest: sparse.best(
        scores, ends - starts, found, rest[-1]
    )
    module.fp8_fp4_mqa_logits = sparse.scores
    module.fp8_fp4_paged_mqa_logits = whole(sparse.scores_of_pages, returns=True)
    choose = whole(sparse.best)
    module.get_indexer_topk = lambda kind: (
        lambda scores, lengths, each, found, most, longest: choose(scores, lengths, found, most)
    )
    module.SparseAttnIndexer.forward_native = module.SparseAttnIndexer.forward_cuda
    begin = module.SparseAttnIndexer.__init__

    def begun(one: Any, *given: Any, **named: Any) -> None:
        """Take the workspace that a run for its size takes on a GPU, before it is locked."""
        begin(one, *given, **named)
        size = one.max_total_seq_len, one.head_dim, torch.float8_e4m3fn, False
        shapes = module._gather_workspace_shapes(*size)
        module.current_workspace_manager().get_simultaneous(*shapes)

    module.SparseAttnIndexer.__init__ = begun
    held: Any = torch.ops.vllm  # A graph cannot be split inside of an opaque operator.
    held.sparse_attn_indexer = lambda *given, **named: module.sparse_attn_indexer(
        *given[:CHOICE], given[CHOICE].as_subclass(sparse.Filled), *given[CHOICE + 1 :], **named
    )
    model: Any = importlib.import_module(INDEXED)
    model.per_token_group_quant_fp8 = sparse.quantised
    norm = model.LayerNorm  # It asks for a dtype, which no graph records.
    norm.forward_native = whole(norm.forward_native, returns=True)


@AFTER.add("the arithmetic of FlashAttention 3: torch over the tables it is given", COMPILED)
def _stand_in_for_flash_attention() -> None:
    parts: Any = importlib.import_module(FLASH_PARTS)
    parts.flash_attn_varlen_func, parts.reshape_and_cache_flash = flash, whole(store)
    parts.compile_flash_attn_varlen_func_from_specs = None
    parts.get_scheduler_metadata = lambda **named: None
    parts.is_flash_attn_varlen_func_available = lambda: True
    parts.get_flash_attn_version = lambda **named: 3
    importlib.import_module(FLASH)
    if importlib.util.find_spec(FLASH_RANKS) is not None:
        ranks: Any = importlib.import_module(FLASH_RANKS)
        ranks._CORRECT_ATTN_CP_OUT_KERNEL = whole(corrected)


@AFTER.add("collectives of several ranks: those of a CPU, also in graphs", "they need a GPU")
def _stand_in_for_collectives() -> None:
    keep_collectives()
    held: Any = importlib.import_module(COMMUNICATOR).CpuCommunicator
    held.all_gatherv, held.reduce_scatterv = gathered, reduced
    groups: Any = importlib.import_module(RANKS).GroupCoordinator
    groups.graph_capture = lambda group, given: nullcontext(given)
    context: Any = importlib.import_module("vllm.forward_context")
    context._compute_sp_num_tokens = on_host(context._compute_sp_num_tokens)
    context.DPMetadata.make = on_host(context.DPMetadata.make)


@AFTER.add("the arithmetic of experts and of their choice: torch", COMPILED)
def _stand_in_for_experts() -> None:
    experts: Any = importlib.import_module(EXPERTS)
    experts.cpu_fused_moe = whole(compute_experts)
    experts.cpu_prepack_moe_weight = lambda weight, kind: weight
    model: Any = sys.modules.get(MODEL)
    if model is not None:
        model.gemma4_routing_function_torch = route


@AFTER.add("the model's weights: other random values", "with its own all tokens are equally likely")
def _stand_in_for_weights() -> None:
    loader: Any = importlib.import_module("vllm.model_executor.model_loader.dummy_loader")
    methods: Any = importlib.import_module("vllm.model_executor.layers.quantization.kv_cache")

    def load(_: Any, model: Any, config: Any) -> None:
        """Fill all weights. Those of quantised KV include its scales, as in a checkpoint."""
        method = methods.BaseKVCacheMethod(None)
        settings = SimpleNamespace(
            get_quant_method=lambda *_: method, online_quantization_config=None
        )
        for layer in model.modules():
            if str(getattr(layer, "kv_cache_dtype", "")).startswith(("fp8", "int8")):
                method.create_weights(layer)
                layer.quant_config, layer.quant_method = settings, method
        initialise(model)

    loader.DummyModelLoader.load_weights = load


@AFTER.add("the arithmetic of the LoRA kernels: torch over the lists they are given", SLOW)
def _stand_in_for_lora() -> None:
    wrapper: Any = importlib.import_module(LORA)
    wrapper.lora_shrink, wrapper.lora_expand = lora.shrink, lora.expand


@AFTER.add("short convolutions: torch over the states they are given", SLOW)
def _stand_in_for_convolutions() -> None:
    once = whole(partial(convolved_once, pad_slot_id=0), returns=True)
    for name in RECURRENT:
        layer: Any = importlib.import_module(name)
        layer.causal_conv1d_fn = whole(convolved, returns=True)
        layer.causal_conv1d_update = once
    layer = importlib.import_module(CONVOLUTION)
    layer.ShortConv.forward_native = layer.ShortConv.forward_cuda
    # A graph cannot be split inside of an opaque operator.
    layer.ShortConv.forward = lambda one, *given: layer.short_conv(*given, one.prefix)
    copies: Any = importlib.import_module(COPIES)
    copies.batch_memcpy = move


@AFTER.add("kernels that copy states: one program per state", SLOW)
def _stand_in_for_tiles() -> None:
    copies: Any = importlib.import_module(COPIES)
    copies._TEMPORAL_TILES = 1


@AFTER.add(
    "memory that a sleeping engine gives up: it gets other bytes", "a CPU cannot take it away"
)
def _stand_in_for_sleep() -> None:
    accelerator: Any = torch.accelerator
    accelerator.get_memory_info = lambda *arguments: (0, 0)
    allocators: Any = importlib.import_module("vllm.device_allocator")
    allocators.get_mem_allocator_instance = lambda: MEMORY


@AFTER.add(
    "the recurrence of Mamba2 and of gated delta nets: torch over the states it is given", SLOW
)
def _stand_in_for_recurrences() -> None:
    layer: Any = importlib.import_module(SCAN)
    layer.mamba_chunk_scan_combined_varlen = whole(states.scanned_prompts, returns=True)
    layer.selective_state_update = whole(states.scan_step)
    deltas: Any = importlib.import_module(DELTAS)
    deltas.fla_chunk_gated_delta_rule = whole(states.delta_prompts)
    deltas.fused_post_conv_prep = whole(states.delta_prepared)
    deltas.fused_recurrent_gated_delta_rule_packed_decode = whole(states.delta_packed)
    rows = whole(states.delta_rows, returns=True)
    deltas.fused_sigmoid_gating_delta_rule_update = lambda initial_state, **given: (
        rows(initial_state=initial_state, **given),
        initial_state,
    )
    held: Any = torch.ops.vllm  # A graph cannot be split inside of an opaque operator.
    held.mamba_mixer2 = layer.mamba_mixer2
    held.qwen_gdn_attention_core = deltas.qwen_gdn_attention_core
    kind = deltas.QwenGatedDeltaNetAttention
    kind.forward_cpu = kind.forward_cuda


@AFTER.add("the size of images: few, so that some are dropped", "a tiny model has no processor")
def _stand_in_for_images() -> None:
    module: Any = importlib.import_module("vllm.multimodal.encoder_budget")

    def begin(budget: Any, config: Any, *_: Any, **__: Any) -> None:
        size = config.scheduler_config.max_num_batched_tokens
        sizes = dict.fromkeys(("encoder_compute_budget", "encoder_cache_size"), size)
        names = ("mm_max_toks_per_item", "mm_max_items_per_prompt", "mm_max_items_per_batch")
        vars(budget).update(sizes, cache=None, **{name: {} for name in names})

    module.MultiModalBudget.__init__ = begin


class Generator(torch.Generator):
    """A generator of random numbers whose offset can be set back by one draw."""

    before: torch.Tensor | None = None
    """Its state before the last draw."""

    def get_offset(self) -> int:
        """Return the offset after a draw from the start."""
        return DRAW

    def set_offset(self, offset: int) -> torch.Generator:
        """Take back the last draw if the offset is that of the start, else do nothing."""
        return self if offset or self.before is None else self.set_state(self.before)


def noted(sample: Callable[..., Any]) -> Callable[..., Any]:
    """Let generators note their states before a function draws from each."""

    @wraps(sample)
    def noting(probs: torch.Tensor, generators: Mapping[int, Any], *more: Any) -> Any:
        for one in generators.values():
            one.before = one.get_state()
        return sample(probs, generators, *more)

    return noting


@AFTER.add(
    "generators of random numbers: those of a CPU, which go back by one draw", "they have no offset"
)
def _stand_in_for_generators() -> None:
    held: Any = torch
    held.Generator = Generator


@AFTER.add("sampling: the engine's own in torch", f"it is compiled, and {SLOW}")
def _stand_in_for_sampling() -> None:
    module: Any = importlib.import_module(SAMPLER)
    module.HAS_TRITON = False  # Otherwise a kernel finds the most likely tokens.
    with_nucleus = module.apply_top_k_top_p_pytorch
    module.apply_top_k_only = lambda logits, k: with_nucleus(logits, k, None)
    module.random_sample = noted(module.random_sample)
    module.TopKTopPSampler.forward_cpu = module.TopKTopPSampler.forward_native


AFTER.append(
    StandIn(
        "copies of KV to the host and back: torch, some polls late", "they need a GPU", keep_on_host
    )
)


REUSED = StandIn(
    "blocks of ended requests: those of every second one are the next ones",
    "few pools are full",
    reuse_soon,
)


def install_before_engine(device: str) -> None:
    """Install what the import of the engine needs."""
    os.environ.update(VARIABLES)
    install(device, ANYWHERE, BEFORE)


def install_in_engine(served: VllmServed) -> None:
    """Install the replacements for parts of the engine."""
    CHANCE.seed(served.seed)
    if served.device == "cpu":
        put([*AFTER, *(INDEXING if served.model == DEEPSEEK_V32.name else ())])
    if served.moves:
        put([REUSED])
    if served.apart:
        apart.connect(failing=served.fails)
    elif served.fails:
        fail_loads()
    if served.retracts:
        preempt_often()
    if served.cached:
        cache_here()
    if served.ordered:
        builder = importlib.import_module(ATTENTION).TritonAttentionMetadataBuilder
        builder.reorder_batch_threshold = served.queries
