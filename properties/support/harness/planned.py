"""Plans schedules with the scheduler alone, to see quickly which states they reach.

It draws the outputs of forwards, such as accepted drafts, from a seed, so an engine can differ.
Draft trees have branches, so no tree is accepted whole.
"""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import torch
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.requests import PlannedForward
from paritybit.harness.lockstep.scheduler import Scheduler
from paritybit.harness.schedules.coverage import Coverage
from paritybit.harness.schedules.schedule import Schedule
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import SPECULATION, draft_config
from paritybit.reference.model import Output
from paritybit.reference.pool import KVPools
from paritybit.subjects.runners import engine_runners
from torch import Tensor


class Planned:
    """Plans schedules of a trial on one scheduler, and counts what `Coverage` counts."""

    def __init__(self, trial: TrialConfig) -> None:
        self.trial = trial
        self.config = trial.model
        torch.set_num_threads(1)  # Tensors are tiny: more threads only wait for one another.
        pools = KVPools(
            self.config, draft_config(self.config), trial.sizes, torch.float32, torch.device("cpu")
        )
        self.scheduler = Scheduler(self.config, pools, max(trial.buckets), trial.modes)
        self.runners = {runner.mode: runner for runner in engine_runners(trial.runner)}

    def play(self, schedule: Schedule) -> Counter[str]:
        """Return the events of a schedule."""
        events: Counter[str] = Counter()
        coverage = Coverage(events)
        made_up = torch.Generator().manual_seed(schedule.seed)
        self.scheduler.reset(schedule.seed)
        for step in schedule.steps:
            planned = self.scheduler.plan(step)
            if planned is None:
                continue
            replay = self.replay(planned)
            if replay is not None:
                requests = 0 if planned.batch is None else planned.batch.live_requests
                coverage.see(replay, requests)
            if planned.batch is not None:
                self.scheduler.commit(planned.batch, self.output(planned.batch, made_up))
        events.update(self.scheduler.events)
        return events

    def replay(self, planned: PlannedForward) -> Any:
        """Return what is counted of a forward; None where no graph can run it."""
        runner, batch = self.runners.get(planned.mode), planned.batch
        if runner is None or (batch is not None and not self.trial.expects_graph(batch)):
            return None
        buckets = self.trial.token_buckets if runner.token_buckets else self.trial.buckets
        size = tokens = 0
        if batch is not None:
            tokens = batch.live_tokens
            size = tokens if runner.token_buckets else batch.live_requests
        bucket = min(bucket for bucket in buckets if bucket >= size)
        padded = size != bucket
        if planned.mode is Mode.DRAFT_EXTEND:
            padded = tokens != bucket * SPECULATION.extend_tokens
        return SimpleNamespace(runner=runner.name, bucket=bucket, live_size=size, padded=padded)

    def output(self, batch: ForwardBatch, made_up: torch.Generator) -> Output:
        """Return an output of a batch that a seed makes up."""
        requests, vocab = batch.live_requests, self.config.vocab
        rows = batch.live_tokens if batch.mode is Mode.TARGET_VERIFY else requests
        speculation = self.config.speculation
        topk, wide = speculation.topk, speculation.candidates
        branches = speculation.forwards * topk
        hidden = requests if batch.mode is Mode.DRAFT_EXTEND else batch.live_tokens

        def draw(*shape: int) -> Tensor:
            return torch.rand(shape, generator=made_up)

        return {
            "logits": draw(rows, vocab),
            "hidden": draw(hidden, self.config.hidden),
            "scores": torch.linspace(1, 0, wide).expand(requests, wide),  # A tree that is no chain.
            "tokens": torch.randint(vocab, (requests, wide), generator=made_up),
            "chosen": torch.randint(topk**2, (requests, branches), generator=made_up),
            "topk_p": draw(requests, topk),
            "topk_index": torch.randint(vocab, (requests, topk), generator=made_up),
        }
