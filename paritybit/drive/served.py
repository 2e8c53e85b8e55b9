"""The settings that every engine has. An engine's own kind of them extends `Common`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from paritybit.drive.limits import Limits
from paritybit.drive.models import MODELS, Model
from paritybit.drive.operating.actions import with_actions
from paritybit.drive.requests import other_beginnings, waves
from paritybit.drive.script import LARGEST, Setting, Wave, typed_json

DEVICES = ("cpu", "cuda")

Kind = TypeVar("Kind", bound="Common")


@dataclass(frozen=True)
class Common:
    """What an engine is served with. `alone`: each request is also served by itself.

    With `actions`, generated requests are served among actions of an operator: those of `ACTIONS`,
    where the release has them. `CHOICES` are the values that a setting may have, `SIZES` the
    settings that are sizes.
    """

    ACTIONS: ClassVar[Sequence[str]] = ("flush",)
    CHOICES: ClassVar[Mapping[str, Sequence[Setting]]] = {}
    SIZES: ClassVar[Sequence[str]] = ("page_size",)

    model: str = "gemma4"
    device: str = "cpu"
    seed: int = 0
    page_size: int = 16
    prefix_cache: bool = True
    overlap: bool = False
    alone: bool = False
    actions: bool = field(default=False, metadata={"later": True})

    @classmethod
    def choices(cls) -> Mapping[str, Sequence[Setting]]:
        """Return the values that settings may have, by the name of a setting."""
        return {"model": tuple(MODELS), "device": DEVICES, **cls.CHOICES}

    @classmethod
    def of(cls: type[Kind], settings: Mapping[str, Setting]) -> Kind:
        """Return what a script's settings say. Raises ValueError for any that there is not."""
        served: Kind = typed_json().from_json(cls, dict(settings), "the settings")
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
        """Return the settings by name, as a journal and a script state them."""
        return dict(vars(self))

    @property
    def shape(self) -> Model:
        """The model's configuration."""
        return MODELS[self.model]

    def traffic(self) -> Iterator[Wave]:
        """Return the requests of the seed, with actions if these are asked for."""
        given = self.requests()
        return with_actions(self.seed, given, self.ACTIONS) if self.actions else given

    def limits(self) -> Limits:
        """Return what requests must keep to."""
        raise NotImplementedError

    def requests(self) -> Iterator[Wave]:
        """Return the requests of the seed."""
        return other_beginnings(waves(self.seed, self.limits()))
