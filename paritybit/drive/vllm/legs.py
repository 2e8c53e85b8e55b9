"""The settings that a whole vLLM is served with by default, one process each: a table."""

from paritybit.drive.legs import Leg

LEGS = (
    Leg("decode graphs", (), 2.0),
    Leg("async scheduling", ("--overlap",), 2.0),
    Leg("newer runner", ("--runner", "2"), 2.0),
    Leg("newer runner async", ("--runner", "2", "--overlap"), 2.0),
    Leg("block size 32", ("--page-size", "32")),
    Leg("no prefix cache", ("--no-prefix-cache",)),
    Leg("actions", ("--actions",)),
    Leg("newer runner actions", ("--runner", "2", "--overlap", "--actions")),
    Leg("full graphs", ("--graphs", "full", "--overlap")),
    Leg("breakable graphs", ("--graphs", "breakable")),
)
"""What is tried, in this order, with parts of the time."""
