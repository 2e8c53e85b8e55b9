"""log_hygiene: detects warnings and errors in the log."""

from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.observation import Observation


def judge(observation: Observation) -> Description | None:
    """Quote the first message at WARNING or above, and name the path."""
    if not observation.warnings:
        return None
    path = "graph replay" if observation.replay is not None else "eager forward"
    messages = list(observation.warnings)
    return f"{path}: {messages[0]}", {"messages": messages, "path": path}


LOG_HYGIENE = Property(
    id="log_hygiene",
    statement="a step without a bug logs nothing at WARNING or above",
    judge=judge,
)
