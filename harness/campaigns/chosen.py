"""Chooses the schedules of clean trials.

A narrowed run plays few schedules, chosen so that they reach the required states. `Planned` finds
what a schedule reaches by running the scheduler without a model. It draws the outputs of forwards,
such as accepted drafts, from a seed, so the real run can differ. Each state is therefore covered by
two schedules if two reach it. Planned draft trees have branches, so no tree is accepted whole.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import torch
from paritybit.harness.campaigns.hunt import draw
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.requests import PlannedForward
from paritybit.harness.lockstep.scheduler import Scheduler
from paritybit.harness.schedules.boundaries import Ground, Row, rows, scene, scenes
from paritybit.harness.schedules.coverage import Coverage
from paritybit.harness.schedules.generate import SCENES
from paritybit.harness.schedules.schedule import Schedule, Step
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import SPECULATION, draft_config
from paritybit.reference.model import Output
from paritybit.reference.pool import KVPools
from paritybit.subjects.runners import RUNNERS, engine_runners
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

CANDIDATES = 4
"""Schedules that are drawn for each clean trial of a narrowed run in a round, to choose from."""

MOST_ROUNDS = 40
"""Rounds after which no more are drawn."""

TIMES = 2
"""Schedules in which each state is looked for, where so many reach it."""

BEGINNING = 2
"""What it costs to begin a schedule, in forwards."""


@dataclass(frozen=True)
class Candidate:
    """A schedule of a trial, the events that it is planned to reach, and its forwards."""

    trial: TrialConfig
    schedule: Schedule
    events: frozenset[str]
    forwards: int


def ground_of(trial: TrialConfig, mode: Mode | None = None) -> Ground:
    """Return the sizes and modes from which a trial's scenes are built.

    `mode` defaults to that of the runner under test.
    """
    own = RUNNERS[trial.runner].mode if mode is None else mode
    return Ground(trial.model, trial.buckets, trial.token_buckets, trial.modes, own)


@cache
def chosen_for(
    trials: tuple[TrialConfig, ...], required: tuple[str, ...], seed: int
) -> Mapping[TrialConfig, tuple[Schedule, ...]]:
    """Return the schedules that each clean trial of a narrowed run plays.

    Candidates are scenes and drawn schedules. More are drawn until candidates reach every required
    state, for at most MOST_ROUNDS rounds.
    """
    candidates: list[Candidate] = []
    players = [Planned(trial) for trial in trials]
    for player in players:
        ground = ground_of(player.trial)
        candidates += planned(player, [Schedule(scene(ground, row), seed) for row in rows(ground)])
    for number in range(MOST_ROUNDS):
        for place, player in enumerate(players, number * len(players)):
            drawn: list[Schedule] = []
            draw(player.trial, drawn.append, seed + place, CANDIDATES, scenes_first=False)
            candidates += planned(player, drawn)
        if set(required) <= {event for one in candidates for event in one.events}:
            break
    chosen = few_reaching(candidates, required)
    return {trial: tuple(one.schedule for one in chosen if one.trial == trial) for trial in trials}


def share_of_scenes(trial: TrialConfig) -> Schedule:
    """Return this trial's share of its runner's scenes.

    The trials of all location schemes together play all scenes, and each gets scenes of every size.
    """
    ground, schemes = ground_of(trial), list(LocationScheme)
    place, by_size = schemes.index(trial.scheme), sorted(rows(ground), key=attrgetter("bucket"))
    return Schedule(scenes(ground, by_size[place :: len(schemes)]), place)


def handed_over(trial: TrialConfig) -> Schedule:
    """Return a scene in which a request finishes in a decode, and a longer one takes its row."""
    row = Row(min(trial.buckets), "short", "replaced")
    return Schedule(scenes(ground_of(trial, Mode.DECODE), [row]))


def with_prompts(trial: TrialConfig) -> Schedule:
    """Return the runner's first scenes, then prompts prefilled together or too long for a graph."""
    ground, smallest = ground_of(trial), min(trial.buckets)
    others = Row(smallest, "longest", "evicted"), Row(smallest, "short", "resumed", "together")
    prompts = scenes(ground_of(trial, Mode.DECODE), others)
    return Schedule((*scenes(ground, rows(ground)[:SCENES]), *prompts))


def longest(trial: TrialConfig) -> Schedule:
    """Return scenes in which forwards of every kind reach as far as a request can grow."""
    steps: list[Step] = []
    for mode in sorted(trial.modes | {Mode.EXTEND}):
        ground, event = ground_of(trial, mode), "resumed" if mode is Mode.DECODE else "evicted"
        steps += scenes(ground, [Row(max(ground.sizes), "longest", event, "chunks", "one")])
    return Schedule(tuple(steps))


def planned(player: "Planned", schedules: Iterable[Schedule]) -> list[Candidate]:
    """Return schedules of a trial with what each is planned to reach."""
    found = []
    for schedule in schedules:
        events = player.play(schedule)
        found.append(Candidate(player.trial, schedule, frozenset(+events), player.forwards))
    return found


def few_reaching(candidates: Sequence[Candidate], required: Iterable[str]) -> list[Candidate]:
    """Return few candidates that reach the events.

    The one with the most new events per forward is chosen first. Each trial must also have a padded
    replay of its runner under test.
    """
    wanted = frozenset(required)
    reached = [(one, Counter(_own(one) | (one.events & wanted))) for one in candidates]
    often = sum((events for _, events in reached), Counter[str]())
    missing = Counter({event: min(TIMES, count) for event, count in often.items()})
    chosen: list[Candidate] = []
    while missing:
        best = max(
            reached, key=lambda one: (missing & one[1]).total() / (one[0].forwards + BEGINNING)
        )
        reached.remove(best)
        chosen.append(best[0])
        missing -= best[1]
    return chosen


def _own(one: Candidate) -> set[str]:
    """Return the name of a padded replay of a trial's own runner, if one is planned."""
    padded = f"{one.trial.runner}: padded replay"
    return {f"{one.trial}: {padded}"} if padded in one.events else set()


class Planned:
    """Plans schedules of a trial on one scheduler, and counts what `Coverage` counts.

    `forwards` are those of the last schedule.
    """

    def __init__(self, trial: TrialConfig) -> None:
        self.trial = trial
        self.forwards = 0
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
        coverage = Coverage(events, self.config.speculation.topk)
        self.forwards = 0
        made_up = torch.Generator().manual_seed(schedule.seed)
        self.scheduler.reset(schedule.seed)
        for _, step in schedule.flat():
            planned = self.scheduler.plan(step)
            if planned is None:
                continue
            self.forwards += 1
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
