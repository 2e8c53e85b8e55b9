"""Whatever asks a run to stop, however often and whenever, the run keeps what it has."""

import signal
import time
import weakref

import pytest
from paritybit.harness.machine.stopping import PATIENCE, Stop, heard_at_the_end, listening

from properties.support.harness.command_line import LONGEST


def test_a_hasty_second_signal_is_not_heard_and_ctrl_c_is_later() -> None:
    """As `timeout` sends it: to the process, and to its whole group."""
    stop = Stop()
    with pytest.raises(KeyboardInterrupt):
        stop.hear(signal.SIGINT, None)
    for number in (signal.SIGINT, signal.SIGTERM):
        stop.hear(number, None)
    assert stop.received == signal.SIGINT
    for number in (signal.SIGINT, signal.SIGTERM):
        stop.at -= PATIENCE
        with pytest.raises(KeyboardInterrupt):
            stop.hear(number, None)
    stop.at -= PATIENCE
    stop.hear(signal.SIGTERM, None)
    assert stop.received == signal.SIGTERM


def test_a_signal_is_heard_once_the_results_are_written() -> None:
    written = False
    with pytest.raises(KeyboardInterrupt), heard_at_the_end():
        signal.raise_signal(signal.SIGINT)
        written = True
    assert written


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_within_a_weakref_callback_still_stops(number: int) -> None:
    stop, thing = Stop(), Stop()
    kept = weakref.ref(thing, lambda _: signal.raise_signal(number))
    with pytest.raises(KeyboardInterrupt), listening(stop):
        del thing
        assert kept() is None
        time.sleep(LONGEST)
    assert stop.received == number
