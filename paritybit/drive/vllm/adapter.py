"""vLLM: its release, its process, and its settings."""

from collections.abc import Mapping

from paritybit.drive.adapters import Adapter, Environment, with_transformers
from paritybit.drive.configs import Table
from paritybit.drive.served import Common
from paritybit.drive.vllm.settings import VllmServed
from paritybit.engines.packages import VLLM
from paritybit.harness.errors import CannotRunError

BELOW = "files below the host"

MOVING = "KV in LMCache", "prefill and decode apart", "failing transfers"

NAMED = "prompts in files", BELOW, *MOVING
"""What is served only by name: it was not yet tried with all others."""

SPLIT = "prefill context parallelism"

INDEXER = "indexer"

CHUNKS = "attention in chunks"

COMPRESSED = "compressed KV", SPLIT, INDEXER
"""Values with DeepSeek V2 and V3.2. Only the first one is served by default."""

STATES = "states of convolutions", "states of Mamba2", "states of delta nets"
"""Models with recurrent layers."""

PICTURES = "positions of images", "images"
"""Values with Qwen2-VL."""

QUANTISED = "fp8 KV", "fp8 KV with scales", "int8 KV with scales"
"""Quantised KV. Only the second one is served by default."""

PRESETS = *STATES[1:], "compressed KV", "fp8 KV with scales"
"""What is served by default with few others: it was not yet tried with the rest."""

WITH_RANKS = {
    "images, most states, chunks and other KV are not yet tried with ranks": [
        (*PICTURES[1:], *PRESETS, CHUNKS)
    ]
}

TABLE = Table(
    axes={
        "graphs": {
            "decode graphs": {},
            "full graphs": {"graphs": "full"},
            "breakable graphs": {"graphs": "breakable"},
            "piecewise graphs": {"graphs": "piecewise"},
            "full and piecewise graphs": {"graphs": "mixed"},
        },
        "runner": {
            "older runner": {},
            "async scheduling": {"overlap": True},
            "newer runner": {"runner": 2},
            "newer runner with async scheduling": {"runner": 2, "overlap": True},
        },
        "drafts": {
            "no drafts": {},
            "n-gram speculation": {"speculative": "ngram"},
            "EAGLE": {"speculative": "eagle"},
        },
        "block size": {"block size 16": {}, "block size 32": {"page_size": 32}},
        "window": {
            "window of one block": {},
            "window of two blocks": {"window": 24},
            "no window": {"full": True},
        },
        "host": {
            "no offload": {},
            "offload to the host": {"offload": True},
            "simple offload": {"offload": True, "simple": True},
            "small host pool": {"offload": True, "tight": True},
            "failing loads": {"offload": True, "failing": True},
            "several connectors": {"offload": True, "several": True, "tight": True},
            BELOW: {"offload": True, "tight": True, "below": True},
            "prompts in files": {"files": True},
            "KV in LMCache": {"cached": True},
            "prefill and decode apart": {"apart": True},
            "failing transfers": {"apart": True, "failing": True},
        },
        "cache": {"prefix cache": {}, "no prefix cache": {"prefix_cache": False}},
        "model": {
            "Gemma 4": {},
            "states of convolutions": {"model": "lfm2"},
            "states of Mamba2": {"model": "nemotron_h"},
            "states of delta nets": {"model": "qwen3_next"},
            "positions of images": {"model": "qwen2_vl"},
            "images": {"model": "qwen2_vl", "images": True},
            "compressed KV": {"model": "deepseek_v2"},
            SPLIT: {"model": "deepseek_v2", "split": True},
            INDEXER: {"model": "deepseek_v32", "page_size": 64},  # The engine has no other.
            CHUNKS: {"model": "llama4"},
        },
        "adapters": {"no adapters": {}, "LoRA adapters": {"adapters": 3}},
        "context": {
            "whole context": {},
            "decode context parallelism": {"full": True, "interleave": 1},
            "context in half blocks": {"full": True, "interleave": 8},
        },
        "KV": {
            "plain KV": {},
            "fp8 KV": {"quantised": "fp8"},
            "fp8 KV with scales": {"quantised": "scaled_fp8"},
            "int8 KV with scales": {"quantised": "scaled_int8"},
        },
        "queue": {"first come, first served": {}, "priorities": {"priorities": True}},
        "operator": {"no actions": {}, "actions": {"actions": True}},
        "attention": {
            "Triton": {},
            "decoding requests first": {"ordered": True},
            "FlashAttention": {"backend": "flash"},
        },
    },
    apart=[
        (["async scheduling"], ["n-gram speculation"]),
        (["decoding requests first"], ["newer runner", "newer runner with async scheduling"]),
        (
            STATES,
            [
                *("LoRA adapters", "no window", "window of two blocks"),
                *("offload to the host", "simple offload"),
                *("small host pool", "failing loads", "several connectors", *NAMED),
            ],
        ),
        (MOVING, ["n-gram speculation", "EAGLE", "actions"]),
        # Files keep the KV of other weights.
        ([BELOW], ["actions"]),
        # Pages of states have the size of those of KV. The rest is not yet tried.
        (QUANTISED, [*STATES, *COMPRESSED]),
        (
            PICTURES,
            [
                *("n-gram speculation", "EAGLE", "LoRA adapters", "no window"),
                *("window of two blocks", BELOW, *MOVING[1:], *QUANTISED),
            ],
        ),
        # The engine splits prompts with the newer runner alone.
        ([SPLIT], ["older runner", "async scheduling", "n-gram speculation", *MOVING]),
        (
            COMPRESSED,
            [
                *("EAGLE", "LoRA adapters", "no window", "window of two blocks", "full graphs"),
                *("offload to the host", "simple offload", "small host pool", "failing loads"),
                *("several connectors", "prompts in files", BELOW, "decoding requests first"),
                *("decode context parallelism", "context in half blocks"),
            ],
        ),
        ([INDEXER], ["block size 32"]),
        # The engine replays no graph of whole layers with chunks. The rest is not yet tried.
        (
            [CHUNKS],
            [
                *("decode graphs", "full graphs", "window of two blocks", "LoRA adapters"),
                *("decode context parallelism", "context in half blocks", *QUANTISED, *NAMED),
            ],
        ),
        (
            ["decode context parallelism", "context in half blocks"],
            [
                *QUANTISED,
                # The engine has no windows with it. The rest is not watched.
                *("window of one block", "window of two blocks", "decoding requests first"),
                *("n-gram speculation", "EAGLE", *STATES, "offload to the host"),
                *("simple offload", "small host pool", "failing loads", "several connectors"),
                *(*NAMED, *PICTURES, "LoRA adapters"),
            ],
        ),
    ],
    ranked=dict.fromkeys(("decode context parallelism", "context in half blocks", SPLIT), "tp"),
    failing=[
        # The newer runner loads no file before it replays a graph of a whole prompt.
        ((*NAMED, *COMPRESSED[1:], *QUANTISED[::2]),),
        (
            PRESETS,
            [
                *("full graphs", "breakable graphs", "async scheduling"),
                *("newer runner with async scheduling", "EAGLE", "block size 32", "actions"),
                *("window of two blocks", "no window", "offload to the host", "simple offload"),
                *("small host pool", "failing loads", "several connectors", "no prefix cache"),
                *("LoRA adapters", "decoding requests first", "priorities"),
            ],
        ),
        (PRESETS[2:], ["older runner", "n-gram speculation"]),
        (
            [CHUNKS],
            [
                *("simple offload", "small host pool", "failing loads", "several connectors"),
                *("actions", "decoding requests first"),
            ],
        ),
        (STATES, ["EAGLE"]),
        # The newer runner leaves garbage in padded positions when it wakes up: see
        # `docs/findings.md`.
        (PICTURES, ["actions"], ["newer runner", "newer runner with async scheduling"]),
        # Without a prefix cache, a row cannot show what is wrong with shared KV.
        (
            ["no prefix cache"],
            [
                *("async scheduling", "newer runner", "newer runner with async scheduling"),
                *("full graphs", "breakable graphs", "n-gram speculation", "EAGLE"),
                *("block size 32", "LoRA adapters", "actions", "no window"),
                *("window of two blocks", "priorities", "no offload", "simple offload"),
                *("small host pool", "failing loads", "several connectors"),
            ],
        ),
    ],
    several={
        **{ranks: {"ranks share this KV": [NAMED], **WITH_RANKS} for ranks in ("tp", "dp")},
        "pp": {
            "ranks share this KV": [NAMED],
            **WITH_RANKS,
            "the older runner has no async scheduling of stages": [["async scheduling"]],
            "drafts of stages are not watched": [["n-gram speculation", "EAGLE"]],
        },
        "dp on cpu": {
            "experts with adapters have compiled code alone": [["LoRA adapters"]],
        },
    },
    devices={
        # On a GPU, copies take time and fail by themselves.
        "failing loads": "cpu",
        "piecewise graphs": "cuda",
        "full and piecewise graphs": "cuda",
        "FlashAttention": "cuda",
        **dict.fromkeys(QUANTISED, "cpu"),  # Not yet tried on a GPU.
        **dict.fromkeys((*COMPRESSED, *STATES[1:], *PICTURES, CHUNKS), "cpu"),
        # On a GPU, copies of the simple connector run on a thread. Files were not tried there.
        **dict.fromkeys(("simple offload", "several connectors", *NAMED), "cpu"),
    },
    # Only batches whose requests all have the most drafts replay a graph.
    quiet=["n-gram speculation"],
    # Planted faults that were found: 24 in plain rows, 10 with the newer runner.
    weights={
        ("prefix cache",): 2,
        ("no drafts",): 2,
        ("older runner",): 2,
        ("no adapters",): 1.5,
        ("no offload",): 2,
        ("Gemma 4",): 2,
        ("prefix cache", "window of two blocks"): 4,
        ("older runner", "no drafts"): 4,
        ("async scheduling", "no drafts"): 4,
        ("newer runner", "no drafts"): 4,
        ("newer runner with async scheduling", "no drafts"): 4,
    },
)


def require_compiled(environment: Environment, served: Common) -> Mapping[str, str]:
    """Return no variables. Raises CannotRunError for a GPU if the engine has no compiled code.

    A downloaded release has none.
    """
    compiled = (environment.source / VLLM.name).glob("_C*.so")
    if served.device != "cpu" and not any(compiled):
        raise CannotRunError(
            f"{environment.name} has no compiled code, which a GPU needs; give the folder in "
            "which it is installed"
        )
    return {}


ADAPTER = Adapter(VLLM, TABLE, VllmServed, with_transformers, require_compiled)
