"""Data-parallel ranks on a CPU, and the experts that only compiled code has there.

Each data-parallel rank is a process that serves its share of the waves. In each step, all of them
run a forward, or a dummy batch, as those with experts wait for one another.
"""

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paritybit.engines.graphs import CpuGraph

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": torch.nn.functional.silu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}
"""The activations of experts, by the engine's names."""


def forked(ranks: int) -> list[int]:
    """Fork this process into data-parallel ranks. Each gets the processes of those before it.

    The last one is this process, so that it can wait for the others.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    others = list[int]()
    while len(others) < ranks - 1 and (child := os.fork()):
        others.append(child)
    rank = len(others)
    os.environ.update(
        VLLM_DP_SIZE=str(ranks),
        VLLM_DP_RANK=str(rank),
        VLLM_DP_RANK_LOCAL=str(rank),
        VLLM_DP_MASTER_IP="127.0.0.1",
        VLLM_DP_MASTER_PORT=str(port),
    )
    return others


def joined(others: Sequence[int]) -> bool:
    """Wait for other ranks, and return whether all have done their jobs."""
    codes = [os.waitpid(one, 0)[1] for one in others]
    return not any(codes)


def on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a recording graph leave out the ops of a function, whose tensors are on the host."""

    def called(*given: Any, **named: Any) -> Any:
        graph = CpuGraph.recording
        if graph is None or not graph.open:
            return function(*given, **named)
        graph.end()
        try:
            return function(*given, **named)
        finally:
            graph.begin()

    return called


def compute_experts(
    out: Tensor,
    given: Tensor,
    both: Tensor,
    down: Tensor,
    both_bias: Tensor | None,
    down_bias: Tensor | None,
    weights: Tensor,
    experts: Tensor,
    activation: str,
    kind: str,
    skip_weighted: bool = False,
) -> None:
    """Compute experts without biases, of which each token has some with a weight each."""
    act, total = ACTIVATIONS[activation], torch.zeros_like(given)
    for place in range(experts.shape[1]):
        mine = experts[:, place].long()
        gate, up = torch.einsum("th,tih->ti", given, both[mine]).chunk(2, dim=-1)
        made = torch.einsum("ti,thi->th", act(gate) * up, down[mine])
        total += made if skip_weighted else made * weights[:, place, None].to(made.dtype)
    out.copy_(total)


def route(logits: Tensor, count: int, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights and the numbers of the experts of each token."""
    experts = torch.topk(logits, count, dim=-1).indices
    weights = torch.softmax(logits, dim=-1).gather(1, experts)
    weights = weights / weights.sum(-1, keepdim=True) * scale[experts].to(weights.dtype)
    return weights.float(), experts.int()
