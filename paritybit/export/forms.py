"""The forms of tests that observe a violated law without the sanitizer."""

from collections.abc import Mapping
from dataclasses import dataclass

from paritybit.drive.script import Script
from paritybit.harness.errors import CannotRunError
from paritybit.launch.case import WatchCase


@dataclass(frozen=True)
class Form:
    """A form: its feature in the templates, the name of the test, and its assertion in words."""

    feature: str
    test: str
    says: str


WRITES = Form(
    "writes",
    "a_forward_pass_changes_no_other_slots",
    "no forward pass changes a KV slot that its batch does not own",
)
ALONE = Form(
    "alone",
    "tokens_are_the_same_alone",
    "a request gets the same tokens in company and alone, with an empty cache",
)
ENDS = Form("ends", "each_request_ends", "each request ends, and the engine raises nothing")

FORMS: Mapping[str, Form] = {
    "stray write": ALONE,
    "unwritten slot": ALONE,
    "wrong owner": ALONE,
    "corrupted read": ALONE,
    "uninitialised read": ALONE,
    "wrong list": ALONE,
    "freed in use": ALONE,
    "engine error": ENDS,
    "unrepeatable replay": ALONE,
    "padding leak": ALONE,
    "graph and eager differ": ALONE,
    "wrong read": ALONE,
    "stale input": ALONE,
    "company": ALONE,
}
"""Maps laws to forms. A form that compares tokens only fails if the fault changes them."""

WITH_POOLS: Mapping[str, Form] = {"stray write": WRITES, "corrupted read": WRITES}
"""Further forms for sglang, because a test can compare its pools with copies."""

OF_GRAPHS = frozenset(
    {"stray write", "unrepeatable replay", "padding leak", "graph and eager differ", "wrong read"}
    | {"stale input"}
)
"""The laws that only a replay can violate."""


def form_of(case: WatchCase, engine: str) -> Form:
    """Return the form for a case of an engine. Raises CannotRunError for a law without a form."""
    law = case.key.partition(" | ")[0]
    form = (WITH_POOLS if engine == "sglang" else {}).get(law) or FORMS.get(law)
    if form is None:
        raise CannotRunError(
            f"a {law} cannot be observed without the sanitizer; --with-paritybit exports a test "
            "that runs it"
        )
    require_simple(case.script)
    if form is ALONE and not comparable(case.script):
        raise CannotRunError(
            "no request of this case gets tokens that could be compared; --with-paritybit exports "
            "a test that runs the sanitizer"
        )
    return form


def comparable(script: Script) -> list[tuple[int, int]]:
    """Return the indices (wave, request) of requests whose tokens are deterministic."""
    return [
        (number, place)
        for number, wave in enumerate(script.waves)
        for place, one in enumerate(wave.requests)
        if one.aborted is None and not one.temperature
    ]


UNSERVED: Mapping[str, object] = {
    "speculative": None,
    "adapters": 0,
    "ranks": 1,
    "samples": 1,
    "host_cache": False,
}
"""The values of settings that a standalone test supports."""


def require_simple(script: Script) -> None:
    """Raise CannotRunError for a script that a standalone test does not support."""
    other = [name for name, value in UNSERVED.items() if script.settings.get(name, value) != value]
    if any(wave.actions for wave in script.waves):
        other.append("actions")
    if other:
        raise CannotRunError(
            f"a standalone test does not serve {', '.join(other)}; --with-paritybit exports a "
            "test that does"
        )
