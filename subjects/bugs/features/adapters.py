"""LoRA adapters per row, in graphs that were captured with none or with one."""

import torch
from paritybit.reference.batch import Mode
from paritybit.reference.config import Feature
from paritybit.subjects.bugs.bug import THREAD, Bug
from paritybit.subjects.bugs.captured_state import unrecorded
from paritybit.subjects.contracts import Policy
from paritybit.subjects.parts import Part
from paritybit.subjects.runners.decode import DecodeRunner
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

FAMILY = "adapters under graphs"

LORA = frozenset({Feature.LORA})


class RunsFirstSegment(DecodeRunner):
    """A runner whose grid covers one segment of rows with the same adapter, as at capture."""

    def adapters(self, bucket: int) -> Tensor:
        """Return each token's adapter: none after the first segment."""
        adapters = super().adapters(bucket)
        return torch.where(adapters == adapters[:1], adapters, 0)


class MapsTokensAsRequests(DecodeRunner):
    """A runner that lays out adapters for one token per request."""

    def adapters(self, bucket: int) -> Tensor:
        """Return each token's adapter: token i has request i's, later ones none."""
        adapters = torch.zeros_like(self.per_token("lora_ids", bucket))
        adapters[:bucket] = self.view("lora_ids", bucket)
        return adapters


class WarmsUpWithoutAdapters(DecodeRunner):
    """A runner that reads its adapters outside of what a graph records."""

    def adapters(self, bucket: int) -> Tensor:
        """Return each token's adapter at capture."""
        with unrecorded(self.target.device):
            return super().adapters(bucket).clone()


BUGS = (
    Bug(
        name="adapters_pad",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(29872),
        mechanism=(
            "The tail of the adapter metadata is not neutralised when the batch is padded. "
            "Padded rows apply the adapters of an earlier, fuller batch."
        ),
        rows={"lora_ids": {"policy": Policy.KEEP}},
        modes=frozenset({Mode.DECODE}),
        features=LORA,
    ),
    Bug(
        name="adapter_segments_baked",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(28371),
        mechanism=(
            "The launch grid covers the number of adapter segments of the capture, which is "
            "one. At replay, the rows of all further segments get no adapter."
        ),
        parts={Part.RUNNER: RunsFirstSegment},
        needs=("lora_ids",),
        features=LORA,
    ),
    Bug(
        name="adapters_of_one_token",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(12903),
        mechanism=(
            "The adapter metadata assumes one token per request, but a verify runs several. "
            "Most draft tokens get the adapter of another request, or none."
        ),
        parts={Part.RUNNER: MapsTokensAsRequests},
        modes=frozenset({Mode.TARGET_VERIFY}),
        features=LORA,
    ),
    Bug(
        name="adapters_absent_at_capture",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread="https://github.com/huggingface/text-generation-inference/pull/2180",
        mechanism=(
            "The warm-up before the capture has no adapters, and replays do not update them. "
            "The graph ignores the adapter of every request."
        ),
        parts={Part.RUNNER: WarmsUpWithoutAdapters},
        needs=("lora_ids",),
        modes=frozenset({Mode.DECODE}),
        features=LORA,
    ),
)
