"""Graphs that contain state of their capture, and metadata that a replay does not rebuild."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from paritybit.reference.config import CHAIN, SPECULATION, Kind
from paritybit.subjects.access import ListedKV
from paritybit.subjects.bugs.bug import DRAFTS, Bug, pull, seen
from paritybit.subjects.key_lists import Lists, StaticLists
from paritybit.subjects.protocol import Keys
from paritybit.subjects.runners.base import GraphRunner, RunnerSpec
from paritybit.subjects.runners.eagle_draft import EagleDraftRunner
from paritybit.subjects.runners.eagle_draft_extend import EagleDraftExtendRunner
from torch import Tensor

LONGEST_AT_CAPTURE = 8
"""Keys of the longest request in the batch of a capture."""

REBOUND = "window_kv_indices"


class BakesLongest(ListedKV):
    def keys_of(self, kind: Kind) -> Keys:
        keys = super().keys_of(kind)
        end = torch.minimum(keys.end, keys.begin + LONGEST_AT_CAPTURE)
        return Keys(keys.begin, end, keys.slots, keys.mask_start)


class ReboundMetadata(StaticLists):
    rebinds = False

    def write(self, values: Lists) -> None:
        if self.rebinds:
            self.buffers = {**self.buffers, REBOUND: values[REBOUND]}
            values = {name: listed for name, listed in values.items() if name != REBOUND}
        super().write(values)


class RebindsAfterCapture(GraphRunner):
    def capture_all(self) -> None:
        super().capture_all()
        assert isinstance(self.metadata, ReboundMetadata)
        self.metadata.rebinds = True

    @property
    def state(self) -> Any:
        return self.metadata.buffers

    @state.setter
    def state(self, state: Any) -> None:
        self.metadata.buffers = state


class UniformQueries(EagleDraftExtendRunner):
    def query_ends(self, counts: Tensor) -> Tensor:
        longest = torch.full_like(counts, SPECULATION.extend_tokens)
        return longest.cumsum(0) - longest + counts


class PlansByHostAddress(GraphRunner):
    plans: Mapping[tuple[int, int], Lists] = {}

    def list_rows(self, bucket: int, lists: Callable[..., Lists]) -> None:
        if bucket not in self.captured:
            super().list_rows(bucket, lists)
            return
        lengths = self.view("seq_lens_cpu", bucket)
        key = lengths.data_ptr(), lengths.numel()

        def known(*args: Any) -> Lists:
            if key not in self.plans:
                self.plans = {**self.plans, key: lists(*args)}
            return self.plans[key]

        super().list_rows(bucket, known)

    @property
    def state(self) -> Any:
        return self.plans

    @state.setter
    def state(self, state: Any) -> None:
        self.plans = state


class ListsOneBranch(GraphRunner):
    def metadata_sizes(self, bucket: int) -> dict[str, tuple[int, torch.dtype]]:
        sizes = super().metadata_sizes(bucket)  # type: ignore[safe-super]  # the runner's come next
        slots, dtype = sizes["kv_indices"]
        return {**sizes, "kv_indices": (slots // self.topk, dtype)}


class PlansFirstForward(EagleDraftRunner):
    def __init__(self, spec: RunnerSpec) -> None:
        super().__init__(spec)
        self.of_capture: dict[int, Lists] = {}

    def list_rows(self, bucket: int, lists: Callable[..., Lists]) -> None:
        super().list_rows(bucket, partial(self.first_anew, bucket, lists))

    def first_anew(self, bucket: int, lists: Callable[..., Lists], *given: Any) -> Lists:
        """Return new lists for the first forward, and the kept ones for all others."""
        found, rows = lists(*given), bucket * self.topk
        kept = self.of_capture.setdefault(bucket, found)
        joined: Lists = {}
        for kind in ("", "window_"):
            indptr, slots = f"{kind}kv_indptr", f"{kind}kv_indices"
            end, kept_end = found[indptr][rows], kept[indptr][rows]
            later = kept[indptr][rows + 1 :] - kept_end + end
            joined[indptr] = torch.cat([found[indptr][: rows + 1], later])
            joined[slots] = torch.cat([found[slots][: int(end)], kept[slots][int(kept_end) :]])
        return joined


BUGS = (
    Bug(
        name="longest_key_count_baked",
        thread=pull(45323, "huggingface/transformers"),
        mechanism=(
            "Graphs are looked up by padded shape alone, but each graph also has the longest key"
            " count of its capture baked in. A longer request loses its last keys."
        ),
        expected=seen("logits_parity", "decode"),
        parts=(BakesLongest,),
    ),
    Bug(
        name="block_table_rebound",
        thread=pull(8508, "vllm-project/vllm-ascend"),
        mechanism=(
            "Each step rebinds the window's block table to a new tensor, but the graph "
            "still reads the tensor it was captured with."
        ),
        expected=seen("index_contract", "decode"),
        parts=(RebindsAfterCapture, ReboundMetadata),
    ),
    Bug(
        name="query_layout_uniform",
        thread=pull(21987),
        mechanism=(
            "The capture assumes that all requests have the same number of query tokens. "
            "At replay, each request has as many as were accepted."
        ),
        expected=seen("logits_parity", "eagle_draft_extend"),
        parts=(UniformQueries,),
    ),
    Bug(
        name="plan_by_host_address",
        thread=pull(40419, "openxla/xla"),
        mechanism=(
            "The engine looks up a plan by the host address of the buffer it was made "
            "from. When the buffer is rewritten at the same address, the engine reuses "
            "the plan of an earlier batch."
        ),
        expected=seen("logits_parity", "decode"),
        parts=(PlansByHostAddress,),
    ),
    Bug(
        name="draft_lists_of_one_branch",
        thread=pull(27338),
        mechanism=(
            "The buffer for the slots that a draft reads has room for one branch of each request, "
            "but each branch has its own list. Long requests write beyond its end. Chains fit."
        ),
        expected=seen("live_inputs", *DRAFTS),
        parts=(ListsOneBranch,),
    ),
    Bug(
        name="chain_lists_not_rebuilt",
        thread=pull(38311, "vllm-project/vllm"),
        mechanism=(
            "A replay of a chain of drafts rebuilds the attention metadata of its first forward "
            "only. The later forwards read the lists of the capture, so later drafts are wrong."
        ),
        expected=seen("logits_parity", "eagle_draft"),
        parts=(PlansFirstForward,),
        topk=CHAIN.topk,
    ),
)
