"""Validates the arguments of `check_replay`. Each error has a message of one sentence."""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from paritybit.watch.checks.changed_dtype import name_of
from paritybit.watch.facts import Group, Layer, StaticInput

KV = Mapping[str, Sequence[Tensor]] | Sequence[Tensor] | Tensor
Slots = Mapping[str, Tensor] | Tensor

ONE_GROUP = "kv"
"""The name of the group if the KV tensors have no names."""


def require_callable(name: str, given: object) -> None:
    """Raise ValueError unless an argument is a function."""
    if not callable(given):
        raise ValueError(f"{name} is a {kind_of(given)}: pass the function, not what it returns")


def groups_of(kv: KV, reserved: Collection[int], block_size: int | None) -> list[Group]:
    """Return the KV tensors as groups. Raises ValueError for malformed arguments."""
    if not isinstance(reserved, Collection) or isinstance(reserved, Tensor):
        raise ValueError(f"reserved_slots is a {kind_of(reserved)}, not a set of integers")
    parts = kv if isinstance(kv, Mapping) else {ONE_GROUP: kv}
    groups = [group_of(name, kv, frozenset(reserved), block_size) for name, kv in parts.items()]
    if not groups:
        raise ValueError("kv holds no tensors")
    return groups


def group_of(
    name: str, kv: Sequence[Tensor] | Tensor, reserved: frozenset[int], block_size: int | None
) -> Group:
    """Return a group with a layer per KV tensor. Raises ValueError for malformed arguments."""
    tensors = (kv,) if isinstance(kv, Tensor) else kv
    if not isinstance(tensors, Sequence) or not tensors:
        raise ValueError("kv holds no tensors")
    for number, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"tensor {number} of {name} is a {kind_of(tensor)}, not a tensor")
        shape = list(tensor.shape)
        if block_size is None and (not shape or shape[0] != tensors[0].shape[0]):
            raise ValueError(f"tensor {number} of {name} is {shape}: all are [slots, ...]")
        if block_size is not None and shape[:2] != [tensors[0].shape[0], block_size]:
            raise ValueError(
                f"tensor {number} of {name} is {shape}: all are [blocks, {block_size}, ...]"
            )
    layers = tuple(Layer(f"tensor {n}", (tensor,)) for n, tensor in enumerate(tensors))
    return Group(name, layers, reserved=reserved, block=block_size)


def owned_of(slots: Slots, groups: Sequence[Group]) -> dict[str, Tensor]:
    """Return the owned slots of each group, int64 [n]. Raises ValueError for invalid slots."""
    given = slots if isinstance(slots, Mapping) else {group.name: slots for group in groups}
    unknown = set(given) - {group.name for group in groups}
    if unknown:
        raise ValueError(f"owned_slots names groups that kv lacks: {', '.join(sorted(unknown))}")
    owned = {
        group.name: integers(given[group.name], group) for group in groups if group.name in given
    }
    if not any(len(mine) for mine in owned.values()):
        raise ValueError("owned_slots is empty: a replay without live rows shows nothing")
    reserved = groups[0].reserved
    if all(set(mine.tolist()) <= reserved for mine in owned.values()):
        raise ValueError("owned_slots are all reserved: nothing would be judged")
    return owned


def integers(slots: Tensor, group: Group) -> Tensor:
    """Return slots of a group on the host, int64 [n]. Raises ValueError for invalid slots."""
    tensor = torch.as_tensor(slots).flatten()
    if tensor.numel() and (tensor.is_floating_point() or tensor.dtype == torch.bool):
        raise ValueError(f"owned_slots are {name_of(tensor.dtype)}: slots are integers")
    found = tensor.long().cpu()
    shape = group.layers[0].tensors[0].shape
    last = shape[0] * (group.block or 1)
    outside = found[(found < 0) | (found >= last)]
    if len(outside):
        raise ValueError(f"owned_slots holds {int(outside[0])}, but {group.name} has {last} slots")
    return found


def require_inputs(inputs: Sequence[StaticInput], groups: Sequence[Group]) -> None:
    """Raise ValueError unless each static input describes its tensor."""
    if not isinstance(inputs, Sequence):
        raise ValueError(f"static_inputs is a {kind_of(inputs)}, not a list of StaticInput")
    names = set[str]()
    for number, one in enumerate(inputs):
        if not isinstance(one, StaticInput):
            raise ValueError(f"static_inputs[{number}] is a {kind_of(one)}, not a StaticInput")
        if one.name in names:
            raise ValueError(f"two static inputs are named {one.name}")
        names.add(one.name)
        require_sizes(one)
        if one.writes is not None and one.writes not in {group.name for group in groups}:
            raise ValueError(f"static input {one.name} writes {one.writes}, which kv lacks")


def require_sizes(one: StaticInput) -> None:
    """Raise ValueError unless the sizes of a static input fit its tensor."""
    if not isinstance(one.tensor, Tensor):
        raise ValueError(f"static input {one.name} is a {kind_of(one.tensor)}, not a tensor")
    shape = list(one.tensor.shape)
    if not 0 <= one.axis < len(shape):
        raise ValueError(f"static input {one.name} is {shape}, which has no axis {one.axis}")
    if not 0 <= one.live <= one.size <= shape[one.axis]:
        raise ValueError(
            f"static input {one.name} is {shape}: live {one.live} and size {one.size} do not fit"
        )
    live = list(one.tensor.narrow(one.axis, 0, one.live).shape)
    if one.expected is not None and list(one.expected.shape) != live:
        raise ValueError(
            f"static input {one.name} expects {list(one.expected.shape)}, and {live} are live"
        )


def require_named(name: str, given: Mapping[str, Tensor], inputs: Sequence[StaticInput]) -> None:
    """Raise ValueError unless an argument maps names of static inputs to tensors."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{name} is a {kind_of(given)}, not tensors by the name of their input")
    unknown = set(given) - {one.name for one in inputs}
    if unknown:
        raise ValueError(f"{name} names inputs that static_inputs lacks: {sorted(unknown)[0]}")
    for key, value in given.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} of {key} is a {kind_of(value)}, not a tensor")


def require_padding(padding: Mapping[str, Tensor], inputs: Sequence[StaticInput]) -> None:
    """Raise ValueError unless each tensor in `padding` has the shape of its input."""
    require_named("padding", padding, inputs)
    for one in inputs:
        value = padding.get(one.name)
        if value is not None and value.shape != one.tensor.shape:
            raise ValueError(
                f"padding of {one.name} is {list(value.shape)}, not {list(one.tensor.shape)}"
            )


def kind_of(given: object) -> str:
    """Return the name of an object's type."""
    return type(given).__name__
