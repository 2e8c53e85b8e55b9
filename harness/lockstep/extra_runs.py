"""Probes: further runs of a step, before the step itself, each undone when it has been observed."""

from collections.abc import Collection

from harness.lockstep.noise import Noise
from harness.lockstep.observation import Before, ExtraResults, Noisy, Variant
from harness.lockstep.pair import Pair, subject_runs
from harness.lockstep.scheduler import Work
from reference.batch import Mode
from reference.model import Output


class ExtraRuns:
    """Runs the twin and the eager decoder on a step, and gives both pools their bytes back."""

    def __init__(self, pair: Pair, before: Before) -> None:
        self.pair = pair
        self.before = before
        self.noise = Noise(pair.config, pair.graph_pools)

    def run(self, properties: Collection[str], eager: Work, graph: Work, seed: int) -> ExtraResults:
        """Run the probes that `properties` need on a step that a graph can replay."""
        extra = ExtraResults()
        if "hermetic_replay" in properties:
            extra.fresh_output = self.fresh_output(graph)
        if "padding_noninterference" in properties:
            extra.noisy = self.noisy(graph, seed)
        if "batch_invariance" in properties and graph.batch is not None:
            extra.variants = self.variants(eager, graph)
        return extra

    def fresh_output(self, work: Work) -> Output:
        """Return what is defined of the just-captured twin's static output, padding included."""
        self.pair.fresh_engine.recapture()
        replay = self.pair.fresh_engine.forward(work).replay
        assert replay is not None
        output = cloned(replay.defined)
        self._restore()
        return output

    def noisy(self, work: Work, seed: int) -> Noisy:
        """Return what the twin gives when every byte nobody in the batch owns is noise."""
        pools, fresh_engine = self.pair.graph_pools, self.pair.fresh_engine
        tables = pools.tables.req_to_token, pools.tables.full_to_swa_index_mapping
        kept = [table.clone() for table in tables]
        owned = self.noise.owned(self.pair.graph, work.batch)
        fresh_engine.recapture()
        for runner in fresh_engine.runners.values():
            self.noise.fill_buffers(runner.static_buffers(), seed)
        self.noise.fill_pool(self.pair.graph, owned, seed)
        with subject_runs():
            forward = fresh_engine.engine.forward(work.batch, work.mode)
        noisy = Noisy(cloned(forward.output), pools.storage.clone(), owned)
        for table, bytes_before in zip(tables, kept, strict=True):
            table.copy_(bytes_before)
        self._restore()
        return noisy

    def variants(self, eager: Work, graph: Work) -> tuple[Variant, ...]:
        """Return the step's outputs with a request alone, in reverse, and in the largest bucket."""
        pair, batch = self.pair, graph.batch
        assert batch is not None and eager.batch is not None
        everyone = tuple(range(batch.live_requests))
        orders = {"in reverse": everyone[::-1]}
        if batch.mode is not Mode.EXTEND:
            orders["alone"] = (eager.batch.spans[0].end % batch.live_requests,)
        found = []
        for message, order in orders.items():
            spans = [eager.batch.spans[request] for request in order]
            output = pair.decoder.forward(pair.eager.batch_of(batch.mode, spans))
            found.append(Variant(message, order, output))
            pair.eager_pools.storage.copy_(self.before.eager)
        runner = pair.fresh_engine.runners[batch.mode]
        pair.fresh_engine.recapture()
        with subject_runs():
            widest = cloned(runner.replay(batch, runner.buckets[-1]).live_output)
        self._restore()
        found.append(Variant(f"in the bucket of {runner.buckets[-1]}", everyone, widest))
        return tuple(found)

    def _restore(self) -> None:
        self.pair.graph_pools.storage.copy_(self.before.graph)


def cloned(output: Output) -> Output:
    """Return an output that later replays leave alone."""
    return {name: each.clone() for name, each in output.items()}
