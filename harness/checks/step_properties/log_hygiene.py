"""log_hygiene: detects warnings and errors in the log."""

from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.observation import Observation


def flag(observation: Observation) -> bool:
    """Whether the step logged anything at WARNING or above."""
    return bool(observation.warnings)


def describe(observation: Observation) -> Description:
    """Quote the first message, and name the path: graph replay or eager forward."""
    path = "graph replay" if observation.replay is not None else "eager forward"
    messages = list(observation.warnings)
    return f"{path}: {messages[0]}", {"messages": messages, "path": path}


LOG_HYGIENE = Property(
    id="log_hygiene",
    statement="a step without a bug logs nothing at WARNING or above",
    flag=flag,
    describe=describe,
)
