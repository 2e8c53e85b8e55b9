"""Support for sglang's graph runner for CPUs, which compiles a function per batch size.

Here, the function runs without compilation. Attention uses the Triton backend. This module adds the
methods that the runner calls on the engine's own CPU backend.
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
"""Functions of the runner that prepare torch's compiler for kernels that are missing here."""

SHORTEST = 1
"""The length of a padded row."""


def compile_nothing() -> None:
    """Disable the preparation of the compiler. `torch.compile` is disabled elsewhere."""
    claim_abilities()
    runner: Any = importlib.import_module(RUNNER)
    for name in PREPARING:
        setattr(runner, name, lambda *sizes: None)


def attend_in_cpu_graphs() -> None:
    """Add the three methods to the Triton backend that the runner calls on a CPU backend."""
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
    """Make a pool look up the slots to write, in place of those of an earlier eager forward.

    The engine's own CPU backend does not use the pool for writes while decoding.
    """
    if hasattr(pool, "set_swa_loc"):
        pool.set_swa_loc(None)


def refresh(backend: Any, batch: Any) -> None:
    """Update the fields of a padded batch that the engine's own CPU backend never reads.

    The runner leaves the sum of lengths and the slots to write as they were at the capture.
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
"""Further replacements for the graph runner for CPUs. The engine must be importable."""
