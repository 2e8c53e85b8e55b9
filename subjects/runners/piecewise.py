"""The piecewise runner: the model is split at attention ahead of time, with one graph per piece."""

from collections.abc import Callable

from paritybit.reference.model import Output, TokenInputs
from paritybit.subjects.graphs.capture import Capture
from paritybit.subjects.graphs.pieces import CutModel, PieceOutput
from paritybit.subjects.runners.prefill import PrefillRunner


class PiecewiseRunner(PrefillRunner):
    """Prefill with one graph for each piece of the model between two attention ops."""

    name = "piecewise"

    def forward(self, bucket: int) -> Output:
        """Run the pieces, and attention between them, over the static inputs."""
        left = self._first(bucket)
        for layer in range(len(self.target.layers) - 1):
            self.attend(layer, left.heads, left.mixed)
            left = self._middle(bucket, layer, left)
        self.attend(len(self.target.layers) - 1, left.heads, left.mixed)
        return self._last(bucket, left)

    def capture(self, bucket: int) -> Capture[Output]:
        """Capture each piece as its own graph, in the order in which they run."""
        whole: Capture[Output] = self.new_capture()
        left = self._captured(whole, lambda: self._first(bucket))
        for layer in range(len(self.target.layers)):
            whole.breaks.append(self._attention(layer, left))
            if layer + 1 < len(self.target.layers):
                left = self._captured(whole, self._piece(bucket, layer, left))
        before_last = left
        piece: Capture[Output] = self.new_capture()
        whole.output = piece.run(lambda: self._last(bucket, before_last)).output
        whole.segments += piece.segments
        return whole

    def _captured(self, whole: Capture[Output], function: Callable[[], PieceOutput]) -> PieceOutput:
        piece: Capture[PieceOutput] = self.new_capture()
        left = piece.run(function).output
        whole.segments += piece.segments
        return left

    def _piece(self, bucket: int, layer: int, left: PieceOutput) -> Callable[[], PieceOutput]:
        return lambda: self._middle(bucket, layer, left)

    def _attention(self, layer: int, left: PieceOutput) -> Callable[[], None]:
        return lambda: self.attend(layer, left.heads, left.mixed)

    @property
    def _cut(self) -> CutModel:
        """The model, split at attention. Its attention output is one of this runner's buffers."""
        return CutModel(self.target, self.ops, lambda layer, heads: self.output_buffer(heads.query))

    def _first(self, bucket: int) -> PieceOutput:
        """Run everything before the first attention."""
        tokens = TokenInputs(
            input_ids=self.view("input_ids", bucket),
            payload=self.view("input_embeds", bucket),
            positions=self.view("positions", bucket),
            mrope_positions=self.view("mrope_positions", bucket),
            live_tokens=self.scalar(bucket),
        )
        return self._cut.first(tokens)

    def _middle(self, bucket: int, layer: int, left: PieceOutput) -> PieceOutput:
        """Run everything between the attention of `layer` and the next one."""
        return self._cut.between(layer, left, self.scalar(bucket))

    def _last(self, bucket: int, left: PieceOutput) -> Output:
        """Run everything after the last attention."""
        last = len(self.target.layers) - 1
        return {"hidden": self._cut.after(last, left, self.scalar(bucket))}
