"""Tiny LoRA adapters, and the requests that use them."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from paritybit.drive.requests import with_each
from paritybit.drive.script import Planned, Wave

RANK = 4

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")

ADAPTED = (MODULES, ("q_proj", "v_proj"), ("o_proj",))
"""The modules that adapters change, in turn. An engine clears what an evicted one had in others."""

LOADED = 2
"""The most adapters of a batch, including the base model: fewer than there are."""


def name_of(number: int) -> str:
    """Return the name of an adapter. Numbers start at 1."""
    return f"adapter-{number}"


def config_of(number: int) -> dict[str, Any]:
    """Return the configuration of an adapter."""
    modules = list(ADAPTED[number % len(ADAPTED)])
    return {"peft_type": "LORA", "target_modules": modules, "r": RANK, "lora_alpha": 2 * RANK}


def with_adapters(seed: int, given: Iterator[Wave], count: int) -> Iterator[Wave]:
    """Give requests one of `count` adapters, or none, with the same probability.

    Half of them get that of the first request whose prompt begins with the same text.
    """
    chance, firsts = Random(f"adapters {seed}"), dict[str, int | None]()

    def asks(one: Planned) -> Planned:
        drawn = chance.choice((None, *range(1, count + 1)))
        first = firsts.setdefault(one.prompt[0].text, drawn)
        return replace(one, adapter=chance.choice((first, drawn)))

    return with_each(given, asks) if count else given
