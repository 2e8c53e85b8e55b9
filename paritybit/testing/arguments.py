"""Makes groups and slots of the arguments of `check_replay`, and checks that they fit."""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from paritybit.watch.facts import Group, Layer, StaticInput

KV = Mapping[str, Sequence[Tensor]] | Sequence[Tensor] | Tensor
Slots = Mapping[str, Tensor] | Tensor

ONE_GROUP = "kv"
"""The name of the group if the KV tensors have no names."""


def groups_of(kv: KV, reserved: Collection[int], block_size: int | None) -> list[Group]:
    """Return the KV tensors as groups. Raises ValueError if they do not fit."""
    parts = kv if isinstance(kv, Mapping) else {ONE_GROUP: kv}
    held = {name: (part,) if isinstance(part, Tensor) else part for name, part in parts.items()}
    if not held or not all(held.values()):
        raise ValueError("kv holds no tensors")
    groups = list[Group]()
    for name, tensors in held.items():
        first = tensors[0].shape[0]
        shape = [first] if block_size is None else [first, block_size]
        for number, tensor in enumerate(tensors):
            if list(tensor.shape[: len(shape)]) != shape:
                raise ValueError(
                    f"tensor {number} of {name} is {list(tensor.shape)}: all begin with {shape}"
                )
        layers = tuple(Layer(f"tensor {n}", (tensor,)) for n, tensor in enumerate(tensors))
        groups.append(Group(name, layers, reserved=frozenset(reserved), block=block_size))
    return groups


def owned_of(slots: Slots, groups: Sequence[Group]) -> dict[str, Tensor]:
    """Return the owned slots of each group on the host, int64 [n].

    Raises ValueError for slots that the KV tensors lack, and if there is nothing to judge.
    """
    given = slots if isinstance(slots, Mapping) else {group.name: slots for group in groups}
    unknown = set(given) - {group.name for group in groups}
    if unknown:
        raise ValueError(f"owned_slots names groups that kv lacks: {', '.join(sorted(unknown))}")
    owned = {
        group.name: within(given[group.name], group) for group in groups if group.name in given
    }
    if all(set(mine.tolist()) <= groups[0].reserved for mine in owned.values()):
        raise ValueError("owned_slots are empty or all reserved: nothing would be judged")
    return owned


def within(slots: Tensor, group: Group) -> Tensor:
    """Return slots of a group on the host, int64 [n]. Raises ValueError for any other slot."""
    found = torch.as_tensor(slots).flatten().long().cpu()
    last = group.layers[0].tensors[0].shape[0] * (group.block or 1)
    outside = found[(found < 0) | (found >= last)]
    if len(outside):
        raise ValueError(f"owned_slots holds {int(outside[0])}, but {group.name} has {last} slots")
    return found


def require_inputs(
    inputs: Sequence[StaticInput], captured: Mapping[str, Tensor], groups: Sequence[Group]
) -> None:
    """Raise ValueError unless each static input has a name of its own and fits its tensor."""
    if unknown := set(captured) - {one.name for one in inputs}:
        raise ValueError(f"captured names inputs that static_inputs lacks: {sorted(unknown)[0]}")
    names = set[str]()
    for one in inputs:
        if one.name in names:
            raise ValueError(f"two static inputs are named {one.name}")
        names.add(one.name)
        shape = list(one.tensor.shape)
        if one.axis >= len(shape) or not 0 <= one.live <= one.size <= shape[one.axis]:
            raise ValueError(
                f"static input {one.name} is {shape}: axis {one.axis}, live {one.live} and "
                f"size {one.size} do not fit"
            )
        live = list(one.tensor.narrow(one.axis, 0, one.live).shape)
        if one.expected is not None and list(one.expected.shape) != live:
            raise ValueError(
                f"static input {one.name} expects {list(one.expected.shape)}, and {live} are live"
            )
        if one.writes is not None and one.writes not in {group.name for group in groups}:
            raise ValueError(f"static input {one.name} writes {one.writes}, which kv lacks")
