"""The table of legs: settings with which vLLM is served by default, each in one process."""

from paritybit.drive.legs import Leg

LEGS = (
    Leg("decode graphs", (), 2.0),
    Leg("async scheduling", ("--overlap",), 2.0),
    Leg("newer runner", ("--runner", "2"), 2.0),
    Leg("newer runner async", ("--runner", "2", "--overlap"), 2.0),
    # Only batches whose requests all have the most drafts replay a graph.
    Leg("n-gram speculation", ("--speculative", "ngram"), replays=False),
    Leg("newer runner n-gram speculation", ("--runner", "2", "--speculative", "ngram")),
    Leg(
        "newer runner async n-gram speculation",
        ("--runner", "2", "--speculative", "ngram", "--overlap", "--actions"),
    ),
    Leg("EAGLE", ("--speculative", "eagle")),
    Leg("EAGLE async", ("--speculative", "eagle", "--overlap")),
    Leg("newer runner EAGLE", ("--runner", "2", "--speculative", "eagle")),
    Leg("newer runner EAGLE async", ("--runner", "2", "--speculative", "eagle", "--overlap")),
    Leg("block size 32", ("--page-size", "32")),
    Leg("window of three blocks", ("--window", "40")),
    Leg("no prefix cache", ("--no-prefix-cache",)),
    Leg("attention sinks", ("--model", "gpt_oss"), device="cpu"),
    Leg("actions", ("--actions",)),
    Leg("newer runner actions", ("--runner", "2", "--overlap", "--actions")),
    Leg("full graphs", ("--graphs", "full", "--overlap")),
    Leg("breakable graphs", ("--graphs", "breakable")),
    Leg("newer runner breakable graphs", ("--runner", "2", "--graphs", "breakable")),
    Leg("FlashAttention", ("--backend", "flash"), 2.0, device="cuda"),
    Leg("FlashAttention EAGLE", ("--backend", "flash", "--speculative", "eagle"), device="cuda"),
    Leg(
        "FlashAttention full graphs",
        ("--backend", "flash", "--graphs", "full", "--overlap"),
        device="cuda",
    ),
    Leg(
        "FlashAttention newer runner",
        ("--backend", "flash", "--runner", "2", "--overlap"),
        device="cuda",
    ),
    Leg("piecewise graphs", ("--graphs", "piecewise"), device="cuda"),
    Leg(
        "full and piecewise graphs",
        ("--backend", "flash", "--graphs", "mixed", "--overlap"),
        device="cuda",
    ),
)
"""The legs in order, with their shares of the time."""
