"""The table of legs: settings with which continuous batching is served, each in one process.

Only models in which all layers have full attention share prefixes.
"""

from paritybit.drive.legs import Leg

LEGS = (
    Leg("sliding window", ("--page-size", "16"), 3.0),
    Leg("shared prefixes", ("--full", "--page-size", "16"), 3.0),
    Leg("small pages", ("--page-size", "4", "--scheduler", "prefill_first")),
    Leg("no graphs", ("--no-graphs", "--page-size", "16"), replays=False),
    Leg("several samples", ("--full", "--samples", "3", "--page-size", "16"), 2.0),
    Leg("several samples of windows", ("--samples", "2", "--page-size", "6")),
    Leg("attention sinks", ("--model", "gpt_oss", "--page-size", "64")),
    Leg("offload to the host", ("--offload", "--page-size", "16")),
    Leg("overlap", ("--overlap", "--page-size", "16"), 2.0),
    Leg("actions", ("--full", "--actions", "--page-size", "16")),
    Leg("no prefix cache", ("--full", "--no-prefix-cache", "--page-size", "16")),
    Leg("overlap of shared prefixes", ("--full", "--overlap", "--page-size", "16")),
    Leg(
        "overlap of several samples",
        ("--full", "--overlap", "--samples", "3", "--offload", "--page-size", "16"),
        2.0,
    ),
)
"""The legs in order, with their shares of the time."""
