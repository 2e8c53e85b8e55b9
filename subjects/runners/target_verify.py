"""The verify runner: decode with several tokens per request, its last one and its drafts."""

from dataclasses import replace

from paritybit.reference.batch import Mode
from paritybit.reference.config import DRAFT_TOKENS
from paritybit.reference.model import StatePaths
from paritybit.subjects.key_lists import Lists, Queries, list_keys
from paritybit.subjects.runners.decode import DecodeRunner
from paritybit.subjects.states import verify_paths
from paritybit.subjects.toggles import Site

from paritybit.compat import override


class TargetVerifyRunner(DecodeRunner):
    """Full-graph verification of the drafts of each request."""

    name = "target_verify"
    mode = Mode.TARGET_VERIFY
    tokens_per_request = DRAFT_TOKENS
    lists_per_request = True

    @override
    def queries(self, bucket: int) -> Queries:
        return replace(
            super().queries(bucket),
            seq_lens=self.view("seq_lens", bucket) + DRAFT_TOKENS,
            seq_lens_cpu=self.view("seq_lens_cpu", bucket) + DRAFT_TOKENS,
            counts=DRAFT_TOKENS,
            counts_cpu=DRAFT_TOKENS,
        )

    def key_lists(self, bucket: int) -> Lists:
        """Return the metadata of all drafts, its window as SWA slots since PR 24617."""
        if Site.TRANSLATE_VERIFY in self.toggles.sites:
            return super().key_lists(bucket)
        return list_keys(self.queries(bucket), self.window, self.pool.pool.req_to_token)

    @override
    def state_paths(self, bucket: int) -> StatePaths:
        return verify_paths(self.view("mamba_track_indices", bucket))
