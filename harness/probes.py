"""Probes: further runs of a step, before the step itself, each undone when it has been observed."""

from collections.abc import Collection

from torch import Tensor

from harness.arms import Arms
from harness.noise import Noise
from harness.trace import Before, Noisy, Probed, Variant
from reference.batch import ForwardBatch


class Probes:
    """Runs the twin and the eager decoder on a step, and gives both pools their bytes back."""

    def __init__(self, arms: Arms, before: Before) -> None:
        self.arms = arms
        self.before = before
        self.noise = Noise(arms.config, arms.graph_pool)

    def run(
        self,
        properties: Collection[str],
        eager: ForwardBatch | None,
        graph: ForwardBatch | None,
        seed: int,
    ) -> Probed:
        """Run the probes that `properties` need on a step that a graph can replay."""
        probed = Probed()
        if "hermetic_replay" in properties:
            probed.fresh_output = self.fresh_output(graph)
        if "padding_noninterference" in properties:
            probed.noisy = self.noisy(graph, seed)
        if "batch_invariance" in properties and eager is not None and graph is not None:
            probed.variants = self.variants(eager, graph)
        return probed

    def fresh_output(self, batch: ForwardBatch | None) -> Tensor:
        """Return the static output [bs, vocab] of the just-captured twin, padded rows included."""
        self.arms.twin.recapture()
        replay = self.arms.twin.forward(batch).replay
        assert replay is not None
        output = replay.output.clone()
        self._restore()
        return output

    def noisy(self, batch: ForwardBatch | None, seed: int) -> Noisy:
        """Return what the twin gives when every byte nobody in the batch owns is noise."""
        pool, twin = self.arms.graph_pool, self.arms.twin
        tables = pool.req_to_token, pool.full_to_swa_index_mapping
        kept = [table.clone() for table in tables]
        owned = self.noise.owned(self.arms.graph, batch)
        twin.recapture()
        self.noise.fill_buffers(twin.runner.static_buffers(), seed)
        self.noise.fill_pool(self.arms.graph, owned, seed)
        forward = twin.engine.forward(batch)
        noisy = Noisy(forward.logits.clone(), pool.storage.clone(), owned)
        for table, bytes_before in zip(tables, kept, strict=True):
            table.copy_(bytes_before)
        self._restore()
        return noisy

    def variants(self, eager: ForwardBatch, graph: ForwardBatch) -> tuple[Variant, ...]:
        """Return logits of the step's rows run alone, in reverse, and in the largest bucket."""
        arms = self.arms
        row = eager.spans[0].end % eager.raw_bs
        found = [Variant("alone", row, arms.decoder.forward(eager.select([row]))[0])]
        order = list(reversed(range(eager.raw_bs)))
        backwards = arms.decoder.forward(eager.select(order))
        found += [
            Variant("in reverse", row, logits) for row, logits in zip(order, backwards, strict=True)
        ]
        arms.eager_pool.storage.copy_(self.before.eager)
        largest = max(arms.trial.buckets)
        arms.twin.recapture()
        widest = arms.twin.runner.replay(graph, largest).output[: eager.raw_bs].clone()
        self._restore()
        found += [
            Variant(f"in the bucket of {largest}", row, logits) for row, logits in enumerate(widest)
        ]
        return tuple(found)

    def _restore(self) -> None:
        self.arms.graph_pool.storage.copy_(self.before.graph)
