"""Continuous batching of transformers: its release, its process, and its settings."""

from paritybit.drive.adapters import Adapter, environment_of
from paritybit.drive.configs import Table
from paritybit.drive.transformers.settings import TransformersServed
from paritybit.engines import fetch
from paritybit.engines.packages import TRANSFORMERS

# Only models in which all layers have full attention share prefixes.
TABLE = Table(
    axes={
        "layers": {"sliding window": {}, "shared prefixes": {"full": True}},
        "page size": {
            "page size 16": {},
            "page size 4": {"page_size": 4},
            "page size 6": {"page_size": 6},
            "page size 64": {"page_size": 64},
        },
        "scheduling": {"no overlap": {}, "overlap": {"overlap": True}},
        "samples": {
            "one sample": {},
            "two samples": {"samples": 2},
            "several samples": {"samples": 3},
        },
        "sampling": {"likeliest tokens": {}, "sampling by request": {"sampling": True}},
        "answers": {"whole answers": {}, "streamed answers": {"streamed": True}},
        "host": {
            "no offload": {},
            "offload to the host": {"offload": True},
            "small host pool": {"offload": True, "small_host": True},
        },
        "graphs": {"graphs": {}, "no graphs": {"graphs": False}},
        "scheduler": {"first in, first out": {}, "prefill first": {"scheduler": "prefill_first"}},
        "model": {"Gemma 4": {}, "attention sinks": {"model": "gpt_oss"}},
        "lists": {"lists of slots": {}, "tables of blocks": {"tables": True}},
        "cache": {"prefix cache": {}, "no prefix cache": {"prefix_cache": False}},
        "operator": {"no actions": {}, "actions": {"actions": True}},
    },
    # Tables are for full attention, by kernels without sinks.
    apart=[(["tables of blocks"], ["sliding window", "attention sinks"])],
    # 5.24.0 fails for a prompt of one token without graphs or with tables, and if the host's pool
    # has room for a part of what it needs, which comes with several samples per prompt, or if one
    # kind of layers fits: see `docs/findings.md`.
    failing=[
        (["two samples", "several samples"], ["no graphs", "tables of blocks"]),
        (["several samples"], ["offload to the host"], ["prefill first"]),
        (["small host pool"], ["shared prefixes"]),
    ],
    quiet=["no graphs"],
    # Planted faults that were found: 15 with sliding windows, 12 with shared prefixes.
    # Replays that sample at random cannot be repeated, so fewer checks judge them.
    weights={
        ("graphs",): 2,
        ("several samples",): 1.5,
        ("shared prefixes", "prefix cache"): 2,
        ("likeliest tokens",): 2,
    },
)


ADAPTER = Adapter(
    TRANSFORMERS,
    TABLE,
    TransformersServed,
    prepare=lambda spec: environment_of(fetch.find(spec), *TRANSFORMERS.dependencies),
)
