"""Static inputs whose padded rows keep what an earlier batch left there."""

from subjects.bugs.bug import THREAD, Bug
from subjects.contracts import Policy
from subjects.toggles import LocationScheme

FAMILY = "stale static input in padded rows"

BUGS = (
    Bug(
        name="swa_pad",
        family=FAMILY,
        scheme=LocationScheme.PRESET,
        thread=THREAD.format(23552) + ", mended by " + THREAD.format(24743),
        mechanism=(
            "out_cache_loc_swa is not reset when the batch is padded: padded rows write"
            " their K and V into SWA slots that an earlier, fuller batch left there."
        ),
        rows={"out_cache_loc_swa": {"policy": Policy.KEEP}},
    ),
    Bug(
        name="req_pool_pad",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(26292),
        mechanism=(
            "req_pool_indices is not reset when the batch is padded: the dummy attention of"
            " padded rows follows req_to_token of a stale row into freed or foreign KV."
        ),
        rows={"req_pool_indices": {"policy": Policy.KEEP}},
        also_in=(LocationScheme.PER_LAYER, LocationScheme.PRESET),
    ),
)
