"""The configurations with which an engine is served.

A configuration has one value of each *axis*. The configurations of a table are the rows of a
covering array: each two values that can be combined occur in a row together. The first rows have
each value once. Among them, those with the pairs that found the most faults come first, then those
that cover the most new pairs.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, combinations_with_replacement, product
from math import prod
from random import Random

from paritybit.drive.script import Setting

LACKING = 4
"""The exit code if the release lacks a configuration. The last line has the reason."""

MODEL, PLAINEST_MODEL = "model", "gemma4"
"""The axis of models, which sets `model`, and the value of `model` by default."""

AND = " + "
"""Separates the values in the name of a row."""

FIRST = 10
"""How much a value counts that no row has had, in pairs."""

TRIES = 6
"""The number of random rows of which the one that covers the most is taken."""

SettingPair = frozenset[str]


class LackingError(ValueError):
    """A release or a model does not support a setting."""


@dataclass(frozen=True)
class Config:
    """A configuration: one way to serve an engine.

    - `name`: its values that are not the plainest of their axis.
    - `values`: one value of each axis, in the order of the axes.
    - `settings`: the settings that differ from the defaults.
    - `replays`: False if its settings allow few replays or none.
    - `number`: its place in the covering array, from 0 on. It is added to the seed of its requests.
    """

    name: str
    values: tuple[str, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    replays: bool = True
    number: int = 0

    @property
    def arguments(self) -> tuple[str, ...]:
        """The settings as text."""
        return tuple(f"{name}={value}" for name, value in self.settings.items())

    @property
    def pairs(self) -> set[SettingPair]:
        """The pairs of its values."""
        return set(map(frozenset, combinations(self.values, 2)))


@dataclass(frozen=True)
class Table:
    """The axes of an engine.

    - `axes`: per axis, the settings of each value. The first value is the plainest. The values of
      all axes have different names.
    - `apart`: groups of values. No row can have a value of each group.
    - `failing`: the same for known failures of an engine. A named row may combine these values.
    - `several`: the same per setting with a number of ranks, such as "dp" or "dp on cpu", if it is
      more than 1, by the reason.
    - `devices`: the only device that supports a value.
    - `ranked`: the setting with a number of ranks that must be more than 1 for a value.
    - `quiet`: values with which few graphs or none are replayed.
    - `weights`: how much a value, or several together, counts. The default is 1.
    """

    axes: Mapping[str, Mapping[str, Mapping[str, Setting]]]
    apart: Sequence[Sequence[Collection[str]]] = ()
    failing: Sequence[Sequence[Collection[str]]] = ()
    several: Mapping[str, Mapping[str, Sequence[Collection[str]]]] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)
    ranked: Mapping[str, str] = field(default_factory=dict)
    quiet: Collection[str] = ()
    weights: Mapping[tuple[str, ...], float] = field(default_factory=dict)

    @cached_property
    def settings(self) -> Mapping[str, Mapping[str, Setting]]:
        """The settings of each value."""
        return {value: own for axis in self.axes.values() for value, own in axis.items()}

    def on(self, device: str, model: str | None = None) -> "Table":
        """Return the table of a device, and of a model. Raises ValueError without the model."""
        axes = {
            axis: {
                value: settings
                for value, settings in values.items()
                if self.devices.get(value, device) == device
                and (axis != MODEL or model in (None, settings.get(MODEL, PLAINEST_MODEL)))
            }
            for axis, values in self.axes.items()
        }
        if not axes[MODEL]:
            raise ValueError(f"the engine is not served with {model} on {device}")
        return replace(self, axes=axes, devices={})

    def with_ranks(self, settings: Collection[str], device: str) -> "Table":
        """Return the table for several ranks by some settings. Raises ValueError without a row."""
        names = {*settings, *(f"{name} on {device}" for name in settings)}
        several = {name: why for name, why in self.several.items() if name in names}
        groups = [groups for why in several.values() for groups in why.values()]
        lacking = {value for value, needed in self.ranked.items() if needed not in settings}
        axes = {
            axis: {value: own for value, own in values.items() if value not in lacking}
            for axis, values in self.axes.items()
        }
        table = replace(self, axes=axes, apart=(*self.apart, *groups), several=several)
        if table.completed(()) is None:
            raise ValueError("; ".join(table.lacks))
        return table

    @property
    def lacks(self) -> list[str]:
        """What the engine does not support with its ranks, as sentences."""
        return [reason for why in self.several.values() for reason in why]

    @cached_property
    def array(self) -> "Table":
        """The table of the covering array, without known failures."""
        return replace(self, apart=(*self.apart, *self.failing), failing=())

    @cached_property
    def impossible(self) -> frozenset[frozenset[str]]:
        """The sets of values that cannot be combined."""
        return frozenset(frozenset(values) for groups in self.apart for values in product(*groups))

    @cached_property
    def impossible_with(self) -> Mapping[str, Sequence[frozenset[str]]]:
        """The sets of `impossible` that have a value, by this value."""
        found: dict[str, list[frozenset[str]]] = {}
        for values in self.impossible:
            for value in values:
                found.setdefault(value, []).append(values)
        return found

    @cached_property
    def pairs(self) -> frozenset[SettingPair]:
        """The pairs of values that occur in a row."""
        found = set()
        for one, other in combinations(self.axes.values(), 2):
            found |= {frozenset((a, b)) for a in one for b in other if self.completed((a, b))}
        return frozenset(found)

    def weight(self, values: Collection[str]) -> float:
        """Return how much a value or a pair counts."""
        return prod(weight for words, weight in self.weights.items() if set(words) <= {*values})

    def completed(self, chosen: Collection[str]) -> tuple[str, ...] | None:
        """Return the plainest row with some values, or None if there is none."""
        if not all(self.combines(value, chosen) for value in chosen):
            return None  # Else, all values of the axes before theirs would be tried.
        return self._extended(tuple(chosen), list(self.axes.values()))

    def _extended(
        self, chosen: tuple[str, ...], axes: Sequence[Mapping[str, object]]
    ) -> tuple[str, ...] | None:
        if not axes:
            return tuple(chosen)
        axis, *rest = axes
        mine = [value for value in axis if value in chosen]
        for value in mine or axis:
            others = [one for one in chosen if one != value]
            if not self.combines(value, others):
                continue
            found = self._extended((*others, value), rest)
            if found is not None:
                return found
        return None

    def combines(self, value: str, others: Collection[str]) -> bool:
        """Return whether a value can be combined with others."""
        row = {value, *others}
        return not any(values <= row for values in self.impossible_with.get(value, ()))

    def config(self, values: Collection[str]) -> Config:
        """Return the plainest configuration with some values. Raises ValueError."""
        for axis, own in self.axes.items():
            both = [value for value in own if value in values]
            if len(both) > 1:
                raise ValueError(f"{AND.join(both)} cannot be combined: each is the {axis}")
        row = self.completed(values)
        if row is None:
            ranks = f" with these ranks: {'; '.join(self.lacks)}" if self.lacks else ""
            raise ValueError(f"{AND.join(values)} cannot be combined{ranks}")
        plainest = [next(iter(axis)) for axis in self.axes.values()]
        named = [value for value, plain in zip(row, plainest, strict=True) if value != plain]
        settings = {name: one for value in row for name, one in self.settings[value].items()}
        name = AND.join(named) or plainest[0]
        return Config(name, row, settings, not set(row) & set(self.quiet))

    def rows(self, seed: int) -> Iterator[Config]:
        """Yield rows until each pair has occurred. They depend on the seed alone."""
        chance = Random(f"rows {seed}")
        missing = {pair: self.weight(pair) for pair in sorted(self.pairs, key=sorted)}
        for value in filter(lambda value: self.completed((value,)), self.settings):
            missing[frozenset((value,))] = FIRST * self.weight((value,))
        axes, number = list(self.axes.values()), 0
        while missing:
            most = max(missing.values())
            heaviest = [pair for pair, weight in missing.items() if weight == most]
            tried = [
                self._row(chance.choice(heaviest), chance.sample(axes, len(axes)), missing, chance)
                for _ in range(TRIES)
            ]
            config = self.config(max(tried, key=lambda row: gain(row, missing)))
            yield replace(config, number=number)
            number += 1
            for covered in combinations_with_replacement(config.values, 2):
                missing.pop(frozenset(covered), None)

    def _row(
        self,
        first: SettingPair,
        axes: Sequence[Mapping[str, object]],
        missing: Mapping[SettingPair, float],
        chance: Random,
    ) -> list[str]:
        """Return a row with a pair. Each further value covers the most, or weighs the most."""
        row = sorted(first)
        for axis in axes:
            if not set(axis).isdisjoint(row):
                continue
            values = chance.sample(list(axis), len(axis))
            values.sort(key=lambda value: -self.weight((value,)))
            able = [value for value in values if self.completed((*row, value)) is not None]
            row.append(max(able, key=lambda value: gain((*row, value), missing)))
        return row


def gain(row: Collection[str], missing: Mapping[SettingPair, float]) -> float:
    """Return the weight of the missing values and pairs of a row."""
    covered = combinations_with_replacement(row, 2)
    return sum(missing.get(frozenset(one), 0.0) for one in covered)
