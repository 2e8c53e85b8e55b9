"""captured_path: detects missing replays, and graphs that do not fit their location scheme."""

from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.observation import Observation
from paritybit.subjects.protocol import ReplayFacts


def path_breaches(observation: Observation) -> list[str]:
    """List the signs that the captured path was not taken or does not fit the scheme."""
    facts = observation.facts
    if facts is None:
        missed = observation.expected_graph
        return ["no graph was replayed although one was captured"] if missed else []
    breaches = graph_breaches(facts)
    if facts.replays != 1:
        breaches.append(f"the graph was replayed {facts.replays} times")
    captured, now = facts.captured_outputs, facts.outputs
    moved = [
        name for name in dict.fromkeys([*captured, *now]) if captured.get(name) != now.get(name)
    ]
    if moved:
        breaches.append(f"the static output {moved[0]} has moved since the capture")
    return breaches


def graph_breaches(facts: ReplayFacts) -> list[str]:
    """List unexpected and missing contents of a graph."""
    graph, breaches = facts.graph, list[str]()
    if graph.translations != graph.expected_translations:
        breaches.append(
            f"the graph contains {graph.translations} translations; its location scheme "
            f"needs {graph.expected_translations}"
        )
    if graph.holds_attention != graph.expects_attention:
        held = "no attention" if graph.expects_attention else "attention, which must run eagerly"
        breaches.append(f"the graph contains {held}")
    return breaches


def judge(observation: Observation) -> Description | None:
    """List the breaches of the captured path."""
    breaches = path_breaches(observation)
    return ("; ".join(breaches), {"breaches": breaches}) if breaches else None


CAPTURED_PATH = Property(
    id="captured_path",
    statement="a graph was replayed once, and it contains the expected ops",
    judge=judge,
)
