"""captured_path: detects missing replays, and graphs that do not fit their location scheme."""

from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.observation import Observation


def path_breaches(observation: Observation) -> list[str]:
    """List the signs that the captured path was not taken or does not fit the scheme."""
    facts = observation.facts
    if facts is None:
        missed = observation.expected_graph
        return ["no graph was replayed although one was captured"] if missed else []
    breaches = []
    if facts.translations != facts.expected_translations:
        breaches.append(
            f"the graph contains {facts.translations} translations; its location scheme "
            f"needs {facts.expected_translations}"
        )
    if facts.holds_attention != facts.expects_attention:
        held = "no attention" if facts.expects_attention else "attention, which must run eagerly"
        breaches.append(f"the graph contains {held}")
    return breaches


def judge(observation: Observation) -> Description | None:
    """List the breaches of the captured path."""
    breaches = path_breaches(observation)
    return ("; ".join(breaches), {"breaches": breaches}) if breaches else None


CAPTURED_PATH = Property(
    id="captured_path",
    statement="a graph was replayed, and it contains the expected ops",
    judge=judge,
)
