"""Which bugs are tried on which runners, and how far a schedule that shows one must shrink."""

from paritybit.harness.checks.expectations import affected_runners, detected_by, unaffected_reason
from paritybit.subjects.bugs.catalogue import BUGS, FIRST

from properties.support.trials import every_pair

Pair = tuple[str, str]
"""A bug and a runner, by name."""

PAIRS: list[Pair] = [pair for pair in every_pair() if pair[0] in FIRST and "." not in pair[0]]
"""What the suite hunts, of this engine's own history.

The memo's sites one by one are tried on all runners by the main job, and so is the public
catalogue, of which the suite tries each bug on one runner alone.
"""

AFFECTED = [pair for pair in PAIRS if unaffected_reason(BUGS[pair[0]], pair[1]) is None]
UNAFFECTED = [pair for pair in PAIRS if pair not in AFFECTED]

ONE_UNAFFECTED_PER_BUG: list[Pair] = list(dict(reversed(UNAFFECTED)).items())
"""Of the runners that a bug does not affect, the first; the main job tries all."""

ONE_RUNNER_PER_BUG: list[Pair] = [
    (name, affected_runners(bug)[place % len(affected_runners(bug))])
    for place, (name, bug) in enumerate((name, BUGS[name]) for name in FIRST)
    if affected_runners(bug) and "." not in name
]
"""The main job shrinks on all runners that a bug affects."""

CATALOGUED: list[Pair] = [
    (name, affected_runners(bug)[0]) for name, bug in BUGS.items() if name not in FIRST
]
"""Every bug of the public catalogue, on the first runner that it affects."""

MOST_REQUESTS = 3
"""Two, and one more: the smallest batch that a CPU graph pads after it held more is of three."""


def detecting(bug: str, runner: str) -> str:
    """Return the property that must see a bug on a runner that it affects."""
    found = detected_by(BUGS[bug], runner)
    assert found is not None
    return found


def pair_name(pair: Pair) -> str:
    """Return a pair as a test id."""
    return "@".join(pair)
