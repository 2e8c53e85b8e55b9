"""Graphs that contain state of their capture: a bound, a flag, a tensor, a layout."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from paritybit.reference.batch import Mode
from paritybit.reference.config import SPECULATION, Kind
from paritybit.reference.ops import Ops
from paritybit.subjects.access import ListedKV
from paritybit.subjects.bugs.bug import THREAD, Bug, pull
from paritybit.subjects.bugs.expected import DECODE, DRAFT_EXTEND, PREFILL, VERIFY, seen
from paritybit.subjects.key_lists import Lists, StaticLists
from paritybit.subjects.parts import Part
from paritybit.subjects.protocol import Keys
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.runners.eagle_draft_extend import EagleDraftExtendRunner
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

FAMILY = "state baked in at capture"

LONGEST_AT_CAPTURE = 8
"""Keys of the longest request in the batch of a capture."""

NEWEST = "window_kv_indices"
"""The list of metadata whose newest tensor is kept instead of the captured one."""


class BakesLongest(ListedKV):
    """Attention whose launch gets the longest key count as a host number."""

    def keys_of(self, kind: Kind) -> Keys:
        """Return the keys that the launch covers."""
        keys = super().keys_of(kind)
        end = torch.minimum(keys.end, keys.begin + LONGEST_AT_CAPTURE)
        return Keys(keys.begin, end, keys.slots, keys.mask_start)


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
        expected=seen(
            "captured_path",
            DECODE,
            VERIFY,
            but={
                PREFILL: (
                    "swa_loc is set on every replay, so no captured graph can contain the slow path"
                ),
            },
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
        expected=seen("logits_parity", DECODE),
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
        expected=seen("index_contract", DECODE),
        parts={Part.RUNNER: KeepsNewest, Part.METADATA: NewestMetadata},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
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
        expected=seen("logits_parity", DRAFT_EXTEND),
        parts={Part.RUNNER: UniformQueries},
        modes=frozenset({Mode.DRAFT_EXTEND}),
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
        expected=seen("logits_parity", DECODE),
        parts={Part.OPS: LaunchesElsewhere},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
        at_capture=True,
    ),
)
