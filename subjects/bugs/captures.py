"""Graphs that contain state of their capture, and metadata that a replay does not rebuild."""

import torch
from paritybit.reference.config import DRAFT_TOKENS
from paritybit.subjects.bugs.bug import Bug, pull, seen
from paritybit.subjects.key_lists import ENDS, Lists
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.runners.eagle_draft import EagleDraftRunner
from paritybit.subjects.runners.eagle_draft_extend import EagleDraftExtendRunner
from torch import Tensor


class UniformQueries(EagleDraftExtendRunner):
    def query_ends(self, counts: Tensor) -> Tensor:
        longest = torch.full_like(counts, DRAFT_TOKENS)
        return longest.cumsum(0) - longest + counts


class PlansByHostAddress(GraphRunner):
    def key_lists(self, bucket: int) -> Lists:
        if bucket not in self.captured:
            return super().key_lists(bucket)
        lengths = self.view("seq_lens_cpu", bucket)
        key = lengths.data_ptr(), lengths.numel()
        plans = self.state or {}
        if key not in plans:
            self.state = plans = {**plans, key: super().key_lists(bucket)}
        plan: Lists = plans[key]
        return plan


class PlansFirstForward(EagleDraftRunner):
    def write_metadata(self, bucket: int) -> None:
        lists = self.key_lists(bucket)
        if len(self.captured) == len(self.buckets):
            lists |= {name: lists[name][:bucket] for name in ENDS}
        self.metadata.write(lists)


BUGS = (
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
        name="draft_lists_not_rebuilt",
        thread=pull(38311, "vllm-project/vllm"),
        mechanism=(
            "A replay of a draft rebuilds the attention metadata of its first forward only. The "
            "later forwards read the lists of the capture, so later drafts are wrong."
        ),
        expected=seen("logits_parity", "eagle_draft"),
        parts=(PlansFirstForward,),
    ),
)
