"""What an engine's padding holds, and whether anything live depends on it.

Before a replay the tail of one static buffer is overwritten with other valid values. If
they are still there afterwards the buffer is kept, not reset; whether any live bit moved
then says if somebody reads it.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from harness.engines.pair import EngineArms
from harness.lockstep.bits import bits
from reference.batch import TRACK_ROWS
from subjects.engines.sglang.decode import ReleasedRunner

if TYPE_CHECKING:
    from harness.engines.play import EnginePlay, Replayed


AT_ONCE = 2
"""How many buffers are disturbed at each padded replay, one at a time."""


@dataclass
class Entry:
    """One buffer: how often its tail was disturbed, outlived that, and moved a live bit."""

    dtype: str
    disturbed: int = 0
    outlived: int = 0
    moved: int = 0
    message: str | None = None
    left: set[int] = field(default_factory=set)

    def add(self, tail: Tensor, moved: str | None, *, outlived: bool) -> None:
        """Count one disturbance: whether it outlived the replay, and which live bit moved."""
        self.disturbed += 1
        self.outlived += outlived
        if not outlived:
            self.left |= {int(value) for value in tail.flatten().tolist()}
        self.moved += moved is not None
        self.message = self.message or moved

    @property
    def verdict(self) -> str:
        """The claim about this buffer in words."""
        if not self.disturbed:
            return "not decided"
        if not self.outlived:
            return "reset"
        return "kept, and read" if self.moved else "kept, nobody live reads it"


class PaddingLedger:
    """The entries of a decode runner's static inputs, by buffer."""

    def __init__(self, pair: EngineArms) -> None:
        self.pair = pair
        sizes, config = pair.trial.sizes, pair.config
        self.limits = {
            "input_ids": config.vocab,
            "positions": config.max_context,
            "mrope_positions": config.max_context,
            "req_pool_indices": sizes.rows + 1,
            "seq_lens": config.window,
            "seq_lens_cpu": config.window,
            "out_cache_loc": sizes.full_slots,
            "out_cache_loc_swa": sizes.swa_slots,
            "attention.cuda_graph_swa_out_cache_loc": sizes.swa_slots,
            "mamba_track_indices": TRACK_ROWS,
            "mamba_track_mask": 2,
        }
        statics = pair.runner.statics()
        self.entries = {
            name: Entry(str(statics[name].dtype).removeprefix("torch."))
            for name in self.limits
            if name in statics
        }
        self.turn = 0
        self.at_once = AT_ONCE

    def disturb(
        self,
        play: "EnginePlay",
        given: Any,
        before: list[Tensor],
        history: dict[str, Tensor],
        right: "Replayed",
        live: int,
    ) -> None:
        """Replay a padded batch, each time with the tail of the next buffer overwritten."""
        names = sorted(self.entries)
        for _ in range(self.at_once):
            self.turn += 1
            name = names[self.turn % len(names)]
            play.rewind(before, history)
            tail = self.pair.runner.statics()[name][..., live : right.bucket]
            poison = self._poison(tail, self.limits[name])
            tail.copy_(poison)
            moved = self._moved(play.replay(given), right)
            self.entries[name].add(tail, moved, outlived=bool((tail == poison).all()))

    def _poison(self, tail: Tensor, limit: int) -> Tensor:
        """Return valid values that no reset gives; of numbers, none that the tail holds."""
        if tail.dtype is torch.bool:
            return torch.ones_like(tail)
        values = tail + 2 + self.turn % 3
        return torch.where(values < limit, values, 2 + self.turn % 3).to(tail.dtype)

    def _moved(self, replayed: "Replayed", right: "Replayed") -> str | None:
        """Return which live bit moved, in words: a logit, or KV outside slot 0."""
        if not torch.equal(bits(replayed.logits), bits(right.logits)):
            return "live logits changed"
        for place, (left, other) in enumerate(zip(replayed.values, right.values, strict=True)):
            if not torch.equal(bits(left[1:]), bits(other[1:])):
                return f"KV of layer {place // 2} changed outside slot 0"
        return None


DECLARED = {
    "keep_pad": "kept",
    "foreach_copy": "kept",
    "fill_once": "kept",
    "fill_sentinel": "reset",
    "zero": "reset",
}
"""What an engine's words for a padding policy come to."""


def policies(runner: ReleasedRunner, ledger: PaddingLedger) -> list[dict[str, Any]]:
    """Hold the padding policies that an engine declares against what its buffers did."""
    registry = getattr(runner.runner, "buffer_registry", None)
    found = []
    for name, slot in getattr(registry, "_slots", {}).items():
        entry = ledger.entries.get(name)
        declared = str(slot.padding_policy.value)
        observed, holds = "not tried", "not tried"
        if entry is not None and entry.disturbed:
            observed = "kept" if entry.outlived else f"reset to {sorted(entry.left)}"
            value = {"zero": 0, "fill_sentinel": slot.pad_value}.get(declared)
            as_declared = DECLARED.get(declared) == ("kept" if entry.outlived else "reset")
            right_value = bool(entry.outlived) or entry.left == {value}
            holds = "yes" if as_declared and right_value else "no"
        found.append({"buffer": name, "declared": declared, "observed": observed, "holds": holds})
    return found
