"""Lists what a run did not test: unused settings, and states that it did not reach."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paritybit.drive.operating.actions import COUNT
from paritybit.launch.schema import Untried
from paritybit.watch.settings import NOT_TRIED, TRIED


@dataclass(frozen=True)
class SettingAxis:
    """A setting of an engine that changes which code runs, and the values to test.

    `values` maps each value, as the engine writes it in lower case, to a word for it.
    """

    name: str
    what: str
    values: Mapping[str, str]


ON_OFF: Mapping[str, str] = {"false": "on", "true": "off"}
"""The values of a setting that switches something off."""

ON: Mapping[str, str] = {"true": "on"}
"""The value of a setting that switches on something that is off by default."""

AXES = (
    SettingAxis("page_size", "page size", {"1": "1", "64": "64"}),
    SettingAxis("disable_overlap_schedule", "overlap scheduling", ON_OFF),
    SettingAxis("disable_radix_cache", "prefix cache", ON_OFF),
    SettingAxis("disable_piecewise_cuda_graph", "piecewise prefill graphs", ON_OFF),
    SettingAxis("speculative_algorithm", "speculation", {"none": "none", "eagle": "EAGLE"}),
    SettingAxis("speculative_eagle_topk", "branches of speculation (topk)", {"1": "1", "4": "4"}),
    SettingAxis("enable_mixed_chunk", "prefill and decode in one batch", ON),
    SettingAxis("enable_lora", "LoRA", ON),
    SettingAxis("enable_hierarchical_cache", "hierarchical cache", ON),
    SettingAxis("kv_cache_dtype", "dtype of the KV cache", {"auto": "auto", "fp8_e4m3": "FP8"}),
    SettingAxis("tp_size", "tensor parallelism", {"1": "1", "2": "2"}),
    SettingAxis("attention_backend", "attention backend", {"triton": "Triton", "fa3": "FA3"}),
    SettingAxis("device", "device", {"cpu": "CPU", "cuda": "CUDA"}),
)

STATES: Mapping[str, tuple[str, str]] = {
    "padded_replays": ("padded replays", "each replay filled its bucket"),
    "shared_reads": ("reads of a slot that another request wrote", "no prefix was shared"),
    "list_entries": ("index lists of attention kernels", "no list was seen"),
    "idle": ("leaks", "the engine was never seen idle"),
}
"""Maps a count to what was not reached if it is zero, and the reason."""

PARTS: Mapping[str, tuple[str, str]] = {
    "skipped_forwards": ("forward passes", "not selected by --every"),
    "ends_of_chunks": (
        "tokens after a part of a prompt, as a draft model is given them",
        "the older runner of vLLM gives the prompt's last token, not the next one",
    ),
    "unresolved_reads": ("owners of reads", "the tokens were not known at that time"),
}
"""Maps a count to what was not reached if it is not zero, and the reason."""

PAIRS, SERVED_PAIRS = "pairs of settings", "served pairs of settings"
"""The counts of the pairs of settings that the covering array has, and of those served."""

CUT_SHORT = "the time was over before it had served each kind of wave"
"""Why a row is listed that was served in part."""

FEW = 3
"""The most rows with one reason that are listed one by one."""

SPELLED: Mapping[str, str] = {"false": "off", "true": "on"}
"""Words for values of settings that have no word in AXES."""


def not_tried(
    settings: Mapping[str, Sequence[str]],
    counts: Mapping[str, int],
    unselected: Iterable[str] = (),
    rows: Mapping[str, str] | None = None,
    kernels: Sequence[str] = (),
) -> Iterator[Untried]:
    """Yield what the verdict does not cover, over all processes.

    `settings` has the values that were in use. `unselected` are the checks that were switched off.
    `rows` has the rows that were not served, or not as a whole, with the reasons. `kernels` are
    Triton kernels that no launch ran.
    """
    yield from not_served(rows or {})
    if missing_pairs := counts.get(PAIRS, 0) - counts.get(SERVED_PAIRS, 0):
        what = f"{missing_pairs} of {counts[PAIRS]} {PAIRS}"
        yield Untried(what, "no row with both settings was served")
    for check in unselected:
        yield Untried(f"check: {check}", "not selected by --checks")
    yield from not_compared(counts)
    for name, (what, why) in PARTS.items():
        if counts.get(name):
            yield Untried(f"{counts[name]:,} {what}", why)
    for name, (what, why) in STATES.items():
        if not counts.get(name):
            yield Untried(what, why)
    yield from unreached(kernels)
    for name, number in counts.items():
        if name.startswith(COUNT) and not number:
            yield Untried(name, "the release lacks it, or the run was too short")
    yield from not_in_use(settings)


def not_in_use(settings: Mapping[str, Sequence[str]]) -> Iterator[Untried]:
    """Yield the values in AXES that were not in use."""
    unknown = [axis.what for axis in AXES if not settings.get(axis.name)]
    for axis in AXES:
        seen = {value.lower() for value in settings.get(axis.name, ())}
        unseen = [word for value, word in axis.values.items() if value not in seen]
        if seen and unseen:
            words = {**SPELLED, **axis.values}
            only = ", ".join(words.get(value, value) for value in sorted(seen))
            yield Untried(f"{axis.what}: {', '.join(unseen)}", f"only {only} was in use")
    if unknown:
        yield Untried(
            f"{len(unknown)} settings", f"the engine does not state: {', '.join(unknown)}"
        )


def not_compared(counts: Mapping[str, int]) -> Iterator[Untried]:
    """Yield each check that compared nothing in the whole run, and the trials that proved nothing.

    A trial that could not have failed has the count "not tried: CHECK: REASON".
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
    for check, trials in reasons.items():
        for reason, number in trials.items():
            yield Untried(f"{number:,} trials of {check}", reason)


def not_served(rows: Mapping[str, str]) -> Iterator[Untried]:
    """Yield the rows that were not served, in one entry per reason if they are many."""
    reasons: dict[str, list[str]] = {}
    for row, why in rows.items():
        reasons.setdefault(why, []).append(row)
    for why, names in reasons.items():
        if len(names) > FEW:
            part = "parts of " if why == CUT_SHORT else ""
            what = f"{part}{len(names)} rows of settings"
            yield Untried(what, f"{why}: {'; '.join(names)}", tuple(names))
        else:
            yield from (Untried(f"row {name}", why, (name,)) for name in names)


def unreached(kernels: Sequence[str]) -> Iterator[Untried]:
    """Yield the kernels that no request reached."""
    if kernels:
        what = f"{len(kernels)} Triton kernels, or functions of kernels"
        yield Untried(what, f"no request that was served ran them: {', '.join(kernels)}")
