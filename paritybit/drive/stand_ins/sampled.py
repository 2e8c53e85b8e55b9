"""Compares an attention kernel with its stand-in, on a few of its calls.

Interpreting the kernel takes long. It therefore gets a share of the time, and is compared once per
length.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from paritybit.drive.stand_ins import attention
from paritybit.drive.stand_ins.attention import unbounded
from paritybit.watch.journal import Finding, Journal, of_process
from paritybit.watch.settings import active

SHARE = 0.1
"""The fraction of the time for comparisons."""

PROVED = 3
"""The number of calls that must agree before an argument that the stand-in lacks is accepted."""

LARGEST = 1e-4
"""The largest relative difference that the order of float32 sums can explain."""

OUTPUTS = ("o", "o_extend")
"""The names of the output argument of a kernel."""

WITH_NEW_KEYS = "extend_attention_fwd"
"""The kernel that gets new keys in addition to the listed ones."""

CHECK = "attention kernel"


@dataclass
class Sampled:
    """Records which calls were compared, and the time. Without a journal, nothing is compared."""

    journal: Journal | None
    begun: float = field(default_factory=time.monotonic)
    spent: float = 0.0
    seen: set[tuple[str, int]] = field(default_factory=set)
    agreed: Counter[frozenset[str]] = field(default_factory=Counter)

    @property
    def in_time(self) -> bool:
        """Whether there is time for a comparison."""
        return self.spent <= SHARE * (time.monotonic() - self.begun)

    def compare(
        self,
        name: str,
        given: Mapping[str, Any],
        kernel: Callable[[], None],
        unknown: frozenset[str] = frozenset(),
    ) -> None:
        """Run a kernel after its stand-in with the same arguments, if a comparison is due.

        A difference is a finding. The output of the stand-in is kept. `unknown` are arguments that
        the stand-in did not get. The first calls with them are compared. If the kernel then gives
        another result, or cannot run, NotImplementedError is raised.
        """
        new = bool(unknown) and self.agreed[unknown] < PROVED
        if attention.fewer_keys or not (new or (self.journal and self.in_time)):
            return
        longest = most(given["kv_indptr"])
        if name == WITH_NEW_KEYS:
            longest += most(given["qo_indptr"])
        if longest == 0 or (not new and (name, longest) in self.seen) or not sound(given):
            return
        self.seen.add((name, longest))
        found = self.compared(name, given, kernel)
        if unknown and (new if found is None else found > LARGEST):
            raise NotImplementedError(
                f"attention with {', '.join(sorted(unknown))} has no stand-in"
            )
        self.agreed[unknown] += 1
        if found is not None and self.journal is not None:
            self.judge(name, longest, found, self.journal)

    def compared(
        self, name: str, given: Mapping[str, Any], kernel: Callable[[], None]
    ) -> float | None:
        """Return the difference between a kernel and its stand-in, or None if it cannot run."""
        output = output_of(given)
        start = time.monotonic()
        right = output.clone()
        try:
            kernel()
            return difference(output, right, given)
        except Exception as error:  # The interpreter is incomplete, and the engine must continue.
            if self.journal is not None:
                why = type(error.__cause__ or error).__name__
                self.journal.scope(kernels_not_compared=f"{name}: {why}")
            return None
        finally:
            output.copy_(right)
            self.spent += time.monotonic() - start

    @staticmethod
    def judge(name: str, longest: int, found: float, journal: Journal) -> None:
        """Count a comparison, and write a finding if there is a difference."""
        journal.count(**{f"tried: {CHECK}": 1})
        if found > LARGEST:
            text = f"{name} gives other values than torch over the same keys: they differ by "
            text += f"{found:.2g} of the largest value, where a request has {longest} keys"
            journal.finding(Finding(CHECK, text, f"{CHECK} | {name}", 0, count=1))


def sound(given: Mapping[str, Any]) -> bool:
    """Return whether all slots that a kernel reads exist. Otherwise it could crash.

    Another check judges invalid lists.
    """
    queries = given.get("qo_indptr")
    if queries is not None and not within(queries, len(output_of(given))):
        return False
    starts, listed = given["kv_indptr"], unbounded(given["kv_indices"])
    slots = given["k_buffer"].shape[0] * math.prod(given["k_buffer"].shape[1:-2])
    if not within(starts, len(listed)):
        return False
    entries = listed[int(starts[0]) : int(starts[-1])]
    return not len(entries) or (int(entries.min()) >= 0 and int(entries.max()) < slots)


def output_of(given: Mapping[str, Any]) -> Tensor:
    """Return the output tensor of a kernel."""
    output: Tensor = next(given[name] for name in OUTPUTS if name in given)
    return output


def within(starts: Tensor, size: int) -> bool:
    """Return whether starts are ascending and within a tensor of this size."""
    first, last = int(starts[0]), int(starts[-1])
    return first >= 0 and last <= size and not bool((starts.diff() < 0).any())


def asked() -> Journal | None:
    """Return the journal of this process, or None if only some checks are selected."""
    settings = active()
    return of_process() if settings is not None and settings.checks is None else None


def most(starts: Tensor) -> int:
    """Return the largest count between two starts, or 0 without starts."""
    return int(starts.diff().max()) if len(starts) > 1 else 0


def difference(output: Tensor, right: Tensor, given: Mapping[str, Any]) -> float:
    """Return the difference of live outputs, relative to the largest value."""
    if "qo_indptr" in given:
        live = slice(0, int(given["qo_indptr"][-1]))
        output, right = output[live], right[live]
    else:
        listed = given["kv_indptr"].diff()[: len(output)] > 0
        output, right = output[: len(listed)][listed], right[: len(listed)][listed]
    if not right.numel() or not bool(right.isfinite().all()):
        return 0.0
    if not bool(output.isfinite().all()):
        return math.inf
    return float((output - right).abs().max() / right.abs().max().clamp(min=1e-20))
