"""Each mistake of a mutant makes of a buffer what it says, and of no other."""

from dataclasses import replace

import pytest
import torch
from paritybit.subjects.buffers import BufferPool, StaticInputs
from paritybit.subjects.contracts import Axis, Contract, keep, reset
from paritybit.subjects.key_lists import StaticLists
from paritybit.subjects.mutants.inputs import MistakenInputs
from paritybit.subjects.mutants.mutant import (
    INPUT_CLASSES,
    LIST_CLASSES,
    Mistake,
    metadata,
    mutants,
    mutated_subject,
)
from paritybit.subjects.parts import RIGHT_PARTS, Part
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.toggles import LocationScheme

ROWS: Contract = (
    reset("filled", Axis.TOKEN, torch.int64, 7),
    keep("kept", Axis.TOKEN, torch.int64),
    reset("other", Axis.TOKEN, torch.int64),
    reset("wide", Axis.MROPE, torch.int64, 7),
)
EXTENTS = {Axis.TOKEN: 4}
FIRST, SECOND = [1, 2, 3, 4], [5, 6]

LEFT = {
    Mistake.FIRST_NOT_RESET: [5, 6, 3, 7],
    Mistake.LAST_NOT_RESET: [5, 6, 7, 4],
    Mistake.RESET_AFTER_COPY: [7, 7, 7, 7],
    Mistake.WRONG_FILL: [5, 6, 8, 8],
    Mistake.COPIED_SHORT: [5, 7, 7, 7],
    Mistake.LATE: [1, 2, 3, 4],
    Mistake.FROZEN: [7, 7, 7, 7],
    Mistake.REBOUND: [5, 6, 7, 7],
}
"""What is in a buffer that is reset to 7 once four values were copied, then two."""


def mistaken(mistake: Mistake, name: str) -> MistakenInputs:
    """Return static inputs of which one is got wrong."""
    kind = type("Mistaken", (INPUT_CLASSES[mistake],), {"mutated": name})
    found: MistakenInputs = kind(ROWS, EXTENTS, BufferPool(torch.device("cpu")), torch.float32, 2)
    return found


def populate(inputs: StaticInputs, values: list[int]) -> None:
    """Populate every input with the same live values, as a replay does."""
    if isinstance(inputs, MistakenInputs):
        inputs.begin()
    live = torch.tensor(values)
    wide = live.expand(3, -1)
    named = {row.name: wide if row.axis is Axis.MROPE else live for row in ROWS}
    inputs.populate(named, padded=len(values) < EXTENTS[Axis.TOKEN])


@pytest.mark.parametrize("name", ["filled", "wide"])
@pytest.mark.parametrize("mistake", INPUT_CLASSES)
def test_a_mistake_with_an_input_is_what_it_is_called(mistake: Mistake, name: str) -> None:
    """And every other input is right."""
    inputs = mistaken(mistake, name)
    populate(inputs, FIRST)
    populate(inputs, SECOND)
    held = inputs.buffers[name]
    assert (held[0] if name == "wide" else held).tolist() == LEFT[mistake]
    assert inputs.buffers["kept"].tolist() == [5, 6, 3, 4]
    assert inputs.buffers["other"].tolist() == [5, 6, 0, 0]
    assert inputs.populated == 2
    assert (inputs.differed > 0) is (LEFT[mistake] != [5, 6, 7, 7])


def test_what_is_copied_one_short_of_a_kept_input_is_what_was_left_there() -> None:
    """Not what the harness wrote there between two replays."""
    inputs = mistaken(Mistake.COPIED_SHORT, "kept")
    populate(inputs, FIRST)
    inputs.buffers["kept"].fill_(9)
    populate(inputs, SECOND)
    assert inputs.buffers["kept"][:2].tolist() == [5, 2]


def test_a_rebound_input_is_elsewhere() -> None:
    inputs = mistaken(Mistake.REBOUND, "filled")
    address = inputs.buffers["filled"].data_ptr()
    populate(inputs, FIRST)
    assert inputs.buffers["filled"].data_ptr() != address


WRITTEN = {
    Mistake.COPIED_SHORT: [5, 2, 0],
    Mistake.LATE: [1, 2, 3],
    Mistake.FROZEN: [1, 2, 3],
    Mistake.WRONG_DTYPE: [5, 6, 3],
    Mistake.REBOUND: [5, 6, 3],
}
"""What is in a list once three values were written, then two."""


@pytest.mark.parametrize("mistake", LIST_CLASSES)
def test_a_mistake_with_a_list_is_what_it_is_called(mistake: Mistake) -> None:
    kind = type("Mistaken", (LIST_CLASSES[mistake],), {"mutated": "list"})
    sizes = {"list": (3, torch.int64), "other": (3, torch.int64)}
    lists: StaticLists = kind(sizes, BufferPool(torch.device("cpu")))
    first = lists.buffers["list"]  # Kept, so that no other is given its memory.
    for values in ([1, 2, 3], [5, 6]):
        lists.write({name: torch.tensor(values) for name in sizes})
    assert lists.buffers["list"].tolist() == WRITTEN[mistake]
    assert lists.buffers["other"].tolist() == [5, 6, 3]
    assert (lists.buffers["list"].dtype == torch.int64) is (mistake is not Mistake.WRONG_DTYPE)
    assert (lists.buffers["list"].data_ptr() == first.data_ptr()) is (
        mistake is not Mistake.REBOUND
    )


def test_every_static_buffer_of_every_runner_is_got_wrong() -> None:
    """In each location scheme that has it, and in every way that differs from what is right."""
    everything = list(mutants())
    assert len(set(everything)) == len(everything)
    got_wrong = {(mutant.runner, mutant.scheme, mutant.buffer) for mutant in everything}
    for name, runner in RUNNERS.items():
        for scheme in LocationScheme:
            rows = {row.name for row in runner.rows if scheme in row.schemes}
            named = {buffer for of, under, buffer in got_wrong if (of, under) == (name, scheme)}
            assert named == rows | set(metadata(runner))
    of_one = [mutant.mistake for mutant in everything if mutant.buffer == "out_cache_loc_swa"]
    assert set(of_one) == set(Mistake)


def test_a_mutant_differs_in_one_row_or_in_parts() -> None:
    """Never in both, and in nothing else."""
    for mutant in mutants():
        subject = mutated_subject(mutant)
        right = [row for row in RUNNERS[mutant.runner].rows if mutant.scheme in row.schemes]
        changed = [
            row.name for row, other in zip(right, subject.contract, strict=True) if row != other
        ]
        parts = set(subject.parts.before)
        assert (changed, parts) in (
            ([mutant.buffer], set()),
            ([], {Part.INPUTS, Part.RUNNER}),
            ([], {Part.METADATA}),
        )
        assert replace(subject, contract=tuple(right), parts=RIGHT_PARTS).shared == {}
