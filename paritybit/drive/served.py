"""The settings that all engines have. The settings of each engine extend `Common`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar

import msgspec

from paritybit.drive.models import MODELS, Model
from paritybit.drive.operating.actions import with_actions
from paritybit.drive.requests import Limits, other_prefixes, waves, with_priorities, with_sampling
from paritybit.drive.script import LARGEST, Setting, Wave

DEVICES = ("cpu", "cuda")

Kind = TypeVar("Kind", bound="Common")


@dataclass(frozen=True)
class Common:
    """The settings with which an engine is served.

    - `alone`: each request is also served alone.
    - `priorities`: requests have priorities, by which the engine schedules them.
    - `actions`: an operator performs actions between requests: those in `ACTIONS` that the release
      supports.

    `CHOICES` has the values that settings may have. `SIZES` are the settings that are sizes.
    `SIMPLIFIED` are the settings that `shrink` sets to their defaults, in order.
    """

    ACTIONS: ClassVar[Sequence[str]] = ("flush",)
    CHOICES: ClassVar[Mapping[str, Sequence[Setting]]] = {}
    SIZES: ClassVar[Sequence[str]] = ("page_size",)
    SIMPLIFIED: ClassVar[Sequence[str]] = ()

    model: str = "gemma4"
    device: str = "cpu"
    seed: int = 0
    page_size: int = 16
    prefix_cache: bool = True
    overlap: bool = False
    alone: bool = False
    actions: bool = False
    priorities: bool = False

    @classmethod
    def choices(cls) -> Mapping[str, Sequence[Setting]]:
        """Return the values that settings may have, by the name of a setting."""
        return {"model": tuple(MODELS), "device": DEVICES, **cls.CHOICES}

    @classmethod
    def of(cls: type[Kind], settings: Mapping[str, Setting]) -> Kind:
        """Return the settings of a script. Raises ValueError for unknown names or values."""
        names = {one.name for one in fields(cls)}
        if other := sorted(settings.keys() ^ names):
            raise ValueError(f"the settings have unknown or missing names: {', '.join(other)}")
        served = msgspec.convert(settings, cls)
        for name, values in cls.choices().items():
            if getattr(served, name) not in values:
                raise ValueError(f"{name} is one of {', '.join(map(str, values))}")
        for name in cls.SIZES:
            if not 0 < getattr(served, name) <= LARGEST:
                raise ValueError(f"{name} is between 1 and {LARGEST:,}")
        if abs(served.seed) >= 10**18:
            raise ValueError("seed has at most 18 digits")
        return served

    def scope(self) -> dict[str, Setting]:
        """Return the settings by name, as in a journal or a script."""
        return dict(vars(self))

    @property
    def shape(self) -> Model:
        """The model's configuration."""
        return MODELS[self.model]

    def traffic(self) -> Iterator[Wave]:
        """Return the generated requests for the seed, with priorities and actions if set."""
        given = with_sampling(self.seed, self.requests())
        if self.priorities:
            given = with_priorities(self.seed, given)
        return with_actions(self.seed, given, self.ACTIONS) if self.actions else given

    def company(self) -> Wave | None:
        """Return a wave whose requests are compared with themselves alone, or None for none."""
        return None

    def limits(self) -> Limits:
        """Return the limits for requests."""
        raise NotImplementedError

    def requests(self) -> Iterator[Wave]:
        """Return the generated requests for the seed."""
        return other_prefixes(waves(self.seed, self.limits()))
