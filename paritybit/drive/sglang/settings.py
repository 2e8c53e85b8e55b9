"""The settings of a whole sglang, and its command line for them in each release."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta

from paritybit.compat import override
from paritybit.drive.configs import LackingError
from paritybit.drive.models import (
    DEEPSEEK_V32,
    LLAMA4,
    LLAMA4_IN_PARTS,
    RECURRENT,
    WINDOW,
    Model,
    written,
)
from paritybit.drive.operating.adapters import (
    LOADED,
    MODULES,
    RANK,
    with_adapters,
)
from paritybit.drive.operating.images import with_images
from paritybit.drive.requests import (
    Limits,
    sample,
    waves,
    with_each,
    with_growth,
    with_returns,
    with_sessions,
    with_spaces,
)
from paritybit.drive.script import ACTIONS, Part, Planned, Wave
from paritybit.drive.served import Adapters, Common, Size, extras_with_drafts, one_of

WINDOWS = {1: 0.3, 4: 0.3, 16: 0.4}
"""The slots of sliding layers per slot of other layers, by page size.

They are so few that windows are evicted. Other page sizes have the engine's default.
"""

LARGE = 0.9
"""The same if a request may need as many slots of sliding layers as of others."""

Options = Mapping[str, object]
"""Options by name. None and False leave one out, and True gives it no value."""

BUCKETS = (2, 4, 8)
"""Batch sizes of the graphs for decoding."""

TOKEN_BUCKETS = (16, 32, 64)
"""Numbers of tokens of the graphs for prefills."""

ROWS, CHUNK, CONTEXT, POOL = 8, 64, 1536, 1536
"""The most running requests, and the most tokens of a prefill, of a request, and of the pool."""

STATES = 4
"""States of recurrent layers per running request. The prefix cache uses some of them."""

TRACKED = {"nemotron_h": 16, "qwen3_next": 64, "qwen3_5": 64}
"""The tokens of a chunk of models whose states may be kept inside of a prompt."""

GRAPHS = ("decode", "breakable")
"""The captured graphs: decoding, or prefills as well."""

HOST_LAYOUTS = (
    ("layer_first", "direct"),
    ("page_first", "kernel"),
    ("page_first_direct", "direct"),
    ("layer_first", "kernel"),
)
"""How KV lies on the host, and how it is copied."""

HOST_POLICIES = ("write_through", "write_back", "write_through_selective")
"""When KV is written to the host: at once, when it is evicted, or when it is used again."""

HOST_RATIOS = (0.6, 1.3, 0.9)
"""The slots on the host per slot of the pool. With few, copies to the host find no room."""

SMALL_HOSTS = "mem_cache/pool_host/base.py", "is smaller than the device pool"
"""A file of the engine, and a text in it if the host may have fewer slots than the pool."""

PREFETCHES = ("wait_complete", "timeout", "wait_complete", "best_effort")
"""When a request stops waiting for KV of the storage. With the last, it hardly ever gets any."""

STORED = 2048
"""The bytes of all files per slot of the pool, in every second row. It is one or two layers' KV."""

LEAST_PREFETCHED = 8
"""The fewest tokens that are fetched from a storage."""

APART: Options = {
    "disaggregation-transfer-backend": "mooncake",
    # By default, as many as a small pool has in all.
    "num-reserved-decode-tokens": 8,
}
"""Options of both engines for prefill and for decode."""

BACKUP = "disaggregation-decode-retraction-backup"
"""The option that says where an engine for decode keeps KV of requests that it retracts."""

SPECULATION = ("eagle", "standalone")
"""Kinds of draft models: a layer over the hidden states of the target, or a second such model."""

SLIDING_DRAFTS = "layers/attention/triton_backend.py", "window_rail"
PLAIN_DRAFTS = "model_executor/model_runner.py", "lora and not self.is_draft_worker"
STREAMS = "mem_cache/registry.py", "streaming sessions run on UnifiedRadixCache"
LISTED = "layers/logprob_processor.py", "row = logprobs.new_empty((0,))"
"""Files of the engine, and a text in each if draft models may have sliding windows, if they are
served without adapters, if its default cache keeps slots for sessions, and if only some requests
may list tokens for likelihoods."""


@cache
def says(package: Path, file: str, text: str) -> bool:
    """Return whether a file of an engine's package contains a text."""
    path = package / "srt" / file
    return path.is_file() and text in path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class SglangServed(Common):
    """The settings of a whole sglang.

    `windows` is the number of slots of the window pool. With None, it is a fraction of `pool`. With
    `mixed`, a batch has prefills and decoding requests. With `python_tree`, the prefix cache is the
    unified one in Python. With `storage`, KV on the host is also kept in files. With
    `written_back`, it is written there when it is evicted. With `apart`, an engine in another
    process computes the prompts. With `quantised`, KV has floats of eight bits. With `shared`, all
    ranks share the context of each request. With `split`, each rank computes a part of each prompt.
    With `sessions`, some conversations are sessions, of which `crowded` ones have turns that the
    engine refuses. With `images`, which Qwen2-VL alone has, some prompts have images.
    """

    ACTIONS: ClassVar = tuple(one for one in ACTIONS if one != "sleep")
    SEVERAL: ClassVar = ("tp", "pp", "dp")
    SIMPLIFIED: ClassVar = (
        *("alone", "overlap", "speculative", "page_size", "whole_prompts", "mixed", "graphs"),
        *("storage", "written_back", "host_cache", "quantised"),
    )

    page_size: Size = 1
    whole_prompts: bool = False
    speculative: Annotated[str, one_of(SPECULATION)] | None = None
    topk: Size = 1
    backend: Annotated[str, Meta(pattern=r"^\w+$")] = "triton"
    graphs: Annotated[str, one_of(GRAPHS)] = "decode"
    rows: Size = ROWS
    chunk: Size = CHUNK
    pool: Size = POOL
    adapters: Adapters = 0
    host_cache: bool = False
    written_back: bool = False
    storage: bool = False
    windows: Size | None = None
    mixed: bool = False
    python_tree: bool = False
    apart: bool = False
    quantised: bool = False
    shared: bool = False
    split: bool = False
    sessions: bool = False
    crowded: bool = False
    images: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a window pool that is larger than the pool, or a lone storage."""
        if self.windows is not None and self.windows > self.pool:
            raise ValueError("windows is between 1 and pool")
        if (self.storage or self.written_back) and not self.host_cache:
            raise ValueError("storage and written_back need host_cache")

    @override
    def requests(self) -> Iterator[Wave]:
        given = waves(self.seed, self.limits())
        if self.apart:  # The engine for decode retracts requests whose answers outgrow the pool.
            given = with_growth(self.seed, given, self.limits())
        if self.host_cache or self.model in RECURRENT:  # Texts with a state are computed again.
            flush = self.storage or not self.host_cache
            given = with_returns(self.seed, given, self.limits(), flush=flush)
        given = with_spaces(self.seed, with_adapters(self.seed, given, self.adapters))
        if self.sessions:
            given = with_sessions(self.seed, given, self.limits(), crowded=self.crowded)
        return with_each(with_images(self.seed, given), self.servable) if self.images else given

    def servable(self, one: Planned) -> Planned:
        """Return a request whose prompt does not end with an image: see `docs/findings.md`."""
        ends = one.prompt[-1].image is not None
        return replace(one, prompt=(*one.prompt, Part("another token", 1))) if ends else one

    @property
    @override
    def shape(self) -> Model:
        model = super().shape  # The engine only knows the whole Llama 4 to have chunks.
        return replace(model, config=LLAMA4_IN_PARTS) if model is LLAMA4 else model

    @property
    @override
    def moves(self) -> bool:
        return self.host_cache or self.apart

    @property
    def forced(self) -> bool:
        """Whether the engine may be made to accept all drafts, whatever their requests ask."""
        return self.speculative == "eagle" and self.topk == 1

    @property
    def retracts(self) -> bool:
        """Whether the engine often retracts a request, as in every second pair of rows.

        An engine for decode would end some of these.
        """
        return self.seed // 2 % 2 == 1 and not self.apart

    @property
    @override
    def extras(self) -> Sequence[str]:
        extras = [*extras_with_drafts(self.speculative is not None, self.forced)]
        extras += ["hidden_states"] * (self.seed % 2)
        # A router adds the likelihoods of a prompt, which only the engine for prefill has.
        return [one for one in extras if not (self.apart and one == "likelihoods")]

    def streams(self, package: Path) -> bool:
        """Return whether a session can keep its slots: with the cache of newer releases."""
        kept = self.python_tree or says(package, *STREAMS)
        return self.sessions and self.prefix_cache and kept

    def company(self) -> Wave | None:
        """Return a wave to compare. A fork has no GPU, threads for copies, adapters or ranks.

        A cached prefix of quantised KV, also of an indexer, is not what its own request computed
        with.
        """
        forks = self.device == "cpu" and self.ranks == 1
        others = self.host_cache or self.adapters or self.apart or self.model == DEEPSEEK_V32.name
        possible = forks and not (others or self.quantised)
        return sample(self.limits()) if possible else None

    @override
    def limits(self) -> Limits:
        slots, page, pool = self.windows, self.page_size, self.pool
        if self.apart:  # A request gets as many slots for windows as it has tokens.
            pool = int(LARGE * pool)
        elif slots is None and page in WINDOWS and not self.whole_prompts:
            slots = int(WINDOWS[page] * pool) // page * page
        window = LLAMA4.config["attention_chunk_size"] if self.model == LLAMA4.name else WINDOW
        return Limits(window, page, self.chunk, CONTEXT, pool, self.rows, slots)

    def words(
        self, known: frozenset[str], folder: Path, package: Path, role: str = ""
    ) -> list[str]:
        """Return the command line of the engine.

        `known` are the options of the release, and `package` is the folder of its package. `folder`
        gets the configurations of the models. `role` is that of an engine for prefill or decode.
        Raises LackingError for a setting that the release lacks.
        """
        if self.alone and self.device != "cpu":
            raise LackingError("requests are served alone by forks, and a GPU allows none")
        chunk = CONTEXT if self.whole_prompts else self.chunk
        options = {
            "model-path": self.shape.write(folder),
            "load-format": "dummy",
            "skip-tokenizer-init": True,
            "device": self.device,
            "dtype": "float32" if self.device == "cpu" else "bfloat16",
            "kv-cache-dtype": "fp8_e4m3" if self.quantised else None,
            "page-size": self.page_size,
            "chunked-prefill-size": chunk,
            "max-prefill-tokens": chunk,
            "max-total-tokens": self.pool,
            "max-running-requests": self.rows,
            "context-length": CONTEXT,
            "swa-full-tokens-ratio": self._window_share(),
            "sampling-backend": "pytorch",
            "grammar-backend": "none",
            # Without priorities, every second row admits the longest prefix first.
            "schedule-policy": "lpm" if self.seed % 2 > self.priorities else "fcfs",
            "random-seed": self.seed,
            "mem-fraction-static": 0.5,
            # Admit requests before all of their tokens fit, so that some are retracted.
            "schedule-conservativeness": 0.1,
            "watchdog-timeout": 1000000,
            "log-level": "warning",
            "disable-radix-cache": not self.prefix_cache,
            "disable-overlap-schedule": not self.overlap,
            "enable-mixed-chunk": self.mixed,
            "enable-priority-scheduling": self.priorities,
            "enable-streaming-session": self.streams(package),
            "enable-custom-logit-processor": "processor" in self.extras,
            "enable-return-hidden-states": "hidden_states" in self.extras,
            **self._backend(),
            **self._graphs(known),
            **self._speculation(folder, package),
            **self._lora(),
            **self._host_cache(package, role),
            **self._ranks(),
            **(APART if self.apart else {}),
            **self._backup(known, role),
        }
        words = list[str]()
        for name, value in options.items():
            if value is not None and value is not False:
                values = value if isinstance(value, tuple) else (value,) * (value is not True)
                words += [f"--{name}", *map(str, values)]
        return words

    def _backup(self, known: frozenset[str], role: str) -> Options:
        """Return where an engine for decode keeps retracted requests: every fourth row in tensors.

        Tensors have no KV of drafts.
        """
        tensors = role == "decode" and self.seed % 4 == 1 and self.speculative is None
        return {BACKUP: "cpu_tensor"} if tensors and f"--{BACKUP}" in known else {}

    def _window_share(self) -> float | None:
        """Return the slots of sliding layers per slot of other layers, or None for the default."""
        if self.whole_prompts or self.apart:  # All tokens of a prompt have a slot at first.
            return LARGE
        if self.windows is not None:  # The engine rounds down to whole slots.
            return round((self.windows + 0.5) / self.pool, 6)
        return WINDOWS.get(self.page_size)

    def _backend(self) -> Options:
        """Return the options for the attention backend, and for the states of recurrent layers.

        For hybrid models, the engine rejects Triton unless the options of both phases name it.
        With overlap, pages or shared contexts, it keeps states for the prefix cache in slots of
        their own. Every third row then gets the second of these only when it is needed.
        """
        if self.model == DEEPSEEK_V32.name:
            chosen = {"attention-backend": "dsa", "dsa-topk-backend": "torch"}
            return {**chosen, "kv-cache-dtype": "bfloat16"}
        if self.model not in RECURRENT:
            return {"attention-backend": self.backend}
        tracks = self.model in TRACKED and (self.overlap or self.page_size > 1 or self.shared)
        lazy = tracks and self.prefix_cache and self.seed % 3 == 2
        return {
            "max-mamba-cache-size": (STATES if tracks or self.model == "lfm2" else 2) * self.rows,
            "prefill-attention-backend": self.backend,
            "decode-attention-backend": self.backend,
            "mamba-track-interval": max(TRACKED[self.model], self.page_size) if tracks else None,
            "mamba-radix-cache-strategy": "extra_buffer" + "_lazy" * lazy
            if lazy or self.shared
            else None,
        }

    def _host_cache(self, package: Path, role: str) -> Options:
        """Return the options for a prefix cache that also keeps KV on the host, and in files.

        An engine for decode keeps no such cache, and writes to files what it computes.

        Rows differ in when they write KV to the host, in how much the host and its files hold, in
        how long a request waits for files and, on a CPU, in how KV lies on the host.
        """
        layout, backend = HOST_LAYOUTS[self.seed % 4 if self.device == "cpu" else 0]
        policy = HOST_POLICIES[1 if self.written_back else self.seed % 3]
        # What is evicted needs room on the host if it is written back only then.
        small = policy != HOST_POLICIES[1] and says(package, *SMALL_HOSTS)
        ratios = HOST_RATIOS if small else (max(HOST_RATIOS),)
        options: Options = {
            "enable-hierarchical-cache": role != "decode",
            "disaggregation-decode-enable-offload-kvcache": role == "decode",
            "hicache-ratio": ratios[self.seed // 4 % len(ratios)],
            "hicache-mem-layout": layout,
            "hicache-io-backend": backend,
            "hicache-write-policy": policy,
        }
        more = {"prefetch_threshold": max(self.page_size, LEAST_PREFETCHED)}
        if self.seed // 4 % 2:
            more["max_size"] = STORED * self.pool
        storage: Options = {
            "hicache-storage-backend": "file",
            "hicache-storage-prefetch-policy": PREFETCHES[self.seed // 3 % len(PREFETCHES)],
            "hicache-storage-backend-extra-config": json.dumps(more),
        }
        return {**options, **(storage if self.storage else {})} if self.host_cache else {}

    def _ranks(self) -> Options:
        """Return the options for several ranks. Data-parallel ones have only attention apart.

        Those get a port, next to which the engine uses further ones. Every second row gives each
        rank some of the experts.
        """
        if self.ranks == 1:
            return {}
        options: dict[str, object] = {"pp-size": self.pp, "tp-size": self.tp * self.dp}
        if self.shared:
            options["dcp-size"] = self.tp
        if self.split:
            options |= {"attn-cp-size": self.tp, "enable-prefill-cp": True, "cp-strategy": "zigzag"}
        if self.dp == 1:
            return options
        port = 20_000 + os.getpid() % 20_000
        options |= {"dp-size": self.dp, "enable-dp-attention": True, "port": port}
        apart = self.model == "gpt_oss" and self.seed % 2 == 0
        return {**options, "ep-size": self.tp * self.dp if apart else None}

    def _lora(self) -> Options:
        """Return the options for LoRA adapters. The kernels are others if batches overlap."""
        options = {
            "enable-lora": True,
            "lora-backend": "csgmv" if self.overlap else "triton",
            "max-lora-rank": RANK,
            "max-loras-per-batch": LOADED,
            "lora-target-modules": MODULES,
        }
        return options if self.adapters else {}

    def _graphs(self, known: frozenset[str]) -> Options:
        """Return the options for captured graphs. Their names depend on the release."""
        prefills = self.graphs == "breakable"
        if "--cuda-graph-config" in known:
            decode = {"backend": "full", "bs": BUCKETS, "max_bs": BUCKETS[-1]}
            # A data-parallel rank that decodes runs those of a prefill of another rank, if it has
            # at least half as many tokens as the smallest graph that fits.
            tokens = (*BUCKETS, *TOKEN_BUCKETS) if self.dp > 1 else TOKEN_BUCKETS
            sizes = {"bs": tokens, "max_bs": tokens[-1]} if prefills else {}
            prefill = {"backend": "breakable" if prefills else "disabled", **sizes}
            return {"cuda-graph-config": json.dumps({"decode": decode, "prefill": prefill})}
        return {
            "cuda-graph-max-bs": BUCKETS[-1],
            "cuda-graph-bs": BUCKETS,
            "disable-piecewise-cuda-graph": not prefills,
            "piecewise-cuda-graph-tokens": TOKEN_BUCKETS if prefills else None,
            "piecewise-cuda-graph-compiler": "eager" if prefills else None,
            "enable-breakable-cuda-graph": prefills,
            "enforce-piecewise-cuda-graph": prefills,
        }

    def _speculation(self, folder: Path, package: Path) -> Options:
        if self.speculative is None:
            return {}
        if self.shape.draft is None:
            raise LackingError(f"{self.model} has no draft model here")
        if self.adapters and not says(package, *PLAIN_DRAFTS):
            raise LackingError("this release looks for adapters of the draft model")
        draft = written(self.shape.draft, folder / f"{self.model}-draft")
        if self.speculative == "standalone":
            if not says(package, *SLIDING_DRAFTS):
                raise LackingError("this release has no draft models with sliding windows")
            draft = self.shape.write(folder / "draft")
        return {
            "speculative-algorithm": self.speculative.upper(),
            "speculative-draft-model-path": draft,
            "speculative-num-steps": 3,
            "speculative-eagle-topk": self.topk,
            "speculative-num-draft-tokens": 4 if self.topk == 1 else 6,
        }
