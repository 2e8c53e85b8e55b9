"""The checks of relations between two runs of one replay, which must give the same results."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Difference, Relation, uncounted


def check(name: str, invariant: str, what: str) -> Check:
    """Return a check that the relation with its name holds. `what` says what a replay does."""

    def judge(relation: Relation) -> Iterable[Finding]:
        found, kind, cause = relation.result, relation.kind, relation.cause
        assert isinstance(found, Difference)
        why = "" if cause is None else f"; {cause['what']}"
        yield relation.found(
            name,
            f"the replay of {kind}{what}: {found.where} differs by {found.size:.2g} of its largest "
            f"value{why}",
            group=found.group,
            replay=kind,
            layer=found.where if found.group else None,
            cause=cause,
        )

    return Check(name, name, invariant, judge, uncounted)


CHECKS = (
    check(
        "unrepeatable replay",
        "a second replay from the same state gives the same live outputs and owned slots",
        ", run again from the same state, differs",
    ),
    check(
        "padding leak",
        "other valid values in the padded part, or in entries that the engine does not fill for a "
        "replay, change no live output and no owned slot",
        " depends on the values of its padding",
    ),
    check(
        "graph and eager differ",
        "the same batch run eagerly gives the same result, up to the variation of eager runs",
        " differs from the same batch run eagerly",
    ),
)
