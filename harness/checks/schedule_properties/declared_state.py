"""declared_state: detects Python state that a reset does not restore."""

from paritybit.harness.checks.property import Playing, Property, Violation

ID = "declared_state"


def at_end(playing: Playing) -> list[Violation]:
    """Report how the engines' state after a reset differs from that after capture."""
    if not playing.undeclared:
        return []
    first, *others = playing.undeclared
    more = f"; other differences: {len(others)}" if others else ""
    message = (
        f"{first.name} was {first.captured} after the capture and is {first.now} after a "
        f"reset{more}"
    )
    where = {"path": first.path, "captured": first.captured, "now": first.now}
    return [Violation(ID, playing.place, message, where)]


DECLARED_STATE = Property(
    id=ID,
    statement=(
        "a finding also appears in a fresh process, and a reset engine has the same "
        "Python state as a freshly captured one"
    ),
    at_end=at_end,
    every_step=False,
    after_reset=True,
)
