"""Changes of what stands in static buffers, and whose output each must move.

A static buffer that nobody reads would pass every other check: so each of its live elements
is changed under the replay that is about to read it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from paritybit.reference.batch import MROPE_SECTIONS
from paritybit.reference.config import PRESETS, Kind

from properties.support.subjects.ready_forward import REQUESTS, ReadyForward

Change = Callable[[ReadyForward, int], None]
"""A change of what stands in the static buffers for one live request."""

Moved = Callable[[ReadyForward, int], set[int]]


def itself(planned: ReadyForward, request: int) -> set[int]:
    """Return the request."""
    return {request}


def from_it_on(planned: ReadyForward, request: int) -> set[int]:
    """Return the live requests from this one on."""
    return set(range(request, REQUESTS))


def the_last(planned: ReadyForward, request: int) -> set[int]:
    """Return the last live request."""
    return {REQUESTS - 1}


def the_last_if_long(planned: ReadyForward, request: int) -> set[int]:
    """Return the last live request, if this one is the one whose window is full."""
    return {REQUESTS - 1} if request == 1 else set()


def stateful(planned: ReadyForward, request: int) -> set[int]:
    """Return the request if it continues a recurrent state that enters its input."""
    continues = planned.batch.spans[request].begin > 0
    return {request} if continues and bool(planned.batch.mamba_track_mask[request]) else set()


def beside(planned: ReadyForward, request: int) -> set[int]:
    """Return the live requests of a request's first token and of the token after it."""
    after = planned.first(request) + 1
    owners = planned.batch.token_requests.tolist()
    return {request, *owners[after : after + 1]}


@dataclass(frozen=True)
class Flip:
    """A change for one live request, and the live requests whose output it moves.

    `early` changes come once the live inputs are copied, before what is made of them.
    """

    buffer: str
    change: Change
    moved: Moved = itself
    early: bool = False


def bump(buffer: str, modulus: int, section: int | None = None) -> Change:
    """Return a change of a request's first element to the next valid value."""

    def change(planned: ReadyForward, request: int) -> None:
        values = planned.buffer(buffer) if section is None else planned.buffer(buffer)[section]
        at = planned.at(buffer, request)
        values[at : at + 1] = (values[at : at + 1] + 1) % modulus

    return change


def scale(buffer: str) -> Change:
    """Return a change of the first number of a request's first row."""

    def change(planned: ReadyForward, request: int) -> None:
        planned.buffer(buffer)[planned.at(buffer, request), 0] *= 0.5

    return change


def negate(buffer: str) -> Change:
    """Return a change of a request's first bit to the other one."""

    def change(planned: ReadyForward, request: int) -> None:
        at = planned.at(buffer, request)
        planned.buffer(buffer)[at : at + 1].logical_not_()

    return change


def follow_another(planned: ReadyForward, request: int) -> None:
    """Point a request at the slots of the longest one, or that one at those of the first."""
    rows = planned.buffer("req_pool_indices")
    other = planned.at("req_pool_indices", 0 if request == 1 else 1)
    rows[planned.at("req_pool_indices", request)] = rows[other].clone()


def see_one_key_less(planned: ReadyForward, request: int) -> None:
    """Shorten a request, on the device and on the host."""
    for name in {"seq_lens", "seq_lens_cpu"} & planned.inputs.keys():
        planned.buffer(name)[planned.at(name, request)] -= 1


def shorten(buffer: str, by: int) -> Change:
    """Return a change of a host length, which says how many listed slots are written in all.

    What is then not written is the padded request's and the last of the last live request.
    """

    def change(planned: ReadyForward, request: int) -> None:
        planned.buffer(buffer)[planned.at(buffer, request)] -= by

    return change


def begin_anew(planned: ReadyForward, request: int) -> None:
    """Let the last draft of a request continue the request's state, and not its parent's."""
    planned.buffer("tree_parents")[planned.last(request)] = -1


def stop_at(buffer: str) -> Change:
    """Return a change that makes a request's first token the first that does not count."""

    def change(planned: ReadyForward, request: int) -> None:
        planned.buffer(buffer).fill_(planned.first(request))

    return change


def move_boundary(buffer: str) -> Change:
    """Return a change that gives a key of a request's first row to the next, or takes one of it.

    Request 1 gives: its window is full.
    """

    def change(planned: ReadyForward, request: int) -> None:
        planned.buffer(buffer)[planned.first(request) + 1] += -1 if request == 1 else 1

    return change


def nudge(buffer: str, by: int) -> Change:
    """Return a change of where something of a request's last token begins or ends."""

    def change(planned: ReadyForward, request: int) -> None:
        planned.buffer(buffer)[planned.last(request)] += by

    return change


def list_a_free_slot(starts: str, slots: str, kind: Kind) -> Change:
    """Return a change of the slot that a request's first row lists first to one nobody owns."""

    def change(planned: ReadyForward, request: int) -> None:
        first = int(planned.buffer(starts)[planned.first(request)])
        planned.buffer(slots)[first] = planned.free[kind]

    return change


def write_elsewhere(buffer: str, kind: Kind) -> Change:
    """Return a change of a request's first write location to a slot that nobody owns."""

    def change(planned: ReadyForward, request: int) -> None:
        planned.buffer(buffer)[planned.at(buffer, request)] = planned.free[kind]

    return change


VOCAB = min(preset.tiny.vocab for preset in PRESETS.values())
CONTEXT = min(preset.tiny.max_context for preset in PRESETS.values())

Flips = dict[str, Flip]


def named(*flips: Flip) -> Flips:
    """Return flips by what they change."""
    return {flip.buffer: flip for flip in flips}


def mrope() -> Flips:
    """Return the flips of the multimodal positions, a section at a time."""
    return {
        f"mrope_positions, section {section}": Flip(
            "mrope_positions", bump("mrope_positions", CONTEXT, section)
        )
        for section in range(MROPE_SECTIONS)
    }
