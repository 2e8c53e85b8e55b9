"""captured_path: detects missing replays, and graphs that do not fit their location scheme."""

from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.observation import Observation


def judge(observation: Observation) -> Description | None:
    """List the breaches: a missing replay, and unexpected and missing contents of the graph."""
    facts, breaches = observation.facts, list[str]()
    if facts is None:
        message = "no graph was replayed although one was captured"
        return (message, {"breaches": [message]}) if observation.expected_graph else None
    if facts.translations != facts.expected_translations:
        breaches.append(
            f"the graph contains {facts.translations} translations; its location scheme "
            f"needs {facts.expected_translations}"
        )
    if facts.holds_attention != facts.expects_attention:
        held = "no attention" if facts.expects_attention else "attention, which must run eagerly"
        breaches.append(f"the graph contains {held}")
    return ("; ".join(breaches), {"breaches": breaches}) if breaches else None


CAPTURED_PATH = Property(
    id="captured_path",
    statement="a graph was replayed, and it contains the expected ops",
    judge=judge,
)
