"""Key lists of the subject: which slots every token reads, held against lists in plain Python.

What must be listed is made here once more from the definitions: a query at position i sees
the keys j with i - W < j <= i on SWA layers, drafts see their own branch or their ancestors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paritybit.harness.lockstep.config import SUBJECT_LOGGER, TrialConfig
from paritybit.reference.batch import Mode, Span, prepare
from paritybit.reference.config import PRESETS
from paritybit.reference.pool import HybridKVPool, PoolSizes
from paritybit.subjects.buffers import BufferPool
from paritybit.subjects.key_lists import (
    StaticLists,
    draft_lists,
    fresh_span_keys,
    row_keys,
    row_lists,
    row_sizes,
    span_keys,
    span_lists,
    span_sizes,
    verify_keys,
    verify_lists,
    verify_sizes,
)
from paritybit.subjects.listing import host
from paritybit.subjects.pool import SubjectPool
from paritybit.subjects.protocol import KeyLists, Keys
from paritybit.subjects.toggles import LocationScheme, MemoResets, Toggles
from torch import Tensor

from properties.support.subjects.examples import examples
from properties.support.subjects.listings import (
    check_any_stride,
    check_drafts,
    check_listings,
    check_paths,
    check_tables,
    check_too_many_are_none,
    check_translations,
)

CONFIG = PRESETS["gpt_oss"].tiny
WINDOW, CONTEXT, ROWS = CONFIG.window, CONFIG.max_context, 16
BS = 5
"""Requests of the widest bucket."""

TOPK, STEPS, FORWARDS, DRAFTS, EXTEND_TOKENS = 2, 3, 2, 4, 4
PAGE_SIZES = (1, 4)

each_pool = pytest.mark.parametrize("page_size", PAGE_SIZES, ids=["page1", "page4"])
schemes = st.sampled_from(LocationScheme)
"""Under none of them may a list differ."""


@dataclass(frozen=True)
class Tabled:
    """A pool whose tables hold slots of every row, and the same tables in plain Python.

    Rows hold pages, each at a place of its own; row 0 holds zeros. Full pages map to SWA
    pages in reverse, but for one that is unmapped.
    """

    pool: HybridKVPool
    table: list[list[int]]
    mapping: list[int]

    def full(self, row: int, columns: Sequence[int]) -> list[int]:
        """Return the full slots of some columns of a row."""
        return [self.table[row][column] for column in columns]

    def swa(self, row: int, columns: Sequence[int]) -> list[int]:
        """Return the SWA slots of some columns of a row."""
        return [self.mapping[slot] for slot in self.full(row, columns)]


@cache
def tabled(page_size: int, device: str) -> Tabled:
    """Return such a pool."""
    pool = HybridKVPool(CONFIG, PoolSizes(page_size=page_size), torch.float32, torch.device(device))
    pages = 69 // page_size
    mapping = [0] * pool.full_to_swa_index_mapping.shape[0]
    for slot in range(page_size, (pages + 1) * page_size):
        page, place = divmod(slot, page_size)
        mapping[slot] = 0 if page == 5 else (pages + 1 - page) * page_size + place
    mapping[-1] = -1
    table = [[0] * CONTEXT]
    for row in range(1, ROWS + 1):
        held = [(row * 31 + page * 7) % pages + 1 for page in range(CONTEXT)]
        table.append(
            [
                held[column // page_size] * page_size + column % page_size
                for column in range(CONTEXT)
            ]
        )
    pool.full_to_swa_index_mapping.copy_(torch.tensor(mapping))
    pool.req_to_token.copy_(torch.tensor(table))
    return Tabled(pool, table, mapping)


def subject_pool(page_size: int, scheme: LocationScheme, device: str) -> SubjectPool:
    """Return the engine's view of that pool."""
    return SubjectPool(
        tabled(page_size, device).pool, TrialConfig(device=device).ops(), scheme, SUBJECT_LOGGER
    )


@cache
def static(kind: str, device: str) -> StaticLists:
    """Return static lists that every example writes over: their tails are stale."""
    sizes = {
        "rows": row_sizes(BS * TOPK * FORWARDS, CONTEXT, WINDOW),
        "spans": span_sizes(BS, BS * EXTEND_TOKENS, CONTEXT, WINDOW),
        "verify": verify_sizes(BS, CONTEXT, WINDOW),
    }
    return StaticLists(sizes[kind], BufferPool(torch.device(device)))


@dataclass(frozen=True)
class Listed:
    """What each token of a forward lists: its full and its SWA slots, in order."""

    full: list[list[int]]
    swa: list[list[int]]


def split(keys: Keys) -> list[list[int]]:
    """Return the slots of each token, on the host. What ends before it begins is empty."""
    slots = keys.slots.tolist()
    bounds = zip(keys.begin.tolist(), keys.end.tolist(), strict=True)
    return [slots[begin : max(begin, end)] for begin, end in bounds]


def listed(keys: KeyLists) -> Listed:
    """Return key lists of the subject on the host."""
    return Listed(split(keys.full), split(keys.swa))


def seen(position: int, window: int) -> list[int]:
    """Return the positions that a query sees through a window, from the definition."""
    return [key for key in range(CONTEXT) if position - window < key <= position]


def of_queries(queries: Sequence[tuple[int, int]], tables: Tabled) -> Listed:
    """Return the lists of queries (row, position); a negative position sees nothing."""
    return Listed(
        [tables.full(row, seen(position, CONTEXT)) for row, position in queries],
        [tables.swa(row, seen(position, WINDOW)) for row, position in queries],
    )


def ints(values: Sequence[int], device: str, dtype: torch.dtype = torch.int32) -> Tensor:
    """Return values as a static buffer holds them."""
    return torch.tensor(values, dtype=dtype, device=device)


rows = st.integers(1, ROWS)
buckets = st.integers(1, BS)


def written_rows(
    queries: Sequence[tuple[int, int]], page_size: int, scheme: LocationScheme, device: str
) -> Listed:
    """Write the static lists of rows whose last key is at a position; return what they hold."""
    lengths = [position + 1 for _, position in queries]
    lists = static("rows", device)
    lists.write(
        row_lists(
            ints([row for row, _ in queries], device, torch.int64),
            ints(lengths, device),
            ints(lengths, "cpu"),
            WINDOW,
            subject_pool(page_size, scheme, device),
            MemoResets(),
        )
    )
    return listed(row_keys(lists.buffers, 0, len(queries)))


@each_pool
@examples(3)
@given(
    scheme=schemes,
    live=st.lists(st.tuples(rows, st.integers(0, CONTEXT - 1)), max_size=BS),
    bucket=buckets,
)
def test_a_row_lists_its_prefix_and_itself(
    device: str, page_size: int, scheme: LocationScheme, live: list[tuple[int, int]], bucket: int
) -> None:
    """Padded rows list row 0's one key: slot 0."""
    padded = max(0, bucket - len(live))
    found = written_rows(live + [(0, 0)] * padded, page_size, scheme, device)
    wanted = of_queries(live, tabled(page_size, device))
    assert found.full == wanted.full + [[0]] * padded
    assert found.swa == wanted.swa + [[0]] * padded


@each_pool
def test_a_query_sees_exactly_the_window(device: str, page_size: int) -> None:
    """Itself included: its SWA list holds W keys from position W - 1 on, and all keys before."""
    tables = tabled(page_size, device)
    for position in range(CONTEXT):
        (swa,) = written_rows([(3, position)], page_size, LocationScheme.MEMO, device).swa
        assert len(swa) == min(WINDOW, position + 1)
        assert [swa[0], swa[-1]] == tables.swa(3, [max(0, position - WINDOW + 1), position])


@each_pool
def test_a_part_of_the_rows_is_listed_by_itself(device: str, page_size: int) -> None:
    """Row lists lie one after the other, so that a forward may read any run of them."""
    queries = [(row, 3 * row) for row in range(1, 9)]
    written_rows(queries, page_size, LocationScheme.MEMO, device)
    for first, count in ((0, 8), (2, 3), (7, 1)):
        found = listed(row_keys(static("rows", device).buffers, first, count))
        assert found == of_queries(queries[first : first + count], tabled(page_size, device))


extended = st.tuples(rows, st.integers(0, CONTEXT - 4), st.integers(1, EXTEND_TOKENS))


@each_pool
@examples(3)
@given(
    scheme=schemes,
    live=st.lists(extended, max_size=BS, unique_by=lambda request: request[0]),
    bucket=buckets,
)
def test_a_token_of_a_draft_extend_lists_its_prefix_and_itself(
    device: str,
    page_size: int,
    scheme: LocationScheme,
    live: list[tuple[int, int, int]],
    bucket: int,
) -> None:
    """Of a padded request, which claims more tokens than keys, the last sees slot 0.

    Its others see nothing, and so do the rows beyond all requests.
    """
    live = live[:bucket]
    padded, tokens = bucket - len(live), bucket * EXTEND_TOKENS
    pool_rows = [row for row, _, _ in live] + [0] * padded
    seq_lens = [begin + count for _, begin, count in live] + [1] * padded
    counts = [count for _, _, count in live] + [EXTEND_TOKENS] * padded
    lists = static("spans", device)
    lists.write(
        span_lists(
            ints(pool_rows, device, torch.int64),
            ints(seq_lens, device),
            ints(counts, device),
            ints(seq_lens, "cpu"),
            ints(counts, "cpu"),
            tokens,
            WINDOW,
            subject_pool(page_size, scheme, device),
            MemoResets(),
        )
    )
    queries = [(row, begin + i) for row, begin, count in live for i in range(count)]
    queries += [(0, -3), (0, -2), (0, -1), (0, 0)] * padded
    queries += [(0, -1)] * (tokens - len(queries))
    wanted = of_queries(queries, tabled(page_size, device))
    assert listed(span_keys(lists.buffers, tokens)) == wanted
    assert len(wanted.full) == tokens


@each_pool
@examples(3)
@given(
    scheme=schemes,
    spans=st.lists(
        st.tuples(rows, st.integers(0, 40), st.integers(1, 8)),
        min_size=1,
        max_size=4,
        unique_by=lambda span: span[0],
    ),
)
def test_a_token_of_an_extend_lists_its_prefix_and_itself(
    device: str, page_size: int, scheme: LocationScheme, spans: list[tuple[int, int, int]]
) -> None:
    """Afresh, with as many tokens of each request as the batch says."""
    tables = tabled(page_size, device)
    parts = [table_span(tables, row, begin, begin + count) for row, begin, count in spans]
    tokens = torch.zeros((1, CONTEXT), dtype=torch.int64, device=device)
    batch = prepare(Mode.EXTEND, parts, tokens, tokens[..., None].float(), tables.pool.tables)
    queries = [(span.row, position) for span in parts for position in range(span.begin, span.end)]
    keys = fresh_span_keys(batch, WINDOW, subject_pool(page_size, scheme, device), MemoResets())
    assert listed(keys) == of_queries(queries, tables)


def table_span(tables: Tabled, row: int, begin: int, end: int) -> Span:
    """Return the tokens begin .. end-1 of a row at the slots that the tables hold already."""
    columns = range(begin, end)
    return Span(
        row=row,
        token_row=0,
        begin=begin,
        end=end,
        full_slots=tables.full(row, columns),
        swa_slots=tables.swa(row, columns),
        mrope_delta=0,
        track_index=0,
        tracked=False,
        encoder_len=0,
    )


drafted = st.tuples(rows, st.integers(1, CONTEXT - TOPK * STEPS))


@each_pool
@examples(3)
@given(scheme=schemes, live=st.lists(drafted, max_size=BS), bucket=buckets)
def test_a_branch_of_a_draft_lists_the_request_and_its_own_slots(
    device: str, page_size: int, scheme: LocationScheme, live: list[tuple[int, int]], bucket: int
) -> None:
    """Branch b's lie in columns L + b * steps on, one more of them at each forward.

    A padded request's branches list its one key and their own: slot 0 each time.
    """
    live = live[:bucket]
    padded, tables = bucket - len(live), tabled(page_size, device)
    seq_lens = [length for _, length in live] + [1] * padded
    lists = static("rows", device)
    lists.write(
        draft_lists(
            ints([row for row, _ in live] + [0] * padded, device, torch.int64),
            ints(seq_lens, device),
            ints(seq_lens, "cpu"),
            WINDOW,
            subject_pool(page_size, scheme, device),
            MemoResets(),
        )
    )
    for step in range(FORWARDS):
        wanted = Listed([], [])
        for row, length in live:
            for branch in range(TOPK):
                own = [length + branch * STEPS + i for i in range(step + 1)]
                past = [key for key in seen(length + step, CONTEXT) if key < length]
                near = [key for key in seen(length + step, WINDOW) if key < length]
                wanted.full.append(tables.full(row, past + own))
                wanted.swa.append(tables.swa(row, near + own))
        nothing = [[0] * (step + 2)] * (padded * TOPK)
        found = listed(row_keys(lists.buffers, step * bucket * TOPK, bucket * TOPK))
        assert found == Listed(wanted.full + nothing, wanted.swa + nothing)


parents = st.tuples(*(st.integers(0, node - 1) for node in range(1, DRAFTS)))
verified = st.tuples(rows, st.integers(1, CONTEXT - DRAFTS), parents)
Verified = tuple[int, int, tuple[int, ...]]


def ancestors(above: Sequence[int], node: int) -> set[int]:
    """Return a node and all above it, where `above` names the parents of nodes 1, 2, …."""
    return {0} if node == 0 else {node} | ancestors(above, above[node - 1])


def written_verify(
    live: Sequence[Verified],
    bucket: int,
    page_size: int,
    scheme: LocationScheme,
    device: str,
    *,
    right: bool,
) -> KeyLists:
    """Write the static lists of a padded verify; return them with the mask of its trees."""
    padded = bucket - len(live)
    seq_lens = [length for _, length, _ in live] + [1] * padded
    depths = [len(ancestors(above, node)) - 1 for _, _, above in live for node in range(DRAFTS)]
    begins = [length for _, length, _ in live for _ in range(DRAFTS)]
    positions = [begin + depth for begin, depth in zip(begins, depths, strict=True)]
    mask = [
        column < length or column - length in ancestors(above, node)
        for _, length, above in live
        for node in range(DRAFTS)
        for column in range(length + DRAFTS)
    ]
    mask += [True] * (BS * DRAFTS * CONTEXT - len(mask))
    lists = static("verify", device)
    lists.write(
        verify_lists(
            ints([row for row, _, _ in live] + [0] * padded, device, torch.int64),
            ints(seq_lens, device),
            ints(seq_lens, "cpu"),
            ints(positions + [0] * (padded * DRAFTS), device, torch.int64),
            WINDOW,
            subject_pool(page_size, scheme, device),
            Toggles(scheme, translate_page_table=right),
        )
    )
    custom_mask = torch.tensor(mask, device=device)
    return verify_keys(lists.buffers, bucket * DRAFTS, custom_mask, WINDOW)


def masks(keys: Keys, mask: Tensor | None) -> list[list[bool]]:
    """Return which of its listed keys each token sees."""
    assert mask is not None and keys.mask_start is not None
    bits = mask.tolist()
    starts = keys.mask_start.tolist()
    counts = (keys.end - keys.begin).tolist()
    return [bits[start : start + count] for start, count in zip(starts, counts, strict=True)]


@each_pool
@examples(3)
@given(
    scheme=schemes,
    live=st.lists(verified, max_size=BS, unique_by=lambda request: request[0]),
    bucket=buckets,
)
def test_a_draft_to_verify_lists_every_draft_and_sees_its_ancestors(
    device: str, page_size: int, scheme: LocationScheme, live: list[Verified], bucket: int
) -> None:
    """Beside its window of the past. A padded request's drafts list slot 0 for each key."""
    live = live[:bucket]
    tables, wanted = tabled(page_size, device), Listed([], [])
    full_seen, swa_seen = [], []
    for row, length, above in live:
        drafts = [length + node for node in range(DRAFTS)]
        for node in range(DRAFTS):
            mine = ancestors(above, node)
            position = length + len(mine) - 1
            past = [key for key in seen(position, CONTEXT) if key < length]
            near = [key for key in seen(position, WINDOW) if key < length]
            wanted.full.append(tables.full(row, past + drafts))
            wanted.swa.append(tables.swa(row, near + drafts))
            tree = [other in mine for other in range(DRAFTS)]
            full_seen.append([True] * len(past) + tree)
            swa_seen.append([True] * len(near) + tree)
    keys = written_verify(live, bucket, page_size, scheme, device, right=True)
    nothing = [[0] * (1 + DRAFTS)] * ((bucket - len(live)) * DRAFTS)
    assert listed(keys) == Listed(wanted.full + nothing, wanted.swa + nothing)
    tokens = len(live) * DRAFTS
    assert masks(keys.full, keys.mask)[:tokens] == full_seen
    assert masks(keys.swa, keys.mask)[:tokens] == swa_seen


def test_an_untranslated_page_table_lists_full_slots_on_swa_layers(device: str) -> None:
    """The historical fault: slots of the right tokens, in the wrong sub-pool."""
    live = [(3, 20, (0, 0, 2)), (5, 4, (0, 1, 1))]
    right, wrong = (
        listed(written_verify(live, 3, 1, LocationScheme.MEMO, device, right=translated))
        for translated in (True, False)
    )
    mapping = tabled(1, device).mapping
    assert wrong.full == right.full
    assert [[mapping[slot] for slot in slots] for slots in wrong.swa] == right.swa != wrong.swa


@each_pool
def test_the_longest_lists_fit_their_buffers(device: str, page_size: int) -> None:
    """Every request as long as the context lets it be, in the widest bucket."""
    tables = tabled(page_size, device)
    held = range(1, BS + 1)
    last = [(row, CONTEXT - 1) for row in held for _ in range(TOPK * FORWARDS)]
    assert written_rows(last, page_size, LocationScheme.MEMO, device) == of_queries(last, tables)
    longest = [(row, CONTEXT - DRAFTS, (0, 0, 0)) for row in held]
    keys = written_verify(longest, BS, page_size, LocationScheme.MEMO, device, right=True)
    every = [tables.full(row, range(CONTEXT)) for row in held for _ in range(DRAFTS)]
    assert listed(keys).full == every


def test_a_gpu_lists_what_a_cpu_lists(device: str) -> None:
    """By its kernels."""
    if device != "cuda":
        pytest.skip("without a GPU these kernels are interpreted, in test_ops")
    from paritybit.reference.kernels import tables  # noqa: PLC0415 - not without CUDA
    from paritybit.subjects.listing import device as on_device  # noqa: PLC0415 - likewise
    from paritybit.subjects.listing import drafts, paths  # noqa: PLC0415 - likewise

    check_listings(on_device, device)
    check_any_stride(on_device, device)
    check_too_many_are_none(on_device, device)
    check_translations(on_device, device)
    check_tables(tables, device)
    check_drafts(drafts, device)
    check_paths(paths, device)


def test_more_keys_than_there_are_cannot_be_listed() -> None:
    """What the host counts says how many: a count that is too high is no list of junk."""
    table = torch.arange(8, dtype=torch.int32).view(2, 4)
    rows, seq_lens = torch.tensor([0, 1]), torch.tensor([3, 2])
    assert host.list_rows(rows, seq_lens, (5, 2), 1, table, None)["kv_indices"].shape == (5,)
    for totals in ((6, 2), (5, 3)):
        with pytest.raises(IndexError):
            host.list_rows(rows, seq_lens, totals, 1, table, None)
