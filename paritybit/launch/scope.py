"""Lists what a run did not test."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from paritybit.drive.operating.actions import COUNT
from paritybit.launch.schema import Untried
from paritybit.watch.settings import NOT_TRIED, RANKS_DISAGREE, TRIED

STATES: Mapping[str, tuple[str, str]] = {
    "padded_replays": ("padded replays", "each replay filled its bucket"),
    "shared_reads": ("reads of a slot that another request wrote", "no prefix was shared"),
    "list_entries": ("index lists of attention kernels", "no list was seen"),
    "idle": ("leaks", "the engine was never seen idle"),
}
"""Maps a count to what was not reached if it is zero, and the reason."""

PARTS: Mapping[str, tuple[str, str]] = {
    "skipped_forwards": ("forward passes", "not selected by --every or --overhead"),
    "ends_of_chunks": (
        "tokens after a part of a prompt, as a draft model is given them",
        "the older runner of vLLM gives the prompt's last token, not the next one",
    ),
    "unresolved_reads": ("owners of reads", "the tokens were not known at that time"),
}
"""Maps a count to what was not reached if it is not zero, and the reason."""

PAIRS, SERVED_PAIRS = "pairs of settings", "served pairs of settings"
"""The counts of the pairs of settings of the covering array, and of those served."""

CUT_SHORT = "the time was over before it had served enough"
ENDED = "an error of the engine ended it before it had served enough"
"""Why a configuration was served in part."""

FEW = 3
"""The most configurations with one reason that are listed one by one."""


def not_tried(
    counts: Mapping[str, int],
    unselected: Iterable[str] = (),
    configs: Mapping[str, str] | None = None,
    kernels: Sequence[str] = (),
    ranks: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> Iterator[Untried]:
    """Yield what the verdict does not cover, over all processes.

    `unselected` checks were switched off. `configs` has the configurations that were not served, or
    in part, with the reasons. `kernels` never ran. `ranks` has the counts of each rank.
    """
    yield from not_served(configs or {})
    if missing := counts.get(PAIRS, 0) - counts.get(SERVED_PAIRS, 0):
        what = f"{missing} of {counts[PAIRS]} {PAIRS}"
        yield Untried(what, "no configuration with both settings was served")
    for check in unselected:
        yield Untried(f"check: {check}", "not selected by --checks")
    yield from not_compared(counts)
    for name, (what, why) in PARTS.items():
        if counts.get(name):
            yield Untried(f"{counts[name]:,} {what}", why)
    for name, (what, why) in STATES.items():
        if not counts.get(name):
            yield Untried(what, why)
    if kernels:
        what = f"{len(kernels)} Triton kernels, or functions of kernels"
        yield Untried(what, f"no request that was served ran them: {', '.join(kernels)}")
    for name, number in counts.items():
        if name.startswith(COUNT) and not number:
            yield Untried(name, "the release lacks it, or the run was too short")
    for rank, mine in ranks.items():
        yield from not_in_rank(rank, mine, counts)


def not_in_rank(rank: str, mine: Mapping[str, int], counts: Mapping[str, int]) -> Iterator[Untried]:
    """Yield what a rank did not reach, and another one did."""
    for name, (what, why) in STATES.items():
        if counts.get(name) and not mine.get(name):
            yield Untried(f"{what} in rank {rank}", why)
    for name, number in counts.items():
        check = name.removeprefix(TRIED)
        if name.startswith(TRIED) and number and not mine.get(name) and check != RANKS_DISAGREE:
            yield Untried(f"check: {check} in rank {rank}", "it compared nothing there")


def not_compared(counts: Mapping[str, int]) -> Iterator[Untried]:
    """Yield each check that compared nothing in the whole run, and comparisons that proved nothing.

    The latter have counts "not tried: CHECK: REASON".
    """
    reasons: dict[str, dict[str, int]] = {}
    for name, number in counts.items():
        if name.startswith(NOT_TRIED):
            check, _, reason = name.removeprefix(NOT_TRIED).partition(": ")
            reasons.setdefault(check, {})[reason] = number
    for name, number in counts.items():
        if name.startswith(TRIED) and not number:
            check = name.removeprefix(TRIED)
            why = "; ".join(reasons.pop(check, {}))
            yield Untried(f"check: {check}", why or "it compared nothing")
    for check, why_not in reasons.items():
        for reason, number in why_not.items():
            yield Untried(f"{number:,} comparisons of {check}", reason)


def not_served(configs: Mapping[str, str]) -> Iterator[Untried]:
    """Yield the configurations that were not served, with many of them in one entry per reason."""
    reasons: dict[str, list[str]] = {}
    for name, why in configs.items():
        reasons.setdefault(why, []).append(name)
    for why, names in reasons.items():
        if len(names) > FEW:
            part = "parts of " if why == CUT_SHORT else ""
            what = f"{part}{len(names)} configurations ({why})"
            yield Untried(what, "; ".join(names), tuple(names))
        else:
            yield from (Untried(f"configuration {name}", why, (name,)) for name in names)
