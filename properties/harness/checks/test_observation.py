"""An observation is data: tensors, tables, owners. No world can be reached from it."""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

import pytest
import torch
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.schedules.schedule import Step
from paritybit.reference.pool import KVLayout
from paritybit.subjects.runners import ONE_PER_ENGINE
from torch import Tensor

from properties.support.harness.planting import SCHEDULE, shared

DATA = (Tensor, str, int, float, bool, type(None), enum.Enum, torch.dtype, torch.device)
"""What holds nothing else. A size of torch's is a tuple of whole numbers."""


def not_data(value: object, path: str = "observation") -> Iterator[str]:
    """Yield the path of whatever can be reached from a value and is no data."""
    if isinstance(value, DATA):
        return
    if isinstance(value, Mapping):
        for key, held in value.items():
            yield from not_data(held, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple | set | frozenset):
        for place, held in enumerate(value):
            yield from not_data(held, f"{path}[{place}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from not_data(getattr(value, field.name), f"{path}.{field.name}")
        if vars(value).keys() - {field.name for field in fields(value)}:
            yield f"{path}: {sorted(vars(value))}"
    elif isinstance(value, KVLayout):  # Where KV lies in a storage: shapes and sizes.
        yield from not_data(vars(value), path)
    else:
        yield f"{path}: {type(value).__qualname__}"


def observed(engine: str, device: str) -> list[Observation]:
    """Return copies of what was observed of the schedule's steps, with all that may be asked."""
    found: list[Observation] = []
    lockstep = shared(device, engine)
    runs = {name: rule.extra_run for name, rule in PROPERTIES.items() if rule.extra_run}
    with torch.inference_mode():
        lockstep.pair.reset(SCHEDULE.seed)
        for place, step in SCHEDULE.flat():
            observation = lockstep.pair.step(step, place, runs, sampling=True)
            if observation is not None:
                found.append(observation)
    return found


@pytest.mark.parametrize("engine", ONE_PER_ENGINE)
def test_an_observation_holds_nothing_but_data(engine: str, device: str) -> None:
    """Of any mode, with what extra runs gave and what requests sampled."""
    found = observed(engine, device)
    assert [path for one in found for path in not_data(one)] == []
    assert {one.mode for one in found} >= set(shared(device, engine).pair.trial.modes)
    assert any(one.samples for one in found)
    assert all(set(one.extra) for one in found if one.replay is not None)


def test_a_step_is_observed_as_it_was_before_its_commit(device: str) -> None:
    """KV that is moved and tables that are written afterwards do not change it."""
    pair = shared(device, "cpu_graph").pair
    with torch.inference_mode():
        pair.reset(SCHEDULE.seed)
        steps: list[Step] = [step for _, step in SCHEDULE.flat()]
        for step in steps[:3]:
            found = pair.step(step)
        assert found is not None
        kept = [tensor.clone() for tensor in tensors_of(found)]
        for pools in (pair.eager_pools, pair.graph_pools):
            pools.storage.zero_()
            pools.tables.req_to_token.fill_(3)
            pools.tables.full_to_swa_index_mapping.fill_(3)
        assert all(torch.equal(*both) for both in zip(kept, tensors_of(found), strict=True))


def tensors_of(found: Observation) -> list[Tensor]:
    """Return what was observed of both worlds' KV and tables."""
    return [
        tensor
        for world in (found.eager, found.graph)
        for tensor in (world.before, world.after, world.mapping)
    ]
