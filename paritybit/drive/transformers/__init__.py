"""Serves generated requests to a whole transformers: its continuous batching, with a tiny model.

As in the package above, which this one extends, an engine is started in a process of its own.
"""

from paritybit.engines.packages import Package

PACKAGE = Package(
    name="transformers",
    marker="generation/continuous_batching",
    example="5.24.0",
    oldest="5.19.0",
    walked=(),
    dependencies=(),
)
