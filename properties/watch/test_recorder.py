"""The shape of traffic is recorded without tokens, and gives a script of that shape."""

import torch

from paritybit.drive.script import Part
from paritybit.launch.traffic import script_of_traffic
from paritybit.watch.chains import Chains
from paritybit.watch.facts import Forward, Row
from paritybit.watch.recorder import Recorder

PROMPTS = {"alice": [5, 6, 7, 8, 9, 10], "bob": [5, 6, 7, 30], "carol": [40, 41]}


def recorded(steps: list[list[tuple[str, int, int]]]) -> list[dict[str, object]]:
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
        recorder.note(number, Forward("any", tuple(made)))
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


def test_a_script_has_the_shape_of_the_traffic() -> None:
    script = script_of_traffic(recorded(STEPS), {}, "sglang")
    assert script is not None
    alice, bob, carol = script.waves[0].requests
    assert alice.prompt == (Part("r0", 6),)
    assert bob.prompt == (Part("r0", 3), Part("r1", 1))
    assert [one.arrives for one in (alice, bob, carol)] == [0, 1, 3]
    assert [one.tokens for one in (alice, bob, carol)] == [3, 2, 1]
