"""sglang: its release, its process, and its settings."""

import re
from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path

from paritybit.drive.adapters import Adapter, Environment, with_transformers
from paritybit.drive.configs import Table
from paritybit.drive.models import DEEPSEEK_V32
from paritybit.drive.served import Common
from paritybit.drive.sglang.settings import SglangServed, says
from paritybit.engines.packages import SGLANG
from paritybit.harness.errors import MalformedError, quote

REAL_DRAFTS = "SGLANG_SIMULATE_ACC_TOKEN_MODE"
"""The variable that makes an engine accept the draft's own tokens."""

CUDA_ALONE = "speculative/spec_utils.py", 'device="cuda"'
"""A file of the engine, and text in it if this works only on CUDA."""

TRANSFORMERS = re.compile(r"transformers\s*==\s*([0-9.]+)")

DRAFTS = ("EAGLE topk 1", "EAGLE topk 2", "draft model")
CHUNKS = (
    "chunks of 64",
    "chunks larger than the window pool",
    "few window slots",
    "few window pages",
)
TELLING = ("decode graphs", "prefix cache", "tree in Python", "chunks of 64")
"""Values that most models have in an early row, because others leave a part of the engine out."""

HOST = ("KV on the host", "KV written back", "KV in files")

APART = "prefill and decode apart", "apart with files"

SHARED, SPLIT = "decode context parallelism", "prefill context parallelism"

STATES = ("states of convolutions", "states of Mamba2", "states of delta nets", SHARED)

COMPRESSED = ("compressed KV", "indexer")

IN_CHUNKS = "attention in chunks"

OTHER_MODELS = (*STATES, SPLIT, "positions of images", "images", *COMPRESSED, IN_CHUNKS)

PLACES = "positions of images"

WITHOUT_DRAFTS = ("Gemma 4", *(one for one in OTHER_MODELS if one != "compressed KV"))

UNTRIED = (*APART, "indexer", SHARED, SPLIT, IN_CHUNKS)
"""What is served only by name: it was not yet tried with all others."""

PRESETS = (*STATES[1:3], "compressed KV", "fp8 KV")
"""What is served by default with few others: it was not yet tried with the rest."""

WITH_RANKS = {
    "images, sessions, most states, chunks and other KV are not yet tried with ranks": [
        ("images", "sessions", *PRESETS, IN_CHUNKS)
    ]
}

INDEXING = {"SGLANG_FP8_PAGED_MQA_LOGITS_TORCH": "1", "SGLANG_DSA_FUSE_TOPK": "0"}
"""The variables with which an indexer computes in torch."""

TABLE = Table(
    axes={
        "graphs": {
            "decode graphs": {},
            "breakable prefill graphs": {"graphs": "breakable"},
        },
        "model": {
            "Gemma 4": {},
            "attention sinks": {"model": "gpt_oss"},
            "states of convolutions": {"model": "lfm2"},
            # States are kept inside of prompts, of several in a batch.
            "states of Mamba2": {"model": "nemotron_h", "chunk": 192, "pool": 1024},
            "states of delta nets": {"model": "qwen3_next", "chunk": 192, "pool": 1024},
            "positions of images": {"model": "qwen2_vl"},
            "images": {"model": "qwen2_vl", "images": True},
            "compressed KV": {"model": "deepseek_v2"},
            "indexer": {"model": "deepseek_v32"},
            IN_CHUNKS: {"model": "llama4", "backend": "fa3"},
            SHARED: {"model": "qwen3_5", "shared": True},
            SPLIT: {"model": "gpt_oss", "backend": "fa3", "split": True},
        },
        "page size": {
            "page size 1": {},
            "page size 4": {"page_size": 4, "pool": 1024},
            "page size 16": {"page_size": 16, "pool": 1024},
            "page size 64": {"page_size": 64},
        },
        "scheduling": {"no overlap": {}, "overlap": {"overlap": True}},
        "batches": {"separate batches": {}, "mixed batches": {"mixed": True}},
        "cache": {
            "prefix cache": {},
            "no prefix cache": {"prefix_cache": False},
            # A small pool runs out more often in the same time, and so do the others.
            "KV on the host": {"host_cache": True, "pool": 640},
            "KV written back": {"host_cache": True, "written_back": True, "pool": 640},
            "KV in files": {"host_cache": True, "storage": True, "pool": 640},
            "prefill and decode apart": {"apart": True, "pool": 640},
            "apart with files": {"apart": True, "pool": 640, "host_cache": True, "storage": True},
        },
        "tree": {"default tree": {}, "tree in Python": {"python_tree": True}},
        "drafts": {
            "no drafts": {},
            "EAGLE topk 1": {"speculative": "eagle"},
            "EAGLE topk 2": {"speculative": "eagle", "topk": 2},
            "draft model": {"speculative": "standalone", "topk": 2},
        },
        "pool and chunks": {
            "chunks of 64": {},
            "chunks larger than the window pool": {"chunk": 512},
            "whole prompts": {"whole_prompts": True},
            "few window slots": {"pool": 384, "windows": 160, "chunk": 32},
            "few window pages": {"pool": 512, "windows": 320, "chunk": 32},
        },
        "adapters": {"no adapters": {}, "LoRA adapters": {"adapters": 3}},
        "KV": {"plain KV": {}, "fp8 KV": {"quantised": True}},
        "queue": {"first come, first served": {}, "priorities": {"priorities": True}},
        "operator": {"no actions": {}, "actions": {"actions": True}},
        "conversations": {
            "whole conversations": {},
            "sessions": {"sessions": True},
            "crowded sessions": {"sessions": True, "crowded": True},
        },
    },
    apart=[
        (DRAFTS, WITHOUT_DRAFTS),
        (("LoRA adapters",), ("Gemma 4", *(one for one in OTHER_MODELS if one != PLACES))),
        (("few window slots",), ("page size 16", "page size 64")),
        (("few window pages",), ("page size 64", *OTHER_MODELS)),
        (("mixed batches",), DRAFTS[2:]),
        (HOST, (*STATES, SPLIT, "indexer")),
        (APART, (*STATES, SPLIT, "indexer")),
        (APART, (*DRAFTS[1:], "mixed batches", "LoRA adapters", "actions")),
        # An engine for decode writes no windows to files.
        (APART[1:], ("Gemma 4", "attention sinks")),
        (STATES[:1], ("page size 4", "page size 16", "page size 64")),
        # The engine has it for pages of 64 alone. The rest is not yet tried.
        (COMPRESSED[1:], ("page size 1", "page size 4", "page size 16", "fp8 KV")),
        (COMPRESSED[1:], ("breakable prefill graphs",)),
        # A chunk has whole pages. The rest is not yet tried.
        ((IN_CHUNKS,), ("page size 64", *HOST, *APART, "sessions", "crowded sessions")),
        (("sessions", "crowded sessions"), (*APART, SHARED, SPLIT)),
    ],
    failing=[
        (UNTRIED,),
        (
            PRESETS,
            [
                *("breakable prefill graphs", "page size 4", "page size 16", "page size 64"),
                *("mixed batches", "no prefix cache", *HOST, "tree in Python", *DRAFTS[1:]),
                *(*CHUNKS[1:], "whole prompts", "LoRA adapters", "actions"),
                *("sessions", "crowded sessions"),
            ],
        ),
        (["fp8 KV"], ["attention sinks", *OTHER_MODELS]),
        # 0.5.23 lets a later turn change one that runs: see `docs/findings.md`.
        (("crowded sessions",),),
        # 0.5.23 fails with a retracted turn and files, and reads KV of a token that is not there:
        # see `docs/findings.md`. It refuses to empty the cache for new weights while a turn waits.
        (("sessions",), ("KV in files", "actions")),
        (("sessions",), ("mixed batches",), DRAFTS[:2]),
        # 0.5.23 ends with an IndexError in `filter_batch` when it retracts a request.
        (("draft model",), ("no overlap",)),
        # 0.5.23 keeps a part of a draft's KV on the host: see `docs/findings.md`.
        (("draft model",), HOST),
        # 0.5.23 cuts two prompts and continues one: see `docs/findings.md`.
        (("no prefix cache",), ("mixed batches",), ("page size 4", "page size 16", "page size 64")),
        # 0.5.23 ends with an AssertionError when a second prompt is cut: see `docs/findings.md`.
        (("priorities",), CHUNKS),
    ],
    # Not yet tried on a GPU.
    devices=dict.fromkeys((*UNTRIED, *PRESETS, "images", "sessions"), "cpu"),
    ranked={SHARED: "tp", SPLIT: "tp"},
    several={
        **dict.fromkeys(("tp", "pp"), WITH_RANKS),
        "dp": {
            **WITH_RANKS,
            "of these models, only gpt-oss has data-parallel attention": [
                ("Gemma 4", *OTHER_MODELS)
            ],
        },
    },
    # Planted faults that were found: 76 in plain rows, 20 in chains of EAGLE, 13 with pages of 16
    # tokens, 7 in states. Trees in small pages found one that no other setting shows.
    weights={
        **dict.fromkeys(product(TELLING), 2),
        **dict.fromkeys(product(("Gemma 4", *STATES, "positions of images"), TELLING), 20),
        **dict.fromkeys(product(HOST), 2),
        ("whole conversations",): 2,
        ("few window slots",): 2,
        ("EAGLE topk 1",): 2,
        ("page size 16",): 2,
        ("page size 4", "EAGLE topk 2"): 8,
        # Requests with a hit wait for room, and short hits on the host are not loaded.
        ("states of convolutions", "few window slots"): 8,
        ("positions of images", "KV on the host"): 8,
        ("positions of images", "page size 1"): 8,
    },
)


RETRACTING = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "12"}
"""With these, the engine also retracts a request if the pool is not full: every 12 forwards."""

OWN_CHECKS = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK": "1",
    "SGLANG_DEBUG_MEMORY_POOL": "1",
    "SGLANG_INVARIANT_CHECK": "2",
}
"""The engine's own checks of its pools, cache and indices, which fail with an error."""


def variables_of(environment: Environment, served: Common) -> Mapping[str, str]:
    """Return the environment variables that only sglang needs."""
    assert isinstance(served, SglangServed)
    package = environment.source / SGLANG.name
    return {
        # By default, slots outside a window are freed every 128 tokens, which is 8 windows.
        "SGLANG_SWA_EVICTION_INTERVAL": "8",
        # Grammars are there when the scheduler asks, however slow the machine is.
        "SGLANG_GRAMMAR_POLL_INTERVAL": "60",
        # Log-likelihoods of prompts are computed in chunks, of 2048 tokens by default.
        "SGLANG_LOGPROB_CHUNK_SIZE": "24",
        # As on a GPU, the scheduler's stream waits for forward passes that it does not know better.
        **({"SGLANG_ENABLE_WAR_BARRIER": "1"} if served.device == "cpu" else {}),
        # It is not that of the model.
        **({"SGLANG_MAMBA_CONV_DTYPE": "float32"} if served.device == "cpu" else {}),
        **(INDEXING if served.model == DEEPSEEK_V32.name else {}),
        **(OWN_CHECKS if says(package, "environ.py", "SGLANG_INVARIANT_CHECK") else {}),
        **(acceptance(package, served.device) if served.forced else {}),
        **(RETRACTING if served.retracts else {}),
    }


def wanted_transformers(package: Path) -> str | None:
    """Return the release of transformers that an engine pins, or None for any.

    Raises MalformedError for an engine that does not say what it needs.
    """
    metadata = package.parent.glob("sglang-*.dist-info/METADATA")
    files = [one for one in (*metadata, package.parent / "pyproject.toml") if one.is_file()]
    if not files:
        raise MalformedError(
            f"{quote(str(package.parent))} does not state which packages sglang needs; "
            "valid: a folder with pyproject.toml or sglang-VERSION.dist-info next to sglang"
        )
    named = (TRANSFORMERS.search(file.read_text("utf-8", "replace")) for file in files)
    return next((one[1] for one in named if one is not None), None)


def acceptance(package: Path, device: str) -> dict[str, str]:
    """Return the environment variables that make an engine accept drafts of random models.

    The accepted tokens are the draft's own, so the KV matches the tokens of the request. Releases
    that would accept other tokens get none.
    """
    if not says(package, "environ.py", REAL_DRAFTS):
        return {}
    if device == "cpu" and says(package, *CUDA_ALONE):
        return {}
    return {
        "SGLANG_SIMULATE_ACC_LEN": "2.5",
        "SGLANG_SIMULATE_ACC_METHOD": "multinomial",
        REAL_DRAFTS: "real-draft-token",
    }


ADAPTER = Adapter(
    SGLANG,
    TABLE,
    SglangServed,
    prepare=partial(with_transformers, wanted=wanted_transformers),
    own=variables_of,
)
