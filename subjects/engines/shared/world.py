"""What an engine's side of requests asks of the world that it is to keep in step with."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from paritybit.reference.allocator import Owner
from paritybit.reference.pool import KVPools
from paritybit.reference.state_pool import HiddenStates


@dataclass(frozen=True)
class Known:
    """What a world knows of a running request: its tokens, and how many have their KV.

    Blocks that a query at `kept` reaches stay, whatever runs, unless it is None.
    """

    owner: Owner
    tokens: tuple[int, ...]
    kept: int | None = None


@dataclass(frozen=True)
class World:
    """What an engine asks of the graph world, which may be made after it.

    `owners` are its running requests, `running` the same with what is known of them, by serial.
    `retracted` are the serials of those that may come again; `hidden_states` [token rows,
    max_context, H] is what the target made of all tokens.
    """

    pools: KVPools
    owners: Callable[[], Sequence[Owner]]
    running: Callable[[], dict[int, Known]]
    retracted: Callable[[], Collection[int]]
    hidden_states: Callable[[], HiddenStates]
