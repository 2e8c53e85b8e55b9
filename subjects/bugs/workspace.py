"""Workspaces whose memory has been given to others when a graph uses it."""

from typing import Any

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.model import Output
from paritybit.subjects.bugs.bug import Bug, pull
from paritybit.subjects.bugs.expected import DECODE, VERIFY, seen
from paritybit.subjects.parts import Part
from paritybit.subjects.runners.decode import DecodeRunner
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

FAMILY = "freed workspace"


class Blocks:
    """Device memory of a caching allocator, which returns the smallest free block that fits."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self.free: tuple[Tensor, ...] = ()

    def take(self, elements: int) -> Tensor:
        """Return a block of at least `elements` elements. A new one is zero."""
        large_enough = [block for block in self.free if block.numel() >= elements]
        if not large_enough:
            return torch.zeros(elements, dtype=self.dtype, device=self.device)
        taken = min(large_enough, key=Tensor.numel)
        self.free = tuple(block for block in self.free if block is not taken)
        return taken

    def give(self, block: Tensor) -> None:
        """Free a block, so that it can be taken again."""
        self.free = (block, *self.free)


class SplitLogits(DecodeRunner):
    """A runner whose logits are added up in a workspace, like the parts of a split product.

    The kernel expects zeros there and leaves zeros behind. The sampler runs after the graph, takes
    a block and frees it without clearing it. This class is correct: the workspace fits the largest
    bucket and is never given to others.
    """

    def capture_all(self) -> None:
        """Capture every bucket, with a workspace that all graphs share."""
        self.blocks = Blocks(self.target.dtype, self.target.device)
        self.workspace = self.blocks.take(self.elements(self.buckets[self.sized_for]))
        super().capture_all()

    sized_for = -1
    """Index of the bucket that determines the size of the workspace. -1 is the largest."""

    def elements(self, requests: int) -> int:
        """Return the number of logits for `requests` requests."""
        return self.live_rows(requests) * self.target.config.vocab

    def forward(self, bucket: int) -> Output:
        """Return the runner's output, with logits added up in the workspace."""
        output = super().forward(bucket)
        logits = output["logits"]
        parts = self.reserved(logits.numel())
        parts.add_(logits.flatten())
        total = parts.clone()
        parts.zero_()
        return {**output, "logits": total.view(logits.shape)}

    def reserved(self, elements: int) -> Tensor:
        """Return the first elements of the workspace."""
        return self.workspace[:elements]

    def launch(self, batch: ForwardBatch | None, bucket: int, *, captured: bool = True) -> Output:
        """Run the graph, then sample from its logits."""
        output = super().launch(batch, bucket, captured=captured)
        self.sample(output["logits"], bucket)
        return output

    def sample(self, logits: Tensor, bucket: int) -> None:
        """Take a block that fits a bucket, and free it."""
        scratch = self.blocks.take(self.elements(bucket))
        scratch[: logits.numel()] = logits.flatten()
        self.blocks.give(scratch)

    @property
    def state(self) -> Any:
        """The owner of each block. All blocks are zero after capture."""
        return self.workspace, self.blocks.free

    @state.setter
    def state(self, state: Any) -> None:
        self.workspace, self.blocks.free = state
        for block in (self.workspace, *self.blocks.free):
            block.zero_()


class GrowingWorkspace(SplitLogits):
    """A workspace that is freed and replaced by a larger one when it is too small."""

    def reserved(self, elements: int) -> Tensor:
        """Return the first elements of the workspace. Grows it if needed."""
        if self.workspace.numel() < elements:
            self.blocks.give(self.workspace)
            self.workspace = self.blocks.take(elements)
        return super().reserved(elements)


class RegrownByCapture(GrowingWorkspace):
    """Captures small graphs first. Each larger capture frees the workspace of the earlier ones."""

    sized_for = 0

    def capture_order(self) -> tuple[int, ...]:
        """Return the buckets from the smallest to the largest."""
        return self.buckets


BUGS = (
    Bug(
        name="workspace_regrown_by_capture",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("vllm-project/vllm", 46067),
        mechanism=(
            "Decode takes scratch memory from a workspace that grows. Graphs are captured "
            "from the smallest up, and each larger one frees the workspace that smaller "
            "ones have recorded. Those keep using memory that now belongs to others."
        ),
        expected=seen("logits_parity", DECODE, VERIFY),
        parts={Part.RUNNER: RegrownByCapture},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE, Mode.TARGET_VERIFY}),
    ),
)
