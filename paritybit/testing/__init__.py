"""Checks of the sanitizer for an engine's own tests, in pytest or unittest.

`check_replay` judges one replay of a CUDA graph over KV tensors that a test holds. For a whole
engine, run the tests under `paritybit watch`. `laws` tests a connector.
"""

from paritybit.testing.conformance import laws
from paritybit.testing.replays import UndecidedError, check_replay
from paritybit.watch.facts import StaticInput

__all__ = ["StaticInput", "UndecidedError", "check_replay", "laws"]
