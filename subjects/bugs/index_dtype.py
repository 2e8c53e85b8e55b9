"""Static inputs of an index whose dtype is not what reads or shares them expects."""

import torch

from subjects.bugs.bug import THREAD, Bug
from subjects.toggles import LocationScheme

FAMILY = "index dtype"

BUGS = (
    Bug(
        name="swa_int64",
        family=FAMILY,
        scheme=LocationScheme.PRESET,
        thread=THREAD.format(23552) + ", mended by " + THREAD.format(24743),
        mechanism=(
            "out_cache_loc_swa is int64 while the pool's SWA locations are int32: the copy"
            " converts, but a store kernel with a fixed ABI reads every second half-word."
        ),
        rows={"out_cache_loc_swa": {"dtype": torch.int64}},
        in_shared=True,
    ),
    Bug(
        name="shared_buffer_dtype",
        family=FAMILY,
        scheme=LocationScheme.PRESET,
        thread="https://github.com/sgl-project/sglang (shared static buffers, from 0.5.11 on)",
        mechanism=(
            "One runner wants positions as int32 while the buffer of that name, which the"
            " others share, is int64: the pool of static buffers refuses to be built. A runner"
            " that has its buffers to itself converts on every copy instead."
        ),
        rows={"positions": {"dtype": torch.int32}},
    ),
)
