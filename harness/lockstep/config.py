"""The settings of a trial: subject, model, pools and device."""

import importlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from msgspec import Meta
from paritybit.harness.errors import CannotRunError, MalformedError, require_known
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import DRAFT_TOKENS, PRESETS, ModelConfig
from paritybit.reference.ops import Ops
from paritybit.reference.pool import PoolSizes
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.bugs.switching import subject_with
from paritybit.subjects.engine import Subject
from paritybit.subjects.runners import RUNNERS, engine_runners
from paritybit.subjects.runners.prefill import MOST_REQUESTS
from paritybit.subjects.toggles import LocationScheme

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DEVICES = ("cpu", "cuda")

TURNS = ((4, "float32"), (1, "bfloat16"), (1, "float32"), (4, "bfloat16"))
"""The page sizes and dtypes that the trials of a run use in turn."""

BUCKETS, TOKEN_BUCKETS = (2, 4, 8), (4, 12, 24)
"""The default captured sizes, in requests and in tokens."""

Slots = Annotated[int, Meta(ge=1, le=2**16)]
Rows = Annotated[int, Meta(ge=1, le=2**10)]
Sizes = Annotated[tuple[Rows, ...], Meta(min_length=1)]
"""Limits of files, so that a wrong digit does not use all memory of the machine."""


@dataclass(frozen=True)
class TrialConfig:
    """One trial: its subject, model, pools and device.

    - `full_slots`, `swa_slots`: slots of the two sub-pools.
    - `buckets`, `token_buckets`: captured sizes in requests and in tokens.
    - `bugs`: names of the catalogue in its order; empty for the clean subject. All of them must
      exist in `scheme` and `runner`.
    - `overlap`: the graph run plans a step while the previous forward is in flight. Only on a CPU,
      where the most harmful order of two streams is emulated.

    Raises UnknownNameError for an unknown name, MalformedError for settings that do not fit.
    """

    runner: str = "decode"
    preset: str = "gpt_oss"
    dtype: str = "float32"
    device: str = "cpu"
    scheme: LocationScheme = LocationScheme.MEMO
    page_size: Slots = 1
    full_slots: Slots = 80
    swa_slots: Slots = 72
    rows: Rows = 16
    buckets: Sizes = BUCKETS
    token_buckets: Sizes = TOKEN_BUCKETS
    bugs: tuple[str, ...] = ()
    overlap: bool = False

    def __post_init__(self) -> None:
        known = {
            "runner": [*RUNNERS],
            "preset": [*PRESETS],
            "dtype": [*DTYPES],
            "device": [*DEVICES],
        }
        for name, values in known.items():
            require_known(name, getattr(self, name), values)
        for name in self.bugs:
            require_known("bug", name, BUGS)
            if self.scheme not in BUGS[name].schemes or not BUGS[name].fits(self.runner):
                raise MalformedError(
                    f"bug {name} does not exist in location scheme {self.scheme} of {self.runner}"
                )
        if self.bugs != catalogued(self.bugs):
            raise MalformedError("the bugs of a trial must be in catalogue order, without repeats")
        if self.overlap and not RUNNERS[self.runner].captures:
            raise MalformedError(f"the engine of {self.runner} cannot overlap steps")
        if self.overlap and self.device != "cpu":
            raise MalformedError("overlapping steps are emulated, and need the device cpu")
        slots = self.full_slots, self.swa_slots
        if any(count % self.page_size for count in slots):
            raise MalformedError("both pool sizes must be multiples of the page size")

    def with_bug(self, name: str) -> "TrialConfig":
        """Return this trial with a bug switched on, in the location scheme in which it is tested.

        If it shows only in overlapping steps, they run on a CPU.
        """
        require_known("bug", name, BUGS)
        bug = BUGS[name]
        overlap = self.overlap or bug.overlap
        device = "cpu" if overlap else self.device
        return replace(self, bugs=(name,), scheme=bug.scheme, overlap=overlap, device=device)

    @property
    def bug(self) -> str | None:
        """The one bug switched on, None for the clean subject. Raises ValueError for several."""
        if len(self.bugs) > 1:
            raise MalformedError(f"the trial has several bugs: {', '.join(self.bugs)}")
        return self.bugs[0] if self.bugs else None

    @property
    def clean(self) -> "TrialConfig":
        """The same trial without bugs."""
        return replace(self, bugs=())

    @property
    def model(self) -> ModelConfig:
        """The target's configuration."""
        return PRESETS[self.preset]

    @property
    def sizes(self) -> PoolSizes:
        """The sizes of both runs' pools."""
        return PoolSizes(self.full_slots, self.swa_slots, self.page_size, self.rows)

    def subject(self) -> Subject:
        """Return what is on trial."""
        return subject_with([BUGS[name] for name in self.bugs], self.runner, self.scheme)

    @property
    def modes(self) -> frozenset[Mode]:
        """The modes for which the engine has runners."""
        return frozenset(runner.mode for runner in engine_runners(self.runner))

    def expects_graph(self, batch: ForwardBatch) -> bool:
        """Whether a captured graph must run a batch, because a runner has a bucket for it.

        This is independent of each runner's `can_run`, so that a runner that silently falls back
        to eager forwards is detected.
        """
        if batch.mode not in self.modes:
            return False
        if batch.mode is Mode.EXTEND:
            fits = batch.live_requests <= MOST_REQUESTS
            return fits and batch.live_tokens <= max(self.token_buckets)
        too_long = batch.mode is Mode.DRAFT_EXTEND and batch.longest > DRAFT_TOKENS
        return batch.live_requests <= max(self.buckets) and not too_long

    def ops(self) -> Ops:
        """Return the op set of the trial's device. Raises CannotRunError if it is not available."""
        if self.device == "cpu":
            return Ops()
        require_cuda()
        # Imported late: importing Triton decides whether its interpreter is used.
        ops: Ops = importlib.import_module("paritybit.reference.cuda_ops").CudaOps()
        return ops


def catalogued(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of bugs in the catalogue's order, without duplicates."""
    wanted = set(names)
    return tuple(name for name in BUGS if name in wanted)


def require_cuda() -> None:
    """Raise CannotRunError unless a CUDA device is usable."""
    if not torch.cuda.is_available():
        raise CannotRunError("--device cuda needs a usable CUDA device, but none was found")


def resolve_device(name: str) -> str:
    """Return `cpu` or `cuda` for `auto`, `cpu` or `cuda`. Raises as `known` and `require_cuda`."""
    require_known("device", name, ("auto", *DEVICES))
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        require_cuda()
    return name


SUBJECT_LOGGER = logging.getLogger("paritybit.subject")
FRESH_LOGGER = logging.getLogger("paritybit.fresh")
