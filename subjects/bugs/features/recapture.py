"""Outputs of a graph that an engine keeps."""

from typing import Any

from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.model import Output
from paritybit.subjects.bugs.bug import Bug, pull
from paritybit.subjects.parts import Part
from paritybit.subjects.runners.decode import DecodeRunner
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

FAMILY = "kept outputs"


class KeepsOutputView(DecodeRunner):
    """A runner that takes the next input tokens from the output of the previous replay.

    It keeps a view of that output, which the next replay of the graph overwrites.
    """

    sampled: tuple[dict[tuple[int, int], int], Tensor] | None = None

    def live_values(self, batch: ForwardBatch | None, bucket: int) -> dict[str, Tensor]:
        """Return the batch's tensors, with the tokens of continuing requests."""
        found = super().live_values(batch, bucket)
        if batch is not None and self.sampled is not None:
            rows, logits = self.sampled
            keys = [(span.row, span.begin) for span in batch.spans]
            if all(key in rows for key in keys):
                found["input_ids"] = logits[[rows[key] for key in keys]].argmax(-1)
        return found

    def launch(self, batch: ForwardBatch | None, bucket: int, *, captured: bool = True) -> Output:
        """Run the graph, and keep its output."""
        output = super().launch(batch, bucket, captured=captured)
        if batch is not None:
            rows = {(span.row, span.end): place for place, span in enumerate(batch.spans)}
            self.sampled = rows, output["logits"]
        return output

    @property
    def state(self) -> Any:
        """The view, and the request of each row."""
        return self.sampled

    @state.setter
    def state(self, state: Any) -> None:
        self.sampled = state


BUGS = (
    Bug(
        name="output_view_kept",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("vllm-project/vllm", 53520),
        mechanism=(
            "The engine keeps a view of a graph's output and reads it after other work has "
            "used its memory again. It then reads the output of another replay."
        ),
        parts={Part.RUNNER: KeepsOutputView},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
    ),
)
