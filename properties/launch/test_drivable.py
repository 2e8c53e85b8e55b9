"""Which engines `watch --engine` can drive."""

import pytest
from paritybit.harness.errors import MalformedError

from paritybit.drive.engines import driven


def test_an_engine_that_cannot_be_driven_is_refused_before_it_is_downloaded() -> None:
    with pytest.raises(
        MalformedError, match=r"drives sglang and transformers only, and 'vllm==0.33.0' is vllm"
    ):
        driven("vllm==0.33.0")
