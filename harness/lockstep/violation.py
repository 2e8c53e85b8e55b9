"""What a check reports, and the names of all properties."""

from dataclasses import asdict, dataclass, field
from typing import Any

PROPERTIES: dict[str, str] = {
    "logits_parity": "live rows' logits, and all else a forward gives: graph bits = eager bits",
    "kv_parity": "every slot of both models' pools, K and V, all layers: graph bits = eager bits",
    "write_frame": "a step changes only the slots in its own out_cache_loc, and slot 0",
    "frozen_kv": "a draft that reads frozen KV changes no bit of any pool",
    "hermetic_replay": "a runner with a history gives the bits of one just captured",
    "padding_noninterference": "bytes that nobody in the batch owns change nothing that is live",
    "index_contract": "static buffers are what was captured; dtypes are the pool's and listed",
    "captured_path": "a graph was really replayed, of the right ops, and nothing was allocated",
    "log_hygiene": "a clean step logs nothing at WARNING or above",
    "determinism": "the same schedule twice gives the same bits",
    "batch_invariance": "a request's bits do not depend on row, neighbours or bucket",
    "dense_agreement": "eager logits agree with a cache-free float64 model within a bound",
    "token_trajectory": "greedy tokens of whole generations are equal",
}
"""Every property of this build, by id."""

STEP_PROPERTIES = frozenset(
    {
        "logits_parity",
        "kv_parity",
        "write_frame",
        "frozen_kv",
        "hermetic_replay",
        "index_contract",
        "captured_path",
        "log_hygiene",
        "token_trajectory",
    }
)
"""The properties cheap enough to be checked at every step of every schedule."""


STATE_PROPERTIES = frozenset({"logits_parity", "kv_parity", "write_frame"})
"""The properties of the worlds' own bytes: once one is violated the worlds have parted.

Any other speaks of the build or of a further run, and leaves both worlds equal.
"""


@dataclass(frozen=True)
class Violation:
    """One property that did not hold: at which step, in which words, and exactly where.

    `where` holds JSON values: layer, tensor, slot, owner, row, bits … as they apply.
    """

    property: str
    step: int
    message: str
    where: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the violation as JSON data."""
        return asdict(self)
