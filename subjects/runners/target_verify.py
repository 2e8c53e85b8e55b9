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
from paritybit.subjects.states import parents_in_tree, verify_paths
from paritybit.subjects.toggles import Site


class TargetVerifyRunner(DecodeRunner):
    """Full-graph verification of a tree of draft tokens per request."""

    name = "target_verify"
    mode = Mode.TARGET_VERIFY
    rows = (*ROWS, keep("custom_mask", Axis.MASK, torch.bool))

    tokens_per_request = SPECULATION.draft_tokens
    lists_per_request = True

    def metadata_sizes(self, bucket: int) -> dict[str, tuple[int, torch.dtype]]:
        """Return the buffers of the key lists, of the places in the mask, and of the trees."""
        per_draft = self.listed_tokens(bucket), torch.int64
        names = (*MASK_STARTS, "tree_parents")
        return {**super().metadata_sizes(bucket), **dict.fromkeys(names, per_draft)}

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
        """Return the metadata of all drafts, and the parent of each in its tree.

        The window's lists are translated to SWA slots since PR 24617.
        """
        if Site.TRANSLATE_VERIFY in self.toggles.sites:
            lists = super().key_lists(bucket)
        else:
            lists = list_keys(self.queries(bucket), self.window, self.pool.pool.req_to_token)
        mask, lengths = self.view("custom_mask", bucket), self.view("seq_lens", bucket)
        return {**lists, "tree_parents": parents_in_tree(mask, lists[MASK_STARTS[0]], lengths)}

    def state_paths(self, bucket: int) -> StatePaths:
        """Return the paths of the recurrent states of a bucket's draft tokens."""
        parents = self.metadata.buffers["tree_parents"][: self.live_rows(bucket)]
        return verify_paths(self.view("mamba_track_indices", bucket), parents)

    def static_keys(self, bucket: int) -> KeyLists:
        """Return the key lists and the mask that a bucket's graph reads."""
        return replace(super().static_keys(bucket), mask=self.view("custom_mask", bucket))
