"""The legs of each engine: what they serve, in which share of the time, and by which command."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from paritybit.harness.cli.watch.run import legs_of

from paritybit.drive.engines import DRIVEN, Driven
from paritybit.drive.environment import Environment
from paritybit.drive.legs import plan
from paritybit.drive.playing import parser_of, served_as
from paritybit.drive.served import DEVICES
from paritybit.drive.transformers.settings import Served

ALIKE: Mapping[tuple[str, str], set[str]] = {
    ("sglang", "cpu"): {"rows", "sliding_draft", "frozen_draft", "backend"},
    ("sglang", "cuda"): {"rows", "sliding_draft", "frozen_draft", "backend"},
    ("transformers", "cpu"): {"alone"},
    ("transformers", "cuda"): {"alone"},
    ("vllm", "cpu"): {"alone", "whole_prompts", "backend"},
    ("vllm", "cuda"): {"alone", "model", "whole_prompts"},
}
"""Settings that all legs of an engine have alike on a device, besides the device and the seed."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("one", DRIVEN, ids=lambda one: one.package.name)
def test_legs_are_command_lines_that_vary_each_setting(
    one: Driven, device: str, tmp_path: Path
) -> None:
    engine = Environment(f"{one.package.name} 0", tmp_path / "source", tmp_path / "dependencies")
    compiled = engine.source / one.package.name / "_C.abi3.so"  # vLLM needs it on a GPU.
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    legs = legs_of(plan(device, one.legs), 60.0)
    assert sum(leg.seconds for leg in legs) == pytest.approx(60.0)
    assert len({leg.name for leg in legs}) == len(legs)
    scopes = []
    for leg in legs:
        words, _ = one.starter.command(engine, leg, "gemma4", 3, device)
        asked = parser_of(one.served).parse_args(words[3:])
        assert (asked.seed, asked.device) == (3, device)
        assert asked.seconds == pytest.approx(leg.seconds, rel=1e-4)
        scopes.append(served_as(one.served, asked).scope())
    alike = {name for name in scopes[0] if len({scope[name] for scope in scopes}) == 1}
    assert alike - {"device", "seed"} == ALIKE[one.package.name, device]


@pytest.mark.parametrize("device", DEVICES)
def test_a_leg_of_transformers_combines_what_may_hold_or_move_blocks(device: str) -> None:
    """Samples and batches that run together end with equal blocks, which one of them gives up."""
    (one,) = (one for one in DRIVEN if one.package.name == "transformers")
    served = [
        parser_of(Served).parse_args([*leg.arguments, "--device", device])
        for leg in plan(device, one.legs)
    ]
    assert any(s.full and s.overlap and s.offload and s.samples > 1 for s in served)
