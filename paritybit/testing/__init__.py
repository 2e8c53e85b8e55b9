"""Checks of the sanitizer for an engine's own tests, in pytest or unittest.

`check_replay` judges one replay of a CUDA graph over KV tensors that a test holds. `watching`
watches whole engines while a block runs. `pytest -p paritybit` does so for each test.
"""

from paritybit.testing.blocks import watching
from paritybit.testing.outcome import UndecidedError
from paritybit.testing.replays import check_replay
from paritybit.watch.facts import StaticInput

__all__ = ["StaticInput", "UndecidedError", "check_replay", "watching"]
