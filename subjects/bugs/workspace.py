"""Workspaces whose memory is another's by the time that a graph uses them."""

from typing import Any

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.model import Output
from paritybit.subjects.bugs.bug import Bug, pull
from paritybit.subjects.engine import Engine
from paritybit.subjects.parts import Part
from paritybit.subjects.protocol import Forward, Overrides
from paritybit.subjects.runners.base import NOTHING_OVERRIDDEN
from paritybit.subjects.runners.decode import DecodeRunner
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

FAMILY = "freed workspace"

EAGER_SPLIT = 4
"""Into how many parts an eager product is split, each as large as its result."""


class Blocks:
    """Device memory as a caching allocator hands it out: the smallest free block that will do."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self.free: tuple[Tensor, ...] = ()

    def take(self, elements: int) -> Tensor:
        """Return a block of at least that many elements; a new one is zero."""
        large_enough = [block for block in self.free if block.numel() >= elements]
        if not large_enough:
            return torch.zeros(elements, dtype=self.dtype, device=self.device)
        taken = min(large_enough, key=Tensor.numel)
        self.free = tuple(block for block in self.free if block is not taken)
        return taken

    def give(self, block: Tensor) -> None:
        """Free a block: whoever takes next may get it."""
        self.free = (block, *self.free)


class SplitLogits(DecodeRunner):
    """A runner whose logits are added up in a workspace, as the parts of a split product are.

    The kernel relies on finding zeros there and leaves zeros behind. The sampler, which runs
    after the graph, takes a block for what it needs and gives it back as it is. So it is right:
    the workspace is as large as the largest bucket needs, and never another's.
    """

    def capture_all(self) -> None:
        """Capture every bucket, with a workspace that all graphs share."""
        self.blocks = Blocks(self.target.dtype, self.target.device)
        self.workspace = self.blocks.take(self.elements(self.buckets[self.sized_for]))
        super().capture_all()

    sized_for = -1
    """Which of the buckets the workspace is made for, the largest."""

    def elements(self, requests: int) -> int:
        """Return how many logits so many requests have."""
        return self.live_rows(requests) * self.target.config.vocab

    def forward(self, bucket: int) -> Output:
        """Return what the runner does, its logits added up in the workspace."""
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
        """Use a block that is large enough for a bucket, and give it back."""
        scratch = self.blocks.take(self.elements(bucket))
        scratch[: logits.numel()] = logits.flatten()
        self.blocks.give(scratch)

    @property
    def state(self) -> Any:
        """Who has which block; all are zero when just captured."""
        return self.workspace, self.blocks.free

    @state.setter
    def state(self, state: Any) -> None:
        self.workspace, self.blocks.free = state
        for block in (self.workspace, *self.blocks.free):
            block.zero_()


class GrowingWorkspace(SplitLogits):
    """A workspace that is freed, and a larger one taken, when more is needed than it holds."""

    def reserved(self, elements: int) -> Tensor:
        """Return the first elements of the workspace, after it has grown if it must."""
        if self.workspace.numel() < elements:
            self.blocks.give(self.workspace)
            self.workspace = self.blocks.take(elements)
        return super().reserved(elements)


class RegrownByCapture(GrowingWorkspace):
    """Small graphs are captured first: the capture of each larger one frees what they hold."""

    sized_for = 0

    def capture_order(self) -> tuple[int, ...]:
        """Return the buckets from the smallest to the largest."""
        return self.buckets


class EagerWorkspace(Engine):
    """An engine whose eager products use the workspace that the graphs have recorded."""

    def forward(
        self,
        batch: ForwardBatch | None,
        idle: Mode = Mode.DECODE,
        overrides: Overrides = NOTHING_OVERRIDDEN,
    ) -> Forward:
        """Run one forward; a prefill's product first asks for a workspace of its size.

        Its sampler takes what that of the largest bucket does.
        """
        shared = self.under_test
        if batch is None or batch.mode is not Mode.EXTEND or not isinstance(shared, SplitLogits):
            return super().forward(batch, idle, overrides)
        shared.reserved(EAGER_SPLIT * batch.live_tokens * shared.target.config.vocab)
        forward = super().forward(batch, idle, overrides)
        shared.sample(forward.output["logits"], shared.buckets[-1])
        return forward


class FreedWithFirstGraph(SplitLogits):
    """The workspace lies in the memory of the graph captured first, of which a cache has too many.

    The cache holds one graph less than there are buckets. The one that it drops is the first;
    its batches run in the next larger bucket.
    """

    def capture_order(self) -> tuple[int, ...]:
        """Return the buckets from the smallest to the largest."""
        return self.buckets

    def capture_all(self) -> None:
        """Capture every bucket, then drop the first graph, and its memory."""
        super().capture_all()
        del self.captured[self.buckets[0]]
        self.buckets = self.buckets[1:]
        self.blocks.give(self.workspace)


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
        parts={Part.RUNNER: RegrownByCapture},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE, Mode.TARGET_VERIFY}),
    ),
    Bug(
        name="workspace_resized_by_eager",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("flashinfer-ai/flashinfer", 4553),
        mechanism=(
            "An eager matrix product that needs a larger workspace resizes the shared one "
            "in place. Its old memory is reused, but every graph still reads and writes "
            "it."
        ),
        parts={Part.RUNNER: GrowingWorkspace, Part.ENGINE: EagerWorkspace},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
    ),
    Bug(
        name="workspace_freed_with_graph",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("vllm-project/vllm-omni", 6587),
        mechanism=(
            "All graphs share a workspace that was allocated during the first capture, in "
            "that graph's memory. When the full graph cache drops the first graph, the "
            "others keep using the freed workspace."
        ),
        parts={Part.RUNNER: FreedWithFirstGraph},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
    ),
)
