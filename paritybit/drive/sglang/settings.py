"""The settings of a whole sglang, and its command line for them in each release."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta

from paritybit.compat import override
from paritybit.drive.configs import LackingError
from paritybit.drive.models import WINDOW, written
from paritybit.drive.operating.adapters import (
    LOADED,
    MODULES,
    RANK,
    with_adapters,
)
from paritybit.drive.requests import Limits, sample, waves, with_evictions, with_spaces
from paritybit.drive.script import ACTIONS, Wave
from paritybit.drive.served import Adapters, Common, Size, extras_with_drafts, one_of

WINDOWS = {1: 0.3, 4: 0.3, 16: 0.4}
"""The slots of sliding layers per slot of other layers, by page size.

They are so few that windows are evicted. Other page sizes use the engine's default.
"""

BUCKETS = (2, 4, 8)
"""Batch sizes of the graphs for decoding."""

TOKEN_BUCKETS = (16, 32, 64)
"""Numbers of tokens of the graphs for prefills."""

ROWS, CHUNK, CONTEXT, POOL = 8, 64, 1536, 1536
"""The most running requests, and the most tokens of a prefill, of a request, and of the pool."""

STATES = 4
"""States of recurrent layers per running request. The prefix cache uses some of them."""

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

SPECULATION = ("eagle", "standalone")
"""Kinds of draft models: a layer over the hidden states of the target, or a second such model."""

SLIDING_DRAFTS = "layers/attention/triton_backend.py", "window_rail"
"""A file of the engine, and a name in it if draft models may have sliding windows."""

PLAIN_DRAFTS = "model_executor/model_runner.py", "lora and not self.is_draft_worker"
"""A file of the engine, and a text in it if draft models are served without adapters."""

LISTED = "layers/logprob_processor.py", "row = logprobs.new_empty((0,))"
"""A file of the engine, and a text in it if only some requests may list tokens for likelihoods."""


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
    one in Python, in releases whose default is another.
    """

    ACTIONS: ClassVar = ACTIONS
    SIMPLIFIED: ClassVar = (
        *("alone", "overlap", "speculative", "page_size", "whole_prompts", "mixed", "graphs"),
        "host_cache",
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
    windows: Size | None = None
    mixed: bool = False
    python_tree: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a window pool that is larger than the pool."""
        if self.windows is not None and self.windows > self.pool:
            raise ValueError("windows is between 1 and pool")

    @override
    def requests(self) -> Iterator[Wave]:
        given = with_adapters(self.seed, waves(self.seed, self.limits()), self.adapters)
        given = with_spaces(self.seed, given)
        return with_evictions(self.seed, given, self.limits()) if self.host_cache else given

    @property
    def forced(self) -> bool:
        """Whether the engine may be made to accept all drafts, whatever their requests ask."""
        return self.speculative == "eagle" and self.topk == 1

    @property
    @override
    def extras(self) -> Sequence[str]:
        return extras_with_drafts(self.speculative is not None, self.forced)

    def company(self) -> Wave | None:
        """Return a wave whose requests are compared with themselves alone, or None for none.

        Requests are served alone by forks. A fork has no GPU, and no threads, as copies to the host
        need. Adapters are loaded by messages to the scheduler.
        """
        possible = self.device == "cpu" and not (self.host_cache or self.adapters)
        return sample(self.limits()) if possible else None

    @override
    def limits(self) -> Limits:
        slots, page = self.windows, self.page_size
        if slots is None and page in WINDOWS and not self.whole_prompts:
            slots = int(WINDOWS[page] * self.pool) // page * page
        return Limits(WINDOW, page, self.chunk, CONTEXT, self.pool, self.rows, slots)

    def words(self, known: frozenset[str], folder: Path, package: Path) -> list[str]:
        """Return the command line of the engine.

        `known` are the options of the release, and `package` is the folder of its package. `folder`
        gets the configurations of the models.
        Raises LackingError for a setting that the release lacks.
        """
        if self.alone and self.device != "cpu":
            raise LackingError("requests are served alone by forks, and a GPU allows none")
        chunk = CONTEXT if self.whole_prompts else self.chunk
        words = [
            *("--model-path", str(self.shape.write(folder))),
            *("--load-format", "dummy"),
            "--skip-tokenizer-init",
            *("--device", self.device),
            *("--dtype", "float32" if self.device == "cpu" else "bfloat16"),
            *("--page-size", str(self.page_size)),
            *("--chunked-prefill-size", str(chunk)),
            *("--max-prefill-tokens", str(chunk)),
            *("--max-total-tokens", str(self.pool)),
            *("--max-running-requests", str(self.rows)),
            *("--context-length", str(CONTEXT)),
            *self._backend(),
            *("--sampling-backend", "pytorch"),
            *("--grammar-backend", "none"),
            # Without priorities, every second row admits the longest prefix first.
            *("--schedule-policy", "lpm" if self.seed % 2 > self.priorities else "fcfs"),
            *("--random-seed", str(self.seed)),
            *("--mem-fraction-static", "0.5"),
            # Admit requests before all of their tokens fit, so that some are retracted.
            *("--schedule-conservativeness", "0.1"),
            *("--watchdog-timeout", "1000000"),
            *("--log-level", "warning"),
        ]
        if self.whole_prompts:  # All tokens of a prompt have a slot until it is computed.
            words += ["--swa-full-tokens-ratio", "0.9"]
        elif self.windows is not None:  # The engine rounds down to whole slots.
            words += ["--swa-full-tokens-ratio", f"{(self.windows + 0.5) / self.pool:.6f}"]
        elif self.page_size in WINDOWS:
            words += ["--swa-full-tokens-ratio", str(WINDOWS[self.page_size])]
        if not self.prefix_cache:
            words.append("--disable-radix-cache")
        if not self.overlap:
            words.append("--disable-overlap-schedule")
        if self.mixed:
            words.append("--enable-mixed-chunk")
        if self.priorities:
            words.append("--enable-priority-scheduling")
        if "processor" in self.extras:
            words.append("--enable-custom-logit-processor")
        more = *self._graphs(known), *self._speculation(folder, package), *self._lora()
        return [*words, *more, *self._host_cache()]

    def _backend(self) -> Sequence[str]:
        """Return the options for the attention backend, and for the states of recurrent layers.

        For hybrid models, the engine rejects Triton unless the options of both phases name it.
        """
        if self.model == "lfm2":
            states = "--max-mamba-cache-size", str(STATES * self.rows)
            names = "--prefill-attention-backend", "--decode-attention-backend"
            return [*states, *(word for name in names for word in (name, self.backend))]
        return "--attention-backend", self.backend

    def _host_cache(self) -> Sequence[str]:
        """Return the options for a prefix cache that also keeps KV on the host.

        Rows differ in when they write KV to the host and, on a CPU, in how it lies there.
        """
        if not self.host_cache:
            return ()
        layout, backend = HOST_LAYOUTS[self.seed % 4 if self.device == "cpu" else 0]
        return (
            *("--enable-hierarchical-cache", "--hicache-ratio", "2"),
            *("--hicache-mem-layout", layout, "--hicache-io-backend", backend),
            *("--hicache-write-policy", HOST_POLICIES[self.seed % 3]),
        )

    def _lora(self) -> Sequence[str]:
        """Return the options for LoRA adapters. The kernels are others if batches overlap."""
        if not self.adapters:
            return ()
        return (
            *("--enable-lora", "--lora-backend", "csgmv" if self.overlap else "triton"),
            *("--max-lora-rank", str(RANK)),
            *("--max-loras-per-batch", str(LOADED), "--lora-target-modules", *MODULES),
        )

    def _graphs(self, known: frozenset[str]) -> Sequence[str]:
        """Return the options for captured graphs. Their names depend on the release."""
        if "--cuda-graph-config" in known:
            return "--cuda-graph-config", json.dumps(self._phases())
        words = ["--cuda-graph-max-bs", str(BUCKETS[-1]), "--cuda-graph-bs", *map(str, BUCKETS)]
        if self.graphs != "breakable":
            return [*words, "--disable-piecewise-cuda-graph"]
        words += ["--piecewise-cuda-graph-tokens", *map(str, TOKEN_BUCKETS)]
        words += ["--piecewise-cuda-graph-compiler", "eager", "--enable-breakable-cuda-graph"]
        return [*words, "--enforce-piecewise-cuda-graph"]

    def _phases(self) -> dict[str, dict[str, object]]:
        decode = {"backend": "full", "bs": list(BUCKETS), "max_bs": BUCKETS[-1]}
        prefill: dict[str, object] = {"backend": "disabled"}
        if self.graphs == "breakable":
            sizes = {"bs": list(TOKEN_BUCKETS), "max_bs": TOKEN_BUCKETS[-1]}
            prefill = {"backend": "breakable", **sizes}
        return {"decode": decode, "prefill": prefill}

    def _speculation(self, folder: Path, package: Path) -> Sequence[str]:
        if self.speculative is None:
            return ()
        if self.shape.draft is None:
            raise LackingError(f"{self.model} has no draft model here")
        if self.adapters and not says(package, *PLAIN_DRAFTS):
            raise LackingError("this release looks for adapters of the draft model")
        draft = written(self.shape.draft, folder / f"{self.model}-draft")
        if self.speculative == "standalone":
            if not says(package, *SLIDING_DRAFTS):
                raise LackingError("this release has no draft models with sliding windows")
            draft = self.shape.write(folder / "draft")
        steps, tokens = 3, 4 if self.topk == 1 else 6
        return (
            *("--speculative-algorithm", self.speculative.upper()),
            *("--speculative-draft-model-path", str(draft)),
            *("--speculative-num-steps", str(steps)),
            *("--speculative-eagle-topk", str(self.topk)),
            *("--speculative-num-draft-tokens", str(tokens)),
        )
