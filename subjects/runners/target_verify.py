"""The verify runner: decode with k draft tokens per request and a tree mask."""

from dataclasses import replace

import torch
from paritybit.reference.batch import Mode
from paritybit.reference.config import SPECULATION
from paritybit.reference.model import StatePaths
from paritybit.subjects.contracts import Axis, keep
from paritybit.subjects.key_lists import MASK_STARTS, Lists, Queries, list_keys
from paritybit.subjects.protocol import KeyLists
from paritybit.subjects.runners.decode import ROWS, DecodeRunner
from paritybit.subjects.states import verify_paths
from paritybit.subjects.toggles import Site


class TargetVerifyRunner(DecodeRunner):
    """Full-graph verification of a tree of draft tokens per request."""

    name = "target_verify"
    mode = Mode.TARGET_VERIFY
    rows = (
        *ROWS,
        keep("custom_mask", Axis.MASK, torch.bool),
        keep("tree_parents", Axis.TOKEN, torch.int64),
    )

    tokens_per_request = SPECULATION.draft_tokens
    lists_per_request = True

    def metadata_sizes(self, bucket: int) -> dict[str, tuple[int, torch.dtype]]:
        """Return the buffers of the key lists and of the places in the mask."""
        per_draft = self.listed_tokens(bucket), torch.int64
        return {**super().metadata_sizes(bucket), **dict.fromkeys(MASK_STARTS, per_draft)}

    def queries(self, bucket: int) -> Queries:
        """Return what the drafts of a bucket attend to: their request's keys and drafts."""
        drafts = SPECULATION.draft_tokens
        return replace(
            super().queries(bucket),
            seq_lens=self.view("seq_lens", bucket) + drafts,
            seq_lens_cpu=self.view("seq_lens_cpu", bucket) + drafts,
            counts=drafts,
            counts_cpu=drafts,
            positions=self.view("positions", bucket),
        )

    def key_lists(self, bucket: int) -> Lists:
        """Return the metadata of all drafts, its window as SWA slots since PR 24617."""
        if Site.TRANSLATE_VERIFY in self.toggles.sites:
            return super().key_lists(bucket)
        return list_keys(self.queries(bucket), self.window, self.pool.pool.req_to_token)

    def state_paths(self, bucket: int) -> StatePaths:
        """Return the paths of the recurrent states of a bucket's draft tokens."""
        slots, parents = (
            self.view(name, bucket) for name in ("mamba_track_indices", "tree_parents")
        )
        return verify_paths(slots, parents)

    def static_keys(self, bucket: int) -> KeyLists:
        """Return the key lists and the mask that a bucket's graph reads."""
        return replace(super().static_keys(bucket), mask=self.view("custom_mask", bucket))
