"""A toy in place of vLLM: a test that was exported runs with it in a moment."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

Tokens = Callable[[list[int], int], int]
"""Returns the next token, from those of a request and how many requests run with it."""


@dataclass
class Running:
    """A request that runs: its tokens so far, and how many more it gets."""

    name: str
    tokens: list[int]
    left: int
    made: list[int]


@dataclass
class Output:
    """What a step says of a request."""

    request_id: str
    outputs: list[Any]
    finished: bool


class Engine:
    """Makes one token of each request in a step. `events` has what arrived before each step."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.running: list[Running] = []
        self.events: list[list[str]] = [[]]

    def add_request(self, name: str, prompt: dict[str, list[int]], how: dict[str, Any]) -> None:
        """Start a request."""
        ids = prompt["prompt_token_ids"]
        self.events[-1].append(f"start {name} {ids} {how['temperature']:.1f}")
        self.running.append(Running(name, list(ids), how["max_tokens"], []))

    def abort_request(self, names: list[str]) -> None:
        """Abort requests."""
        self.events[-1].append(f"abort {names[0]}")
        self.running = [one for one in self.running if one.name not in names]

    def reset_prefix_cache(self) -> None:
        """Empty the cache."""
        self.events[-1].append("flush")

    def step(self) -> list[Output]:
        """Make one token of each request."""
        self.events.append([])
        outputs, company = [], len(self.running)
        for one in self.running:
            token = self.tokens(one.tokens, company)
            one.tokens.append(token)
            one.made.append(token)
            one.left -= 1
            made = ModuleType("made")
            made.token_ids = one.made  # type: ignore[attr-defined]
            outputs.append(Output(one.name, [made], one.left == 0))
        self.running = [one for one in self.running if one.left]
        return outputs


def module(engine: Engine) -> ModuleType:
    """Return a module that stands for vLLM, with one engine."""
    made: Any = ModuleType("vllm")
    made.EngineArgs = dict
    made.SamplingParams = dict
    made.LLMEngine = ModuleType("LLMEngine")
    made.LLMEngine.from_engine_args = lambda arguments: engine
    result: ModuleType = made
    return result
