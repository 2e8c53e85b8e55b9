"""What adapters of engines have in common as engines under test: what none of them can be asked."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar

from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Kind
from paritybit.reference.model import Output
from paritybit.subjects.captured import facts_of
from paritybit.subjects.engines.shared.graphs import Replays
from paritybit.subjects.engines.shared.padded import DeclaredPadding, PaddedInput
from paritybit.subjects.engines.shared.tensors import bring_back
from paritybit.subjects.protocol import (
    EngineUnderTest,
    Offer,
    Overrides,
    OwnArithmetic,
    Replay,
    ReplayFacts,
)
from torch import Tensor

NOT_OFFERED = {
    Offer.LARGER_BUCKET: "only the engine can choose the bucket of a batch",
    Offer.PYTHON_STATE: "its Python objects belong to a server, and which may change is unknown",
    Offer.IDLE_REPLAY: "the engine's scheduler makes no batch without a request",
    Offer.JOINT_PREFILL: "each forward gets the prompt, or a chunk of it, of one request",
}
"""What no engine that others wrote offers, and why."""

OWN_KERNELS = {
    Offer.ARITHMETIC: "the engine's own attention kernels round differently from the reference",
    Offer.FRESH_ENGINE: (
        "with the engine's own kernels only one runner is captured; replays are compared with "
        "a fresh runner under the reference arithmetic"
    ),
}
"""What a runner with the engine's own kernels does not offer."""

OWN_EAGER = dict.fromkeys(
    (Offer.FRESH_ENGINE, Offer.GRAPHS, Offer.STATIC_INPUTS, Offer.INPUTS, Offer.READS),
    "the engine's own eager mode replays nothing",
)
"""What an engine in its own eager mode does not offer."""


def offers(declared: Mapping[str, str]) -> dict[Offer, str]:
    """Return offers with what is declared of them by their names."""
    return {Offer[name]: why for name, why in declared.items()}


Given = TypeVar("Given")


class OthersKV(Protocol):
    """KV of an engine beside a world's storage: see `PairedKV`."""

    strayed: str | None

    def read_kv(self) -> None:
        """Write the engine's KV to the world's storage."""
        ...

    def write_kv(self) -> None:
        """Take the engine's KV from the world's storage."""
        ...


class TriedEngine(EngineUnderTest, Protocol):
    """One of an engine's runners, which runs batches of `mode`: what a trial asks of it besides."""

    mode: Mode
    arithmetic: OwnArithmetic | None

    def notes(self) -> list[str]:
        """Return, in words, what was seen of the engine that no property judges."""
        ...

    def slot_named(self, name: str, value: int) -> tuple[Kind, int] | None:
        """Return the world's slot that a value of a static input names; None if it names none."""
        ...

    def padded_inputs(self) -> Mapping[str, PaddedInput]:
        """Return the static inputs that have a padded tail, by name."""
        ...

    def declared_padding(self) -> Mapping[str, DeclaredPadding]:
        """Return the padding policies that the engine itself declares, where it does."""
        ...


class OthersEngine:
    """A runner of an engine that others wrote, which nobody can look into or do otherwise.

    `statics` gives its static buffers, `graphs` is how many graphs a replay is of. `missing` says
    what it does not offer besides what no runner of this engine does, `lacks`, and why. In the
    engine's own eager mode its batches run eagerly, and those of `modes_without_graphs`.
    """

    arithmetic: OwnArithmetic | None = None
    eager_modes: frozenset[Mode] = frozenset()
    modes_without_graphs: frozenset[Mode] = frozenset()
    lacks: ClassVar[Mapping[Offer, str]] = {}

    def __init__(
        self,
        name: str,
        mode: Mode,
        statics: Callable[[], Mapping[str, Tensor]],
        kv: OthersKV,
        missing: Mapping[Offer, str],
        graphs: int = 1,
    ) -> None:
        self.name = name
        self.mode = mode
        self.statics = statics
        self.kv = kv
        self.missing: Mapping[Offer, str] = {**NOT_OFFERED, **self.lacks, **missing}
        self.graphs = graphs
        if Offer.GRAPHS in self.missing:
            self.eager_modes = self.modes_without_graphs | {mode}
        self._captured = {name: buffer.clone() for name, buffer in statics().items()}
        self._captured_facts = facts_of(statics())
        self._captured_state = self.state()
        self._replays = self._allocated = 0

    def runner_name(self, mode: Mode) -> str | None:
        """Return the runner's name for batches of its mode, None for others.

        None too in the engine's own eager mode, in which no batch is expected to be replayed.
        """
        return self.name if mode is self.mode and Offer.GRAPHS not in self.missing else None

    def all_static_buffers(self) -> Sequence[Mapping[str, Tensor]]:
        """Return the static buffers of the one runner."""
        return [self.statics()]

    def recapture(self) -> None:
        """Give every static buffer, and the Python state, what they held after capture."""
        bring_back(self.statics(), self._captured)
        self.restore(self._captured_state)

    def state(self) -> Any:
        """Return the Python state that forwards change, static buffers apart: none."""

    def restore(self, state: Any) -> None:
        """Bring back a Python state."""

    def read_kv(self) -> None:
        """Write the engine's KV to the world's storage."""
        self.kv.read_kv()

    def write_kv(self) -> None:
        """Take the engine's KV from the world's storage."""
        self.kv.write_kv()

    def replay_of(
        self, bucket: int, live_size: int, live_rows: int, output: Output, **seen: Any
    ) -> Replay:
        """Return a replay all of whose output is of live rows: see `Replay`.

        `seen` is what else is known of it, by the names there.
        """
        return Replay(
            runner=self.name,
            bucket=bucket,
            live_size=live_size,
            padded=live_size < bucket,
            output=output,
            live_rows=live_rows,
            live_output=output,
            defined=output,
            **seen,
        )

    def facts(self, replay: Replay) -> ReplayFacts:
        """Return what the replay that just ran relied on."""
        return ReplayFacts(
            captured_buffers=self._captured_facts,
            buffers=facts_of(self.statics()),
            allocated=self._allocated,
            graphs_replayed=self._replays,
            graphs_expected=self.graphs,
            strayed=self.kv.strayed,
        )

    def counted(self, run: Callable[[], Given]) -> Given:
        """Run a forward, and keep what of its replays `facts` tells."""
        replays, allocated = Replays.count, Replays.allocated
        given = run()
        self._replays = Replays.count - replays
        self._allocated = Replays.allocated - allocated
        return given

    def equalize_padding(self, mode: Mode, values: Mapping[str, int]) -> None:
        """Do nothing: of an output live rows alone are compared."""

    def python_objects(self) -> NoReturn:
        """Raise RuntimeError: see `missing`."""
        raise RuntimeError(self.missing[Offer.PYTHON_STATE])

    def forward_overridden(
        self, batch: ForwardBatch | None, mode: Mode, overrides: Overrides
    ) -> NoReturn:
        """Raise RuntimeError: nothing of the engine's forward can be done otherwise."""
        raise RuntimeError("the engine's forward has no variants")

    def replay_in_largest_bucket(self, batch: ForwardBatch) -> NoReturn:
        """Raise RuntimeError: see `missing`."""
        raise RuntimeError(self.missing[Offer.LARGER_BUCKET])

    def declared_padding(self) -> Mapping[str, DeclaredPadding]:
        """Return the padding that the engine itself declares: nothing."""
        return {}

    def notes(self) -> list[str]:
        """Return, in words, what was seen of the engine that no property judges: nothing."""
        return []
