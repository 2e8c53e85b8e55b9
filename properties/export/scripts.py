"""Cases to export."""

from collections.abc import Mapping, Sequence

from paritybit.drive.engines import BY_NAME
from paritybit.drive.script import Part, Planned, Script, Setting, Wave
from paritybit.launch.case import WatchCase


def case_of(
    engine: str,
    law: str = "wrong owner",
    waves: Sequence[Wave] | None = None,
    text: str = "request a reads position 3",
    settings: Mapping[str, Setting] = {},
) -> WatchCase:
    """Return a case of an engine: two requests by default."""
    served = BY_NAME[engine].served().scope()
    given = (Wave((request("a"), request("b"))),) if waves is None else tuple(waves)
    script = Script({**served, **settings}, given)
    return WatchCase(f"{engine}==1.0", "a leg", script, 1, None, f"{law} | full | x", text, None)


def request(
    name: str,
    tokens: int = 3,
    arrives: int = 0,
    aborted: int | None = None,
    follows: str | None = None,
    length: int = 2,
) -> Planned:
    """Return a request with a prompt of two parts."""
    prompt = (Part("common", length), Part(name, 1, 1))
    return Planned(name, prompt, tokens, arrives, aborted, follows)
