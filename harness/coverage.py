"""Which states schedules reached: counted at every step, so that a toothless generator shows."""

from collections import Counter

from harness.trace import Trace

REQUIRED_EVENTS = (
    "padded replay",
    "several padded rows",
    "replay without padding",
    "idle replay",
    "batch of several rows",
    "batch shrank in its bucket",
    "batch grew again in its bucket",
    "smaller bucket after a larger",
    "larger bucket after a smaller",
    "requests parked",
    "prompt of one token",
    "prompt beyond the window",
    "prompt in chunks",
    "length window - 1",
    "length window",
    "length window + 1",
    "evicted",
    "finished",
    "retracted",
    "resumed",
    "slot issued again",
    "SWA sub-pool nearly full",
    "full sub-pool nearly full",
    "pool full",
)
"""What generated schedules must reach, taken together."""


class Coverage:
    """Counts the events of one schedule's replays into `events`."""

    def __init__(self, events: Counter[str]) -> None:
        self.events = events
        self.last: tuple[int, int] | None = None

    def see(self, trace: Trace) -> None:
        """Count what one step reached."""
        replay = trace.replay
        if replay is None:
            return
        bs, raw_bs = replay.bs, replay.raw_bs
        last_bs, last_raw_bs = self.last or (bs, raw_bs)
        same = bs == last_bs
        seen = {
            f"bucket {bs}": True,
            "padded replay": replay.padded,
            "several padded rows": bs - raw_bs > 1,
            "replay without padding": not replay.padded,
            "idle replay": raw_bs == 0,
            "batch of several rows": raw_bs > 1,
            "batch shrank in its bucket": same and raw_bs < last_raw_bs,
            "batch grew again in its bucket": same and raw_bs > last_raw_bs,
            "smaller bucket after a larger": bs < last_bs,
            "larger bucket after a smaller": bs > last_bs,
        }
        self.events.update(event for event, reached in seen.items() if reached)
        self.last = bs, raw_bs
