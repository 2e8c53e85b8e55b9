"""The first wrong content of a request, and the lines that made it wrong."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from types import FrameType
from typing import Any

from paritybit.harness.explain.facts import Cause, Holding, Situation
from paritybit.harness.explain.further_runs.contents import Contents, request_of
from paritybit.harness.explain.further_runs.followed import Watched, play, watch_step
from paritybit.harness.explain.tracing import Sources, lines_of, shown_file, values_of
from paritybit.harness.lockstep.observation import Sample
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep, Request
from paritybit.harness.schedules.schedule import Schedule

BLAME = "request contents"


class Made(Watched):
    """Follows how the first wrong content of a request becomes wrong in one step.

    `changes` are the changes of the stored content, and of whether the request claims it although
    it is wrong. `hand` is the function that had both its place and a slot with the right content:
    the innermost one that ran last before the request claimed it.
    """

    def __init__(self, contents: Contents) -> None:
        self.contents, self.one = contents, contents.wrong[0]
        self.request: Request | None = None
        self.over = self.by_forward = False
        self.others: list[int] = []
        self.hand: Sources = ()
        self.taken: tuple[Sources, Sources] = (), ()
        self.holding: FrameType | None = None
        self.near = False, 0
        super().__init__(self._stored, self._wrong)
        taken = self.request is not None and self.one.claimed(self.request)
        self.before = "what its tokens say" if taken else "not there yet"

    def __call__(self, frame: FrameType, line: int, returned: Any) -> None:
        """Examine a line."""
        if self.over:
            return
        super().__call__(frame, line, returned)
        if self.changes[1].lines is not self.taken[0]:
            self.taken = self.changes[1].lines, self._by_request(frame, self.changes[1].lines)
        if self.others and not self.changes[1].said and not frame.f_code.co_name.startswith("<"):
            lines = lines_of(frame, line, "not copied")
            near = any(map(self._both, frame.f_locals.values())), len(lines)
            closer = near > self.near or (near == self.near and frame is not self.holding)
            if closer and any(map(self._both, values_of(frame.f_locals, returned))):
                self.hand, self.near, self.holding = lines, near, frame

    def planned(self, pair: Pair, planned: PlannedStep) -> None:
        """Stop at the checkpoint at which it is wrong."""
        assert self.contents.at is not None
        self.over = not self.contents.at[1]

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Find where the right content is after the forward."""
        stored = self._stored()
        with super().eager():
            yield
        self.by_forward = stored != self._stored()
        if self.one.what == "KV":
            self.others = self.contents.elsewhere(self.one)

    @property
    def lines(self) -> Sources | None:
        """The lines that made it wrong, nearest of each kind first. None if a forward did."""
        stored = self.changes[0].lines
        if self.by_forward and not self.others and not stored:
            return None
        taken = self.taken[1] if self.changes[1].lines else ()
        by_place = zip_longest(stored, self.hand, taken)
        return tuple(dict.fromkeys(line for lines in by_place for line in lines if line))

    def _by_request(self, frame: FrameType | None, lines: Sources) -> Sources:
        """Return the lines of a frame and its callers. The frame that has the request comes first.

        A function that gives back what a request claimed need not know the request. Its caller
        does.
        """
        place = 0
        while frame is not None and place < len(lines):
            if shown_file(frame.f_code.co_filename) is not None:
                if any(value is self.request for value in frame.f_locals.values()):
                    return (lines[place], *lines[:place], *lines[place + 1 :])
                place += 1
            frame = frame.f_back
        return lines

    def _both(self, slots: Any) -> bool:
        """Whether a value is a list with both slots."""
        if not isinstance(slots, list | tuple):
            return False
        numbers = {slot for slot in slots if isinstance(slot, int)}
        return self.contents.place in numbers and not numbers.isdisjoint(self.others)

    def _stored(self) -> Any:
        """Return what is finally stored at its place."""
        place = self.contents.place
        return None if place is None else self.one.stored(self.contents.book, place).tolist()

    def _wrong(self) -> bool:
        """Whether the request claims it, and it is wrong."""
        contents = self.contents
        self.request = request_of(contents.book, contents.serial) or self.request
        request = self.request
        if request is None or not self.one.claimed(request):
            return False
        return not contents.right(self.one, contents.book, request)


def contents_cause(
    pair: Pair,
    schedule: Schedule,
    last: int,
    sample: Sample,
    off: Callable[[Sample], bool],
    bound: float,
) -> tuple[Situation, Cause] | None:
    """Explain logits, sampled at step number `last`, by the first wrong content of their request.

    It is blamed if no logits of the request are `off` when all content of its kind is corrected
    whenever it is wrong, with no other change. Returns None if some are, and if a forward made it.
    """
    contents, fixed = (Contents(pair, sample.serial, bound) for _ in range(2))
    play(pair, schedule, last, contents.look)
    if contents.at is None:
        return None
    number, one = contents.at[0], contents.wrong[0]
    samples = play(pair, schedule, last, lambda _: fixed.fix(one))
    if any(off(again) for again in samples if again.serial == sample.serial):
        return None
    made = watch_step(pair, schedule, number, lambda: Made(contents))
    if made.lines is None:
        return None
    place, step = list(schedule.flat())[number]
    lies = "nowhere" if contents.place is None else f"not what lies in {one.where(contents.place)}"
    held = Holding(
        what=f"the {one.name} of request {sample.serial}",
        before=made.before,
        found=lies,
        since=place,
        step=step.name,
        world="eager",
        both=contents.both,
    )
    return Situation(place, None), Cause(BLAME, held=held, made=made.lines)
