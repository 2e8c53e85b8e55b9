"""The shape of traffic is recorded without tokens, and gives a script of that shape."""

from collections.abc import Mapping

import pytest
import torch

from paritybit.drive.adapters import adapter
from paritybit.drive.script import Part
from paritybit.drive.served import Common
from paritybit.drive.sglang import settings as sglang
from paritybit.drive.transformers import settings as transformers
from paritybit.drive.vllm import settings as vllm
from paritybit.launch.traffic import LONGEST, MOST, script_of_traffic
from paritybit.watch.chains import Chains
from paritybit.watch.facts import Forward, Row
from paritybit.watch.recorder import KEPT, Recorder

PROMPTS = {"alice": [5, 6, 7, 8, 9, 10], "bob": [5, 6, 7, 30], "carol": [40, 41]}


def recorded(steps: list[list[tuple[str, int, int]]], model: str = "") -> list[dict[str, object]]:
    """Return what is recorded of forwards with these requests, cached and computed positions."""
    recorder, chains = Recorder(), Chains()
    for number, rows in enumerate(steps, 1):
        for request, cached, computed in rows:
            tokens = (PROMPTS[request] + [99] * 50)[: cached + computed]
            chains.hashes(request, tokens, len(tokens))
        made = [
            Row(request, PROMPTS[request], cached, computed, {"full": torch.zeros(0)})
            for request, cached, computed in rows
        ]
        recorder.note(number, Forward("any", tuple(made), model=model))
    return recorder.traffic(chains.chains)


STEPS = [
    [("alice", 0, 4)],
    [("alice", 4, 2), ("bob", 3, 1)],
    [("alice", 6, 1), ("bob", 4, 1)],
    [("alice", 7, 1), ("carol", 0, 2)],
]


def test_requests_are_numbered_and_what_they_share_is_a_length() -> None:
    alice, bob, carol = recorded(STEPS)
    assert alice == {"since": 1, "until": 4, "prompt": 6, "reached": 8, "of": None, "shared": 0}
    assert bob == {"since": 2, "until": 3, "prompt": 4, "reached": 5, "of": 0, "shared": 3}
    assert (carol["of"], carol["since"]) == (None, 4)
    assert "alice" not in str((alice, bob, carol))


def test_drafts_are_not_recorded_and_the_oldest_forwards_are_forgotten() -> None:
    assert recorded(STEPS, model="draft ") == []
    (bob,) = recorded([[("alice", 0, 4)], *([[("bob", 3, 1)]] * KEPT)])
    assert bob["since"] == 2


RADIX, OVERLAP = "disable_radix_cache", "disable_overlap_schedule"


@pytest.mark.parametrize(
    ("engine", "in_use", "served"),
    [
        ("sglang", {}, sglang.Served(page_size=1)),
        (
            "sglang",
            {"page_size": "16", RADIX: "True", OVERLAP: "False"},
            sglang.Served(page_size=16, prefix_cache=False, overlap=True),
        ),
        (
            "transformers",
            {"page_size": "16", RADIX: "True", OVERLAP: "False"},
            transformers.Served(prefix_cache=False, overlap=True),
        ),
        (
            "vllm",
            {"block_size": "32", "enable_prefix_caching": "False", "async_scheduling": "True"},
            vllm.Served(page_size=32, prefix_cache=False, overlap=True),
        ),
    ],
)
def test_a_script_is_for_the_engine_and_has_its_settings(
    engine: str, in_use: Mapping[str, str], served: Common
) -> None:
    settings = {name: (value,) for name, value in in_use.items()}
    script = script_of_traffic(recorded(STEPS), settings, engine)
    assert script is not None
    assert adapter(engine).settings.of(script.settings) == served


def test_a_script_has_the_shape_of_the_traffic() -> None:
    script = script_of_traffic(recorded(STEPS), {}, "sglang")
    assert script is not None
    alice, bob, carol = script.waves[0].requests
    assert alice.prompt == (Part("r0", 6),)
    assert bob.prompt == (Part("r0", 3), Part("r1", 1))
    assert [one.arrives for one in (alice, bob, carol)] == [0, 1, 3]
    assert [one.tokens for one in (alice, bob, carol)] == [3, 2, 1]


def test_long_traffic_is_scaled_and_cut() -> None:
    long = {"since": 1, "until": 9, "prompt": 40_000, "reached": 40_100, "of": None, "shared": 0}
    follower = {**long, "of": 0, "shared": 20_000}
    script = script_of_traffic([long, *[follower] * (MOST + 9)], {}, "sglang")
    assert script is not None
    requests = script.waves[0].requests
    assert len(requests) == MOST
    shared, own = requests[-1].prompt
    assert shared.text == "r0"
    assert shared.length == pytest.approx(own.length, abs=1)
    assert requests[-1].length <= LONGEST


@pytest.mark.parametrize("requests", [[{}], [{"since": "x"}], [3]])
def test_data_that_is_no_traffic_is_refused(requests: list[object]) -> None:
    with pytest.raises((ValueError, LookupError, TypeError)):
        script_of_traffic(requests, {}, "sglang")  # type: ignore[arg-type]
    assert script_of_traffic([], {}, "sglang") is None
