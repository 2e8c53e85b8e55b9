"""The record of an engine's trial: of two runners, one of which differs in two ways."""

from typing import Any

Data = dict[str, Any]


def leg(runner: str = "decode", **changed: Any) -> Data:
    """Return a leg that was tried."""
    return {
        "leg": f"{runner} gpt_oss",
        "runner": runner,
        "preset": "gpt_oss",
        "undecided": None,
        "schedules": 5,
        "steps": 90,
        "replays": 40,
        "padded": 20,
        "unasked": {"batch_invariance": "it chooses the bucket"},
        **changed,
    }


def engine_finding(
    name: str, *faults: str, runner: str = "decode", listed: str | None = None
) -> Data:
    """Return a violated property of a runner."""
    return {
        "runner": runner,
        "preset": "gpt_oss",
        "property": name,
        "message": "step 6: <slot 7>",
        "faults": list(faults),
        "listed": listed,
        "cause": None,
    }


def judged(verdict: str) -> Data:
    """Return the verdict on a fault class."""
    seen = {"observations": 3, "message": "seen"}
    return {"fault": "swa_pad", "runner": "decode", "verdict": verdict, **seen}


def engine_trial() -> Data:
    """Return the record."""
    answer = {
        "legs": [leg(), leg("cpu_graph")],
        "findings": [engine_finding("kv_parity", "swa_pad"), engine_finding("read_frame")],
        "undecided": [],
        "lacking": [{"runner": "piecewise", "reason": "nothing is called so"}],
        "faults": [judged("absent")],
        "seconds": 60.0,
        "interrupted": False,
    }
    return {
        "environment": {"torch": "2.11"},
        "command": "paritybit regress",
        "engine": "sglang 1",
        "asked": [],
        "verdict": "present",
        "message": "it differs",
        "unasked": [],
        "answer": answer,
    }
