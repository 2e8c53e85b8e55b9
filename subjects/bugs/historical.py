"""Bugs in the history of the engine that this one models. Each has a case file, variants apart."""

import torch
from paritybit.subjects.bugs.bug import (
    DRAFTS,
    EVERY_RUNNER,
    FULL_GRAPH,
    PADS_REQUESTS,
    PREFILL,
    Bug,
    pull,
    seen,
)
from paritybit.subjects.contracts import Policy
from paritybit.subjects.toggles import LocationScheme, Site

MEMO_THREADS = f"{pull(25824)}, fixed by {pull(26152)}"

WARNS_IN_PYTHON = seen("log_hygiene", "cpu_graph", "eagle_draft_extend", *PREFILL)
"""Where Python translates out_cache_loc after the window's slots."""


def hidden(reason: str, *runners: str) -> dict[str, str]:
    """Return one reason why these runners are unaffected. By default, no runner is affected."""
    return dict.fromkeys(runners or EVERY_RUNNER, reason)


IN_FULL_GRAPHS = *FULL_GRAPH, *DRAFTS

VARIANTS: tuple[tuple[str, dict[str, str], dict[str, str]], ...] = (
    ("entry", {}, hidden("before_window clears the memo before the window is translated")),
    (
        "before_window",
        {},
        hidden("entry clears the memo, and nothing is translated before the window"),
    ),
    (
        "after_window",
        WARNS_IN_PYTHON,
        hidden("in a full graph, Python translates nothing after the window", *IN_FULL_GRAPHS),
    ),
    (
        "entry+before_window",
        seen("log_hygiene", *PADS_REQUESTS),
        hidden("every extend allocates first, and the allocator clears the memo", *PREFILL),
    ),
    (
        "entry+after_window",
        WARNS_IN_PYTHON,
        hidden("the clear in before_window masks the missing clear", *IN_FULL_GRAPHS),
    ),
    (
        "before_window+after_window",
        WARNS_IN_PYTHON,
        hidden("the clear in entry masks the missing clear", *IN_FULL_GRAPHS),
    ),
)
"""Sites of PR 26152 that are left out alone or in pairs, joined by "+"."""

BUGS = (
    Bug(
        name="swa_pad",
        thread=f"{pull(23552)}, fixed by {pull(24743)}",
        mechanism=(
            "out_cache_loc_swa is not reset when the batch is padded. Padded rows write K "
            "and V into SWA slots that an earlier, fuller batch left there."
        ),
        # Prefill attention reads real tokens only, so the wrong padded locations stay unread.
        expected=seen("kv_parity", *FULL_GRAPH) | seen("live_inputs", *PREFILL),
        scheme=LocationScheme.PRESET,
        rows={"out_cache_loc_swa": {"policy": Policy.KEEP}},
    ),
    Bug(
        name="swa_int64",
        thread=f"{pull(23552)}, fixed by {pull(24743)}",
        mechanism=(
            "out_cache_loc_swa is int64 while the pool's SWA locations are int32. The "
            "copy converts, but a store kernel with a fixed ABI reads every second "
            "half-word."
        ),
        expected=seen("index_contract", *FULL_GRAPH, *PREFILL),
        scheme=LocationScheme.PRESET,
        rows={"out_cache_loc_swa": {"dtype": torch.int64}},
        in_shared=True,
    ),
    Bug(
        name="req_pool_pad",
        thread=pull(26292),
        mechanism=(
            "req_pool_indices is not reset when the batch is padded. The dummy attention "
            "of a padded row follows a stale request row in req_to_token to KV that was "
            "freed or belongs to another request."
        ),
        expected=seen("hermetic_replay", *PADS_REQUESTS),
        also_in=(LocationScheme.PER_LAYER, LocationScheme.PRESET),
        rows={"req_pool_indices": {"policy": Policy.KEEP}},
    ),
    Bug(
        name="loc_memo_warning",
        thread=MEMO_THREADS,
        mechanism=(
            "25824 without 26152: nothing clears the memo around the window translation, "
            "so it alternates with the translation of out_cache_loc and the pool logs a "
            "warning. Every value is correct. The warning appears in every eager forward, "
            "and in a replay without an allocation before it."
        ),
        expected=seen("log_hygiene", *EVERY_RUNNER),
        without=(Site.ENTRY, Site.BEFORE_WINDOW, Site.AFTER_WINDOW),
    ),
    *(
        Bug(
            name=f"loc_memo_warning.{sites}",
            thread=MEMO_THREADS,
            mechanism=(
                f"The memo is not cleared at {sites.replace('+', ' and ')}, but at the other sites "
                "of 26152. A stale key causes a warning; every value is correct."
            ),
            expected=expected,
            unaffected=unaffected,
            without=tuple(sites.split("+")),
        )
        for sites, expected, unaffected in VARIANTS
    ),
    Bug(
        name="loc_memo_capture",
        thread=pull(25824),
        mechanism=(
            "The memo is not cleared at the start of the warm-up and capture runs. The "
            "capture hits the entry from the warm-up and records no translation, so every "
            "replay silently writes to the SWA slots of the warm-up."
        ),
        expected=seen("kv_parity", *FULL_GRAPH, "eagle_draft_extend"),
        unaffected={
            "cpu_graph": "the runner captures nothing; each forward translates again",
            "eagle_draft": (
                "each forward writes to another slice of out_cache_loc, so the memo misses and "
                "the capture logs a warning"
            ),
            "frozen_kv_mtp": "it stores no KV, so its graph contains no translation",
            **hidden("KV is stored between the graphs; none contains a translation", *PREFILL),
        },
        without=(Site.RUN_ONCE,),
    ),
    Bug(
        name="swa_loc_unset",
        thread=pull(23552),
        mechanism=(
            "swa_loc is not set before the capture. Every value is correct, but the graph "
            "contains the slow path: a full-to-SWA translation in every SWA layer, as "
            "before 23552."
        ),
        expected=seen("captured_path", *FULL_GRAPH),
        unaffected=hidden(
            "swa_loc is set on every replay, so no captured graph can contain the slow path",
            *PREFILL,
        ),
        scheme=LocationScheme.PRESET,
        without=(Site.PRESET,),
    ),
    Bug(
        name="spec_page_table_untranslated",
        thread=pull(24617),
        mechanism=(
            "The page table for a verify is not translated for SWA layers. They use "
            "full slot numbers in the SWA sub-pool, where those slots belong to other "
            "requests."
        ),
        expected=seen("logits_parity", "target_verify"),
        without=(Site.TRANSLATE_VERIFY,),
    ),
    Bug(
        name="shared_buffer_dtype",
        thread="https://github.com/sgl-project/sglang (shared static buffers, from 0.5.11 on)",
        mechanism=(
            "One runner wants positions as int32, but the shared buffer of that name is "
            "int64, so the shared buffer pool refuses to be built. A runner with its own "
            "buffers converts on every copy instead."
        ),
        expected=seen("index_contract", *EVERY_RUNNER),
        scheme=LocationScheme.PRESET,
        rows={"positions": {"dtype": torch.int32}},
    ),
)
