"""What a run does not prove: what was replaced on its device, and what it did not try."""

from collections.abc import Iterator

from paritybit.harness.records.schema import Record
from paritybit.reports.texts import Fact, value_text, words

ON_A_CPU = (
    Fact(
        "CUDA graphs",
        "On a CPU, a graph is a tape: the ops of one forward, recorded with their tensors "
        "and replayed into the same storage. It does not reproduce a GPU’s launch order, "
        "caching allocator or kernel races.",
    ),
    Fact("Triton kernels", "Not run. On a CPU, PyTorch ops replace them."),
)


def skipped(record: Record) -> Iterator[Fact]:
    """Yield what was replaced, cannot be tested, or was not selected."""
    pairs = record.pairs
    hunted = {(bug.bug, bug.runner) for bug in record.bugs}
    on_trial = {hunt.trial.runner for hunt in (*record.clean, *record.bugs)}
    if record.environment.device == "cpu":
        yield from ON_A_CPU
    for runner in record.uncompiled_runners:
        if runner in on_trial:
            message = f"{runner} runs the function without compiling it."
            yield Fact("compiler arithmetic", message)
    lacking = [pair for pair in pairs if not pair.can_be_switched_on]
    if lacking:
        message = f"{len(lacking)} of {len(pairs)} pairs of bug and runner: the runner lacks"
        yield Fact("cannot be switched on", f"{message} what the bug is about.")
    left_out = [
        f"{pair.bug}@{pair.runner}"
        for pair in pairs
        if pair.can_be_switched_on and (pair.bug, pair.runner) not in hunted
    ]
    if left_out:
        yield Fact("hunts not selected, or not reached", value_text(left_out))
    runners = dict.fromkeys(pair.runner for pair in pairs)
    not_on_trial = [name for name in runners if name not in on_trial]
    if not_on_trial:
        yield Fact("runners not tested", words(not_on_trial))
