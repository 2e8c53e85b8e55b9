"""The settings that a whole sglang is served with by default, one process each: a table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

LACKING = 4
"""Exit code of a leg that the release cannot be served with; the last line it prints says why."""


class LackingError(ValueError):
    """A setting that a release, or a model, does not have."""


@dataclass(frozen=True)
class Leg:
    """One way to serve an engine: its name, its options, and its part of the time.

    `device` is the only device that can be served so; None means any.
    """

    name: str
    arguments: tuple[str, ...] = ()
    share: float = 1.0
    seconds: float = 0.0
    device: str | None = None


LEGS = (
    Leg("decode graphs", (), 3.0),
    Leg("overlap", ("--overlap",), 2.0),
    Leg("page size 16", ("--page-size", "16")),
    Leg("page size 64", ("--page-size", "64", "--overlap")),
    Leg("no prefix cache", ("--no-prefix-cache",)),
    Leg("attention sinks", ("--model", "gpt_oss", "--whole-prompts")),
    Leg("widths of K and V", ("--model", "mimo", "--overlap")),
    Leg("EAGLE topk 1", ("--model", "gpt_oss", "--speculative", "eagle", "--page-size", "16")),
    Leg("EAGLE page size 4", ("--model", "gpt_oss", "--speculative", "eagle", "--page-size", "4")),
    Leg("EAGLE topk 2", ("--model", "gpt_oss", "--speculative", "eagle", "--topk", "2")),
    Leg("EAGLE overlap", ("--model", "gpt_oss", "--speculative", "eagle", "--overlap")),
    Leg(
        "draft model",
        ("--model", "gpt_oss", "--speculative", "standalone", "--topk", "2", "--overlap"),
    ),
    Leg("each request alone", ("--alone",)),
    Leg("breakable prefill graphs", ("--graphs", "breakable")),
)
"""What is tried on any device, in this order, with parts of the time."""


def plan(device: str, seconds: float, legs: Sequence[Leg] = LEGS) -> tuple[Leg, ...]:
    """Return the legs of a device, whose seconds add up to the given ones."""
    mine = [leg for leg in legs if leg.device in (None, device)]
    total = sum(leg.share for leg in mine)
    return tuple(replace(leg, seconds=seconds * leg.share / total) for leg in mine)
