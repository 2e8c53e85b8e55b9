"""The settings that all engines have. The settings of each engine extend `Common`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Annotated, ClassVar, TypeVar

import msgspec
from msgspec import Meta

from paritybit.drive.models import MODELS, Model
from paritybit.drive.operating.actions import with_actions
from paritybit.drive.requests import (
    Limits,
    other_prefixes,
    waves,
    with_aborts,
    with_aborts_of_moving,
    with_checks,
    with_extras,
    with_priorities,
    with_repeats,
    with_sampling,
    without_aborts,
)
from paritybit.drive.script import LARGEST, MOST_ADAPTERS, Setting, Wave

DEVICES = ("cpu", "cuda")

Kind = TypeVar("Kind", bound="Common")

Size = Annotated[int, Meta(ge=1, le=LARGEST)]
Adapters = Annotated[int, Meta(ge=0, le=MOST_ADAPTERS)]

PARALLEL = {"tp": "tensor parallelism", "pp": "pipeline parallelism", "dp": "data parallelism"}
"""The settings with numbers of ranks."""

Ranks = Annotated[int, Meta(ge=1, le=8)]


def one_of(names: Iterable[str]) -> Meta:
    """Return the limit of a setting that has one of some values."""
    return Meta(pattern=f"^({'|'.join(names)})$")


@dataclass(frozen=True)
class Common:
    """The settings with which an engine is served. The types of its fields limit the values.

    - `alone`: each request is also served alone.
    - `priorities`: requests have priorities, by which the engine schedules them.
    - `actions`: an operator performs those of ACTIONS that the release supports.

    - `tp`, `pp`, `dp`: the numbers of ranks. See PARALLEL.

    SIMPLIFIED are the settings that `shrink` sets to their defaults, in order. SEVERAL are those of
    PARALLEL that may be greater than 1.
    """

    ACTIONS: ClassVar[Sequence[str]] = ("flush",)
    SIMPLIFIED: ClassVar[Sequence[str]] = ()
    SEVERAL: ClassVar[Sequence[str]] = ()

    model: Annotated[str, one_of(MODELS)] = "gemma4"
    device: Annotated[str, one_of(DEVICES)] = "cpu"
    seed: Annotated[int, Meta(gt=-(10**18), lt=10**18)] = 0
    page_size: Size = 16
    prefix_cache: bool = True
    overlap: bool = False
    alone: bool = False
    actions: bool = False
    priorities: bool = False
    tp: Ranks = 1
    pp: Ranks = 1
    dp: Ranks = 1

    @classmethod
    def of(cls: type[Kind], settings: Mapping[str, Setting]) -> Kind:
        """Return the settings of a script. Raises ValueError for unknown names or values."""
        names = {one.name for one in fields(cls)}
        if other := sorted(settings.keys() - names):
            raise ValueError(f"the settings have unknown names: {', '.join(other)}")
        return msgspec.convert(settings, cls)

    def scope(self) -> dict[str, Setting]:
        """Return the settings by name, as in a journal or a script."""
        return dict(vars(self))

    @property
    def shape(self) -> Model:
        """The model's configuration."""
        return MODELS[self.model]

    @property
    def ranks(self) -> int:
        """The number of ranks, each of which is a process."""
        return prod(getattr(self, name) for name in PARALLEL)

    @property
    def aborts(self) -> bool:
        """Whether requests may be aborted at any time."""
        return True

    @property
    def moves(self) -> bool:
        """Whether KV is copied elsewhere and comes back, and requests may be aborted then."""
        return False

    @property
    def repeatable(self) -> bool:
        """Whether a prompt has the log-likelihoods of the tokens that were generated before."""
        return False

    @property
    def extras(self) -> Sequence[str]:
        """The parameters of sampling that only some requests of some waves have."""
        return ()

    def traffic(self) -> Iterator[Wave]:
        """Return the generated requests for the seed, as all settings change them."""
        given = with_sampling(self.seed, self.requests())
        given = with_repeats(self.seed, with_extras(self.seed, given, self.extras))
        given = with_aborts(self.seed, given) if self.aborts else without_aborts(given)
        if self.moves:
            given = with_aborts_of_moving(self.seed, given)
        if self.repeatable:
            given = with_checks(self.seed, given, self.limits())
        if self.priorities:
            given = with_priorities(self.seed, given, self.limits())
        acts = [one for one in self.ACTIONS if one != "adapters" or getattr(self, "adapters", None)]
        return with_actions(self.seed, given, acts) if self.actions else given

    def company(self) -> Wave | None:
        """Return a wave whose requests are compared with themselves alone, or None for none."""
        return None

    def limits(self) -> Limits:
        """Return the limits for requests."""
        raise NotImplementedError

    def requests(self) -> Iterator[Wave]:
        """Return the generated requests for the seed."""
        return other_prefixes(waves(self.seed, self.limits()))


def extras_with_drafts(drafts: bool, forced: bool) -> tuple[str, ...]:
    """Return the extras of an engine.

    No grammar allows drafts that are accepted by force, and processors are not for drafts.
    """
    grammars = () if forced else ("grammar",)
    processors = () if drafts else ("processor",)
    return (*grammars, *processors, "likelihoods", "ignore_eos")
