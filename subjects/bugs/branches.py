"""Branches of drafts: code for one branch where there are several, or only for chains."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from paritybit.reference.batch import Mode
from paritybit.reference.config import CHAIN
from paritybit.subjects.bugs.bug import Bug, pull
from paritybit.subjects.bugs.expected import DRAFT, FROZEN, seen
from paritybit.subjects.key_lists import Lists
from paritybit.subjects.parts import Part
from paritybit.subjects.runners.base import GraphRunner, RunnerSpec
from paritybit.subjects.runners.eagle_draft import EagleDraftRunner
from paritybit.subjects.toggles import LocationScheme

FAMILY = "branches of drafts"


class ListsOneBranch(GraphRunner):
    """A runner whose list of slots has room for one branch per request."""

    def metadata_sizes(self, bucket: int) -> dict[str, tuple[int, torch.dtype]]:
        """Return the buffers of one key list per branch, with room for one branch."""
        sizes = super().metadata_sizes(bucket)  # type: ignore[safe-super]  # the runner's come next
        slots, dtype = sizes["kv_indices"]
        return {**sizes, "kv_indices": (slots // self.topk, dtype)}


class PlansFirstForward(EagleDraftRunner):
    """A runner that rebuilds only the lists of a draft's first forward."""

    def __init__(self, spec: RunnerSpec) -> None:
        super().__init__(spec)
        self.of_capture: dict[int, Lists] = {}

    def list_rows(self, bucket: int, lists: Callable[..., Lists]) -> None:
        """Write the key lists of a bucket's rows. Later forwards get those of the capture."""
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
        name="draft_lists_of_one_branch",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("sgl-project/sglang", 27338),
        mechanism=(
            "The buffer for the slots that a draft reads has room for one branch of each request, "
            "but each branch has its own list. Long requests write beyond its end. Chains fit."
        ),
        expected=seen("live_inputs", DRAFT, FROZEN),
        parts={Part.RUNNER: ListsOneBranch},
        modes=frozenset({Mode.DRAFT, Mode.FROZEN_DRAFT}),
    ),
    Bug(
        name="chain_lists_not_rebuilt",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("vllm-project/vllm", 38311),
        mechanism=(
            "A replay of a chain of drafts rebuilds the attention metadata of its first forward "
            "only. The later forwards read the lists of the capture, so later drafts are wrong."
        ),
        expected=seen("logits_parity", DRAFT),
        parts={Part.RUNNER: PlansFirstForward},
        modes=frozenset({Mode.DRAFT}),
        topk=CHAIN.topk,
    ),
)
