"""The graph runner that sglang has for a CPU, which compiles a function per batch size.

The function runs as it is written, and nothing compiles it. Attention is the Triton backend's:
what the runner asks of a CPU's own backend is answered for it here.
"""

import importlib
from typing import Any

from torch import Tensor

from paritybit.drive.stand_ins.graphs import claim_abilities
from paritybit.drive.stand_ins.installing import StandIn

BACKEND = "sglang.srt.layers.attention.triton_backend"
BATCHES = "sglang.srt.model_executor.forward_batch_info"

RUNNER = "sglang.srt.model_executor.cpu_graph_runner"

PREPARING = ("register_fake_ops", "set_torch_compile_config")
"""Its functions that prepare torch's compiler, for compiled kernels that are not here."""

SHORTEST = 1
"""The length of a padded row."""


def compile_nothing() -> None:
    """Let the runner prepare no compiler. What it compiles runs as it is written, as elsewhere."""
    claim_abilities()
    runner: Any = importlib.import_module(RUNNER)
    for name in PREPARING:
        setattr(runner, name, lambda *sizes: None)


def attend_in_cpu_graphs() -> None:
    """Give the Triton backend the three methods that the runner asks a CPU's own backend for."""
    backend: Any = importlib.import_module(BACKEND).TritonAttnBackend
    plan = backend.init_forward_metadata

    def planned(self: Any, batch: Any) -> None:
        if batch.forward_mode.is_decode():
            forget_slots(getattr(batch, "token_to_kv_pool", None))
            if batch.seq_lens_cpu is None:
                refresh(self, batch)
        plan(self, batch)

    def captured(self: Any, size: int, tokens: int, rows: Tensor, lengths: Tensor, *_: Any) -> None:
        batches: Any = importlib.import_module(BATCHES)
        batch = batches.ForwardBatch(
            forward_mode=batches.ForwardMode.DECODE,
            batch_size=size,
            input_ids=rows.new_zeros(tokens),
            req_pool_indices=rows,
            seq_lens=lengths,
            out_cache_loc=rows.new_zeros(tokens),
            seq_lens_sum=0,
        )
        self.init_forward_metadata(batch)

    backend.init_forward_metadata = planned
    backend.init_forward_metadata_capture_cpu_graph = captured
    backend.init_cpu_graph_state = lambda self, *sizes: None
    backend.get_cpu_graph_seq_len_fill_value = lambda self: SHORTEST


def forget_slots(pool: Any) -> None:
    """Let a pool find the slots to write itself, where it would take those of an eager forward.

    A CPU's own backend writes without the pool when it decodes.
    """
    if hasattr(pool, "set_swa_loc"):
        pool.set_swa_loc(None)


def refresh(backend: Any, batch: Any) -> None:
    """Give a padded batch of the runner what a CPU's own backend never reads.

    The runner leaves it as it was at the capture: the sum of lengths, and the slots to write.
    """
    batch.seq_lens_sum = int(batch.seq_lens.sum())
    ids: Any = getattr(backend, "kv_index_translator", None)
    if hasattr(ids, "own_plan"):
        ids.own_plan(batch).bind(batch, ids, cols=None)


CPU_GRAPHS = (
    StandIn(
        "what the graph runner of a CPU compiles: the function as it is written",
        "its kernels are compiled for certain CPUs",
        compile_nothing,
    ),
    StandIn(
        "the attention backend of a CPU: the Triton backend, with a CPU's answers at a capture",
        "that of a CPU is compiled",
        attend_in_cpu_graphs,
    ),
)
"""What the graph runner of a CPU needs besides, once the engine can be imported."""
