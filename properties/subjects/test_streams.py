"""Emulated streams: in order, as late as the waits allow, and no later."""

import pytest
from paritybit.subjects.streams import StreamPair, Work


class Log:
    """What ran, in the order it ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def work(self, name: str) -> Work:
        """Return a piece of work that is logged when it runs."""
        return lambda: self.ran.append(name)


@pytest.fixture
def log() -> Log:
    """An empty log."""
    return Log()


def test_the_stream_that_lags_runs_nothing_that_nobody_waits_for(log: Log) -> None:
    """The other one runs its work at once."""
    streams = StreamPair()
    streams.lag(forward=True)
    streams.forward.run(log.work("forward"))
    streams.schedule.run(log.work("write"))
    assert log.ran == ["write"]


def test_a_host_that_waits_for_an_event_runs_what_is_before_it_and_nothing_after(log: Log) -> None:
    """In the order in which it was given."""
    streams = StreamPair()
    streams.lag(forward=True)
    streams.forward.run(log.work("copy"))
    streams.forward.run(log.work("forward"))
    event = streams.forward.record()
    streams.forward.run(log.work("sample"))
    assert not event.done
    event.synchronise()
    assert event.done
    assert log.ran == ["copy", "forward"]


def test_a_stream_goes_no_further_than_the_event_it_waits_for(log: Log) -> None:
    """Though it does not lag; once the event is done it goes on of itself."""
    streams = StreamPair()
    streams.lag(forward=True)
    streams.forward.run(log.work("forward"))
    event = streams.forward.record()
    streams.forward.run(log.work("sample"))
    done = streams.forward.record()
    streams.schedule.run(log.work("before"))
    streams.schedule.wait(event)
    streams.schedule.run(log.work("behind"))
    assert log.ran == ["before"]
    done.synchronise()
    assert log.ran == ["before", "forward", "behind", "sample"]


def test_an_error_of_the_work_reaches_whoever_waits_for_it(log: Log) -> None:
    """As an error of the device does."""

    def failing() -> None:
        raise IndexError("out of range")

    streams = StreamPair()
    streams.lag(forward=True)
    streams.forward.run(failing)
    with pytest.raises(IndexError, match="out of range"):
        streams.forward.record().synchronise()


def test_any_number_of_pieces_of_work_may_wait_for_one_event(log: Log) -> None:
    streams = StreamPair()
    streams.lag(forward=True)
    event = streams.forward.record()
    for number in range(5000):
        streams.schedule.wait(event)
        streams.schedule.run(log.work(str(number)))
    event.synchronise()
    assert len(log.ran) == 5000
