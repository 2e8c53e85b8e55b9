"""The verify runner: decode with k draft tokens per request and a tree mask."""

import torch
from paritybit.reference.batch import Mode
from paritybit.reference.config import SPECULATION
from paritybit.reference.state_pool import StatePaths
from paritybit.subjects.contracts import Axis, Extents, keep
from paritybit.subjects.key_lists import verify_keys, verify_lists, verify_sizes
from paritybit.subjects.protocol import KeyLists
from paritybit.subjects.runners.decode import ROWS, DecodeRunner
from paritybit.subjects.states import parents_in_tree, verify_paths
from torch import Tensor


class TargetVerifyRunner(DecodeRunner):
    """Full-graph verification of a tree of draft tokens per request."""

    name = "target_verify"
    mode = Mode.TARGET_VERIFY
    rows = (*ROWS, keep("custom_mask", Axis.MASK, torch.bool))
    tokens_per_request = SPECULATION.draft_tokens

    def extents(self, bucket: int) -> Extents:
        """Return the extents of a bucket of requests, with k rows of mask bits per request."""
        bits = SPECULATION.draft_tokens * self.target.config.max_context
        return {**super().extents(bucket), Axis.MASK: bucket * bits}

    def metadata_sizes(self, bucket: int) -> dict[str, tuple[int, torch.dtype]]:
        """Return the buffers of the key lists, the page table and offsets, and the trees."""
        config = self.target.config
        parents = (bucket * SPECULATION.draft_tokens, torch.int64)
        sizes = verify_sizes(bucket, config.max_context, config.window)
        return {**sizes, "tree_parents": parents}

    def plan(self, bucket: int) -> None:
        """List the keys of every row, including drafts, and the parent of every draft."""
        lists = verify_lists(
            self.view("req_pool_indices", bucket),
            self.view("seq_lens", bucket),
            self.view("seq_lens_cpu", bucket),
            self.view("positions", bucket),
            self.window,
            self.pool,
            self.toggles,
        )
        parents = parents_in_tree(
            self.view("custom_mask", bucket), lists["mask_indptr"], self.view("seq_lens", bucket)
        )
        self.metadata.write({**lists, "tree_parents": parents})

    def state_paths(self, bucket: int) -> StatePaths:
        """Return the paths of the recurrent states of a bucket's draft tokens."""
        parents = self.metadata.buffers["tree_parents"][: self.live_rows(bucket)]
        return verify_paths(self.view("mamba_track_indices", bucket), parents)

    def keys(self, bucket: int) -> KeyLists:
        """Return the static keys and mask that a bucket's graph reads."""
        tokens = self.live_rows(bucket)
        mask: Tensor = self.view("custom_mask", bucket)
        return verify_keys(self.metadata.buffers, tokens, mask, self.target.config.window)
