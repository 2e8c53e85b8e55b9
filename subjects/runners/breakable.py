"""The breakable runner: prefill by one captured forward, split into segments at attention."""

from paritybit.subjects.runners.prefill import PrefillRunner


class BreakableRunner(PrefillRunner):
    """Prefill over static buffers of its own."""

    name = "breakable"
    shares_buffers = False
