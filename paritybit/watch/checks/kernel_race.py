"""Kernel race: warps of a kernel load a scalar that one of them overwrites."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, KernelRace, uncounted


def judge(race: KernelRace) -> Iterable[Finding]:
    """Yield the finding."""
    cause = {"what": f"{race.kernel} overwrites a scalar that its warps load", "source": race.load}
    file = race.load.rpartition(":")[0]
    place = f" at {shown(race.place, file)}" if race.place else ""
    yield race.found(
        CHECK.name,
        f"{race.kernel} loads a scalar at {race.load} and stores another value to its address "
        f"at {shown(race.store, file)}, with {race.warps} warps and no barrier in between; a warp "
        f"that loads the new value {race.effect}{place}; launch it with num_warps=1, or call "
        "tl.debug_barrier() before the store",
        cause=cause,
    )


def shown(source: str, file: str) -> str:
    """Return a line of a file as `line 12`, and a line of another file with its path."""
    path, _, line = source.rpartition(":")
    return f"line {line}" if path == file else source


CHECK = Check(
    "kernel race",
    "kernel",
    "no warp of a Triton kernel behaves in another way if it loads a scalar only after its program "
    "has overwritten it, and no barrier lies in between",
    judge,
    uncounted,
)
