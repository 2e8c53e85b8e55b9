"""Missing waits where the host runs ahead of a forward in flight.

The engine owns the streams, so one runner per engine reveals a bug in them.
"""

from collections.abc import Callable

from paritybit.reference.order import Arrived, HostValues
from paritybit.subjects.bugs.bug import PREFILL, Bug, pull, seen
from paritybit.subjects.overlap import Flight, Overlap, Result, Staged
from paritybit.subjects.toggles import LocationScheme


class FreedAtOnce(Overlap):
    def freeing(self) -> None:
        pass


class EvictedAtOnce(Overlap):
    def evicting(self) -> None:
        pass


class SlotsStagedTooSoon(Overlap):
    def stage(self, values: HostValues) -> Staged:
        self.fill("out_cache_loc", values["out_cache_loc"])
        return super().stage(values)


class DoneBeforeSampling(Overlap):
    def launch(
        self,
        staged: Staged | None,
        forward: Callable[[Arrived], Result],
        follow: Callable[[Result], None],
    ) -> Flight[Result]:
        flight = super().launch(staged, forward, lambda _: None)
        self.streams.forward.run(lambda: follow(flight.results[0]))
        return flight


BUGS = (
    Bug(
        name="freed_row_rewritten",
        thread=pull(18803),
        mechanism=(
            "The free is not deferred. The row and slots of a finished request are "
            "reused, unmapped and rewritten while a forward in flight still reads them."
        ),
        expected=seen("logits_parity", "decode", *PREFILL),
        scheme=LocationScheme.PRESET,
        parts=(FreedAtOnce,),
        overlap=True,
    ),
    Bug(
        name="evicted_in_flight",
        thread=f"https://github.com/sgl-project/sglang/issues/17839, fixed by {pull(21754)}",
        mechanism=(
            "SWA slots outside the next query's window are unmapped while the forward in "
            "flight still looks them up. Its window begins one token earlier."
        ),
        expected=seen("logits_parity", "decode"),
        scheme=LocationScheme.PER_LAYER,
        parts=(EvictedAtOnce,),
        overlap=True,
    ),
    Bug(
        name="pinned_slots_reused",
        thread=pull(15546, "NVIDIA/TensorRT-LLM"),
        mechanism=(
            "A copy from pinned memory reads its source when it runs, not when it is "
            "queued. The host writes the next batch's slots there first, so the current "
            "forward stores its KV in them."
        ),
        expected=seen("kv_parity", "decode", *PREFILL),
        scheme=LocationScheme.PRESET,
        parts=(SlotsStagedTooSoon,),
        overlap=True,
    ),
    Bug(
        name="done_before_sampling",
        thread=pull(1061, "noonghunna/club-3090"),
        mechanism=(
            "The event that ends a forward is recorded before its tokens are sampled. The host "
            "waits for the event, and reads the tokens before they are written."
        ),
        expected=seen("next_tokens", "decode"),
        parts=(DoneBeforeSampling,),
        overlap=True,
    ),
)
