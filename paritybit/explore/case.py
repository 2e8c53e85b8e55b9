"""Counterexamples of `explore` as JSON data: a bound and a list of actions, without code."""

from typing import Annotated, Literal

from msgspec import Meta

from paritybit.explore.bound import MOST, Bound
from paritybit.harness.records.codec import File


class ExploreCase(File, frozen=True, tag="paritybit-explore-case"):
    """The shortest schedule that violates a law, and the law's message."""

    engine: str
    bound: Bound
    actions: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MOST)]
    text: str
    version: Literal[1] = 1
