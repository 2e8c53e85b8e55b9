"""The breakable runner: one captured forward, split into segments at attention."""

from paritybit.reference.model import Heads, Output, TokenInputs
from paritybit.subjects.graphs.capture import Capture
from paritybit.subjects.runners.prefill import PrefillRunner
from torch import Tensor


class BreakingAttention:
    """KV access whose attention breaks the capture: it runs eagerly, now and at each replay."""

    def __init__(self, runner: PrefillRunner, capture: Capture[Output] | None) -> None:
        self.runner = runner
        self.capture = capture

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the attention output. The break fills the rows of live tokens."""
        mixed = self.runner.output_buffer(query)

        def eager() -> None:
            self.runner.attend(layer, Heads(query, key, value), mixed)

        if self.capture is None:
            eager()
        else:
            self.capture.break_here(eager)
        return mixed


class BreakableRunner(PrefillRunner):
    """Prefill with one captured forward that is split at each attention op."""

    name = "breakable"
    shares_buffers = False

    def forward(self, bucket: int, capture: Capture[Output] | None = None) -> Output:
        """Run the forward over the static inputs, and break `capture` at attention."""
        tokens = TokenInputs(
            input_ids=self.view("input_ids", bucket),
            payload=self.view("input_embeds", bucket),
            positions=self.view("positions", bucket),
            mrope_positions=self.view("mrope_positions", bucket),
            live_tokens=self.scalar(bucket),
        )
        access = BreakingAttention(self, capture)
        return {"hidden": self.target.run_layers(self.ops, tokens, access)}

    def capture(self, bucket: int) -> Capture[Output]:
        """Capture one forward in segments."""
        capture: Capture[Output] = self.new_capture()
        return capture.run(lambda: self.forward(bucket, capture))
