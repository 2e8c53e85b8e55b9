"""Graphs that contain state of their capture: a bound, a flag, a tensor, a layout."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from paritybit.reference.batch import Mode
from paritybit.reference.config import SPECULATION, Kind
from paritybit.reference.ops import Ops
from paritybit.subjects.access import ListedKV
from paritybit.subjects.buffers import StaticInputs
from paritybit.subjects.bugs.bug import THREAD, Bug, pull
from paritybit.subjects.engine import Engine
from paritybit.subjects.key_lists import Lists, StaticLists
from paritybit.subjects.parts import Part
from paritybit.subjects.protocol import Keys
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.runners.eagle_draft_extend import EagleDraftExtendRunner
from paritybit.subjects.runners.target_verify import TargetVerifyRunner
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

FAMILY = "state baked in at capture"

LONGEST_AT_CAPTURE = 8
"""Keys of the longest request in the batch of a capture."""

NEWEST = "window_kv_indices"
"""The list of metadata whose newest tensor is kept instead of the captured one."""

RECREATED = ("num_token_non_padded", "global_num_tokens")
"""The token counts for data parallelism."""


class BakesLongest(ListedKV):
    """Attention whose launch gets the longest key count as a host number."""

    def keys_of(self, kind: Kind) -> Keys:
        """Return the keys that the launch covers."""
        keys = super().keys_of(kind)
        end = torch.minimum(keys.end, keys.begin + LONGEST_AT_CAPTURE)
        return Keys(keys.begin, end, keys.slots, keys.mask_start)


class NoWindow(ListedKV):
    """A graph without window metadata: SWA layers get all keys of a request.

    Of a list longer than a window, they do not read the newest keys on a CPU, and also read the
    oldest on CUDA.
    """

    def keys_of(self, kind: Kind) -> Keys:
        """Return all keys of a request, as SWA slots on SWA layers."""
        keys = super().keys_of(Kind.FULL)
        if kind is Kind.FULL:
            return keys
        slots = self.pool.pool.full_to_swa_index_mapping[keys.slots]
        return Keys(keys.begin, keys.end, slots, keys.mask_start)


class NewestMetadata(StaticLists):
    """Metadata in which one list is rebound to the newest tensor, once `newest` is set."""

    newest = False

    def write(self, values: Lists) -> None:
        """Copy the lists, but rebind NEWEST to its new tensor."""
        if self.newest:
            self.buffers = {**self.buffers, NEWEST: values[NEWEST]}
            values = {name: listed for name, listed in values.items() if name != NEWEST}
        super().write(values)


class KeepsNewest(GraphRunner):
    """A runner whose metadata has the newest tensor while its graphs read the captured one."""

    def capture_all(self) -> None:
        """Capture every bucket, and rebind from then on."""
        super().capture_all()
        assert isinstance(self.metadata, NewestMetadata)
        self.metadata.newest = True

    @property
    def state(self) -> Any:
        """The tensors of the metadata."""
        return self.metadata.buffers

    @state.setter
    def state(self, state: Any) -> None:
        self.metadata.buffers = state


class RecreatesCounts(StaticInputs):
    """Inputs of which some are recreated per batch. Graphs still read the old tensors."""

    def populate(
        self, live_values: Mapping[str, Tensor], *, padded: bool, padded_on_host: bool | None = None
    ) -> None:
        """Copy only the live values of the other inputs."""
        copied = {name: values for name, values in live_values.items() if name not in RECREATED}
        super().populate(copied, padded=padded, padded_on_host=padded_on_host)


class PrefillsBeforeVerify(Engine):
    """An engine that captures decode, then prefill, then all modes of speculation."""

    def in_capture_order(
        self, runners: tuple[type[GraphRunner], ...]
    ) -> tuple[type[GraphRunner], ...]:
        """Return the runners in the order of their captures."""
        first = {Mode.DECODE: 0, Mode.EXTEND: 1}
        return tuple(sorted(runners, key=lambda runner: first.get(runner.mode, len(first))))


class KeepsKernel(TargetVerifyRunner):
    """A runner that does not choose its kernel: the flag from a prefill's capture stays set."""

    def choose_kernel(self) -> None:
        """Do not choose."""


class UniformQueries(EagleDraftExtendRunner):
    """A runner that captures equally many tokens for each request, but replays packed tokens."""

    def query_ends(self, counts: Tensor) -> Tensor:
        """Return the row after each request's last token.

        Each request begins where it would if all requests were long.
        """
        longest = torch.full_like(counts, SPECULATION.extend_tokens)
        return longest.cumsum(0) - longest + counts


@contextmanager
def unrecorded(device: torch.device) -> Iterator[None]:
    """Run the body on a stream that no graph captures. On a CPU, hide it from tapes."""
    if device.type == "cpu":
        with _disable_current_modes():
            yield
    elif torch.cuda.is_current_stream_capturing():
        with torch.cuda.stream(_unnamed_stream(device)):
            yield
    else:
        with torch.cuda.stream(_unnamed_stream(device)):
            torch.empty(1, device=device)  # Keep a free block: captures must not allocate.
        yield


@cache
def _unnamed_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of launches without a stream argument. It keeps its freed memory."""
    return torch.cuda.Stream(device)


class LaunchesElsewhere(Ops):
    """Ops of which one launches its kernel on another stream."""

    def rotary(self, positions: Tensor, section: Tensor, frequency: Tensor) -> Tensor:
        """Return cos and sin of the positions, without recording them in a graph."""
        with unrecorded(positions.device):
            return super().rotary(positions, section, frequency)


BUGS = (
    Bug(
        name="swa_loc_unset",
        family="captured path",
        scheme=LocationScheme.PRESET,
        thread=THREAD.format(23552),
        mechanism=(
            "swa_loc is not set before the capture. Every value is correct, but the graph "
            "contains the slow path: a full-to-SWA translation in every SWA layer, as "
            "before 23552."
        ),
        toggles={"preset_at_capture": False},
        needs=("out_cache_loc_swa",),
    ),
    Bug(
        name="longest_key_count_baked",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("huggingface/transformers", 45323),
        mechanism=(
            "Graphs are looked up by padded shape alone, but each graph also has the longest key"
            " count of its capture baked in. A longer request loses its last keys."
        ),
        parts={Part.ACCESS: BakesLongest},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
        at_capture=True,
    ),
    Bug(
        name="block_table_rebound",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("vllm-project/vllm-ascend", 8508),
        mechanism=(
            "Each step rebinds the window's block table to a new tensor, but the graph "
            "still reads the tensor it was captured with."
        ),
        parts={Part.RUNNER: KeepsNewest, Part.METADATA: NewestMetadata},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
    ),
    Bug(
        name="counts_recreated",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(27664),
        mechanism=(
            "The token counts for data parallelism are recreated for every replay but not "
            "copied into the static buffer. The graph reads the counts from the capture."
        ),
        parts={Part.INPUTS: RecreatesCounts},
        needs=RECREATED,
    ),
    Bug(
        name="prefill_kernel_captured",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(31198),
        mechanism=(
            "The prefill capture sets a flag and does not clear it. The verify capture "
            "that follows records the prefill kernel, which applies no mask."
        ),
        parts={Part.ENGINE: PrefillsBeforeVerify, Part.RUNNER: KeepsKernel},
        modes=frozenset({Mode.TARGET_VERIFY}),
    ),
    Bug(
        name="query_layout_uniform",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(21987),
        mechanism=(
            "The capture assumes that all requests have the same number of query tokens. "
            "At replay, each request has as many as were accepted."
        ),
        parts={Part.RUNNER: UniformQueries},
        modes=frozenset({Mode.DRAFT_EXTEND}),
    ),
    Bug(
        name="window_metadata_absent",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(6162),
        mechanism=(
            "The window metadata has no static buffers, so the graph never uses it. "
            "Sliding-window layers attend to all keys, which is correct only until a "
            "request is longer than the window."
        ),
        parts={Part.ACCESS: NoWindow},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
        at_capture=True,
    ),
    Bug(
        name="kernel_not_recorded",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("RWKV-Vibe/rwkv_lightning", 24),
        mechanism=(
            "One kernel is launched without a stream argument, so the capture misses it. Every "
            "replay uses the result that the kernel produced at capture."
        ),
        parts={Part.OPS: LaunchesElsewhere},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
        at_capture=True,
    ),
)
