"""determinism: detects results that differ between two plays of a schedule."""

import torch
from paritybit.harness.checks.property import Playing, Property, Violation
from paritybit.harness.lockstep.bits import bits, unequal

ID = "determinism"


def judge_schedule(playing: Playing) -> list[Violation]:
    """Compare the live rows and all compared slots of two playings of the same steps."""
    first, again = playing.first, playing.again
    assert first is not None and again is not None
    if len(first.outputs) != len(again.outputs):
        message = "a second play of the schedule ran a different number of forwards"
        return [Violation(ID, playing.place, message)]
    found = []
    for place, (left, right) in enumerate(zip(first.outputs, again.outputs, strict=True)):
        if not torch.equal(bits(left), bits(right)):
            message = f"output {place} of the schedule had different bits when it was played again"
            found.append(Violation(ID, playing.place, message, {"output": place}))
            break
    runs = {"eager": (first.eager, again.eager), "graph": (first.graph, again.graph)}
    for run, (one, other) in runs.items():
        if unequal(one, other).logical_and_(playing.compared).any():
            message = (
                f"the KV of the {run} run had different bits when the schedule was played again"
            )
            found.append(Violation(ID, playing.place, message, {"run": run}))
    return found


DETERMINISM = Property(
    id=ID,
    statement="playing the same schedule twice gives the same bits",
    judge_schedule=judge_schedule,
    every_step=False,
    plays_again=True,
)
