"""What an adapter offers of an engine: all that a trial knows of which engine it tries."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

from paritybit.harness.checks.play import Lockstep
from paritybit.harness.engines.faults import Fault
from paritybit.harness.engines.playlist import Kind, Runner
from paritybit.harness.lockstep.config import DEVICES, TrialConfig
from paritybit.harness.lockstep.pair import Engines, Pair
from paritybit.reference.allocator import Owner
from paritybit.reference.config import SPECULATION
from paritybit.subjects.engines.shared.engine import OWN_EAGER, OWN_KERNELS, OthersEngine
from paritybit.subjects.engines.shared.loading import Engine
from paritybit.subjects.engines.shared.missing import PartMissingError
from paritybit.subjects.engines.shared.world import Known, World
from paritybit.subjects.protocol import Offer


class Adapter(Protocol):
    """An engine's runners and how pairs with them are made: no check, schedule or shrinker.

    `runners` are those that are driven, by name, and `undriven` says of others why not.
    `faults` are the classes that its behaviour can tell. `emulated` says in words what is not
    the engine's own, `devices` where it is driven. `asked`, below, collects the names of
    settings that the engine asked for and nobody declared.
    """

    name: str
    runners: Mapping[str, Runner]
    undriven: Mapping[str, str]
    faults: Mapping[str, Fault]
    emulated: tuple[str, ...]
    devices: frozenset[str]

    def load(self, package: Path, dependencies: Path, device: str) -> Engine:
        """Load the engine of a package's folder into this process, which holds no other."""
        ...

    def trial_of(self, runner: str, preset: str, kind: Kind, device: str) -> TrialConfig:
        """Return the settings of a leg."""
        ...

    def lockstep(
        self, engine: Engine, trial: TrialConfig, asked: set[str]
    ) -> tuple[Lockstep, str | None]:
        """Return a pair with the runner, whose static buffers are its own, and what is to note."""
        ...

    def sharing(self, engine: Engine, trial: TrialConfig, asked: set[str]) -> Lockstep | None:
        """Return a pair with the runner beside another, whose static buffers it shares.

        None for a runner that shares none. Raises AssertionError where the engine refuses.
        """
        ...

    def own_eager(self, engine: Engine, trial: TrialConfig, asked: set[str]) -> Lockstep:
        """Return a pair with the runner, whose engine is in its own eager mode: without graphs."""
        ...

    def own_kernels(self, engine: Engine, trial: TrialConfig, asked: set[str]) -> Lockstep:
        """Return a pair with the runner, which keeps the engine's own attention kernels."""
        ...

    def without_encoder(self, engine: Engine, trial: TrialConfig) -> str | None:
        """Return why a model with windows has no encoder lengths; None if it may."""
        ...


ApartEngine = TypeVar("ApartEngine", bound=OthersEngine)


@dataclass
class EnginesOf(ABC):
    """What builds an engine under test, and a fresh one beside it, for each pair.

    With `own_kernels` the engine keeps its own attention, with `eagerly` it replays nothing: it is
    its own fresh engine in both. `asked` collects the settings that the engine asked for and
    nobody declared.
    """

    engine: Engine
    asked: set[str] = field(default_factory=set)
    own_kernels: bool = False
    eagerly: bool = False

    @property
    def missing(self) -> dict[Offer, str]:
        """What is not offered because of that, and why."""
        return dict(OWN_EAGER if self.eagerly else OWN_KERNELS if self.own_kernels else {})

    @abstractmethod
    def __call__(self, pair: Pair) -> Engines:
        """Build both over the graph world of a pair."""

    @staticmethod
    def apart(subject: ApartEngine, fresh: ApartEngine) -> tuple[ApartEngine, ApartEngine]:
        """Return an engine under test and a fresh one, which has no history.

        Raises PartMissingError where it shares a static buffer with the other, and so its history:
        what an engine shares buffers by has moved, or is new.
        """
        theirs = {held.data_ptr() for held in fresh.statics().values() if held.numel()}
        for name, held in subject.statics().items():
            if held.numel() and held.data_ptr() in theirs:
                raise PartMissingError(
                    f"the engine gives a fresh {fresh.name} runner the static buffers of "
                    f"another ({name}), and the location of shared buffers is not known"
                )
        return subject, fresh


class PairsByEngines:
    """What adapters do alike whose engines under test are built by one class, on every device.

    Without a word of its own, an adapter's runners share no static buffers, and are of decoders.
    """

    builds: ClassVar[type[EnginesOf]]
    devices: frozenset[str] = frozenset(DEVICES)

    def lockstep(
        self, engine: Engine, trial: TrialConfig, asked: set[str]
    ) -> tuple[Lockstep, str | None]:
        """Return a pair with the runner, of which there is nothing to note."""
        return Lockstep(trial, engines=self.builds(engine, asked=asked)), None

    def sharing(self, engine: Engine, trial: TrialConfig, asked: set[str]) -> Lockstep | None:
        """Return None: a runner shares its static buffers with no other."""
        return None

    def without_encoder(self, engine: Engine, trial: TrialConfig) -> str | None:
        """Return why there are no encoder lengths: the engine's runners are of decoders."""
        return "a runner of decoders has none"

    def own_eager(self, engine: Engine, trial: TrialConfig, asked: set[str]) -> Lockstep:
        """Return a pair with the runner, whose engine replays nothing."""
        return Lockstep(trial, engines=self.builds(engine, asked=asked, eagerly=True))

    def own_kernels(self, engine: Engine, trial: TrialConfig, asked: set[str]) -> Lockstep:
        """Return a pair with the runner, which keeps the engine's own kernels."""
        return Lockstep(trial, engines=self.builds(engine, asked=asked, own_kernels=True))


def world_of(pair: Pair, *, lags: bool = False) -> World:
    """Return what an engine asks of a pair's graph world, which is made after the engine.

    With `lags` a draft model catches up when the schedule says so, as none of an engine's lags:
    blocks that it is yet to read stay, and those of tokens that it may run once more.
    """

    def owners() -> Sequence[Owner]:
        return pair.graph.owners()

    def running() -> dict[int, Known]:
        graph = pair.graph
        return {
            request.serial: Known(
                graph.owner(request),
                tuple(graph.tokens[request.token_row, : request.known].tolist()),
                max(request.drafted - SPECULATION.draft_tokens, 0) if lags else None,
            )
            for request in graph.running
            if request.allocation is not None
        }

    return World(
        pair.graph_pools,
        owners,
        running,
        lambda: {request.serial for request in pair.graph.retracted},
        lambda: pair.graph.hidden_states,
    )
