"""Requests as a scheduler keeps them, and what it plans."""

from dataclasses import dataclass, replace

from paritybit.reference.allocator import Owner, PageAllocation
from paritybit.reference.batch import DraftState, ForwardBatch, Mode, RequestSpan
from paritybit.reference.config import Kind


@dataclass
class ScheduledRequest:
    """One request.

    - `known`: the number of tokens whose value is known.
    - `length`: how many of them are in the pool.
    - `drafted`: how many tokens the draft model has KV for.
    - `state`: the draft model's state after these tokens, once it has caught up.
    - `drafts`: the draft model's last proposal. It and `state` are invalid once `length` grows.
    """

    serial: int
    known: int
    token_row: int
    allocation: PageAllocation | None = None
    length: int = 0
    prefilling: bool = True
    drafted: int = 0
    state: DraftState | None = None
    drafts: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlannedForward:
    """One planned forward of a mode over some spans. `batch` is None for an idle replay."""

    mode: Mode
    batch: ForwardBatch | None = None
    spans: tuple[RequestSpan, ...] = ()


@dataclass(frozen=True)
class PlannedStep:
    """One step as both runs planned it.

    - `index`: the index of the step in its schedule.
    - `forwards`: the number of earlier forwards in the schedule.
    - `expected_graph`: whether a captured graph must run it.
    """

    index: int
    forwards: int
    eager: PlannedForward
    graph: PlannedForward
    expected_graph: bool

    @property
    def mode(self) -> Mode:
        """The mode of the forward."""
        return self.graph.mode

    def given(self, batch: ForwardBatch | None) -> "PlannedStep":
        """Return this step with another batch for the graph run."""
        if batch is self.graph.batch:
            return self
        return replace(self, graph=replace(self.graph, batch=batch))


class SlotOwners:
    """Names the owners of slots in a forward: its batch has `spans`, and `owners` are running."""

    owners: tuple[Owner, ...]

    @property
    def spans(self) -> tuple[RequestSpan, ...]:
        """The spans of the batch. Empty for an idle step."""
        raise NotImplementedError

    def serial_at(self, row: int) -> int:
        """Return the request at `row` of req_to_token."""
        return next(owner.serial for owner in self.owners if owner.row == row)

    def owner_of(self, kind: Kind, slot: int) -> str:
        """Describe the owner of a slot. Slots that the batch writes have owners too."""
        for span in self.spans:
            if slot in (span.full_slots if kind is Kind.FULL else span.swa_slots):
                return f"request {self.serial_at(span.row)}"
        found = (f"request {one.serial}" for one in self.owners if slot in one.slots(kind))
        return next(found, "nobody")

    def owner_of_state(self, slot: int) -> str:
        """Describe the owner of a slot of recurrent states."""
        found = (f"request {one.serial}" for one in self.owners if one.state_slot == slot)
        return next(found, "nobody")
