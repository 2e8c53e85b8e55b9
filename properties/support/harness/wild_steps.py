"""Steps of any kind with any numbers, and outputs of no meaning, that a scheduler withstands."""

import torch
from hypothesis import strategies as st
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Evict,
    Extend,
    Finish,
    Idle,
    Prefill,
    Resume,
    Retract,
    Step,
    Verify,
)
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import PRESETS, SPECULATION
from paritybit.reference.model import Output

CONFIG = PRESETS["gpt_oss"]
"""The model that outputs are of."""

LARGEST = 2**31 - 1
WILD = st.integers(0, LARGEST)
WILD_PICKS = st.lists(WILD, max_size=12).map(tuple)
WILD_STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(Admit, WILD, WILD),
    st.builds(Admit, st.integers(0, 12), st.integers(0, 12)),
    st.builds(Extend, WILD, WILD),
    st.builds(Prefill, WILD_PICKS, WILD),
    st.builds(Prefill, st.lists(st.integers(0, 12), max_size=9).map(tuple), st.integers(0, 12)),
    st.builds(Decode, WILD_PICKS),
    st.builds(DraftExtend, WILD_PICKS),
    st.builds(Draft, WILD_PICKS),
    st.builds(Verify, WILD_PICKS, st.one_of(st.integers(0, 4), WILD)),
    st.builds(Finish, WILD),
    st.builds(Evict, WILD),
    st.builds(Retract, WILD),
    st.builds(Resume, WILD),
    st.builds(Idle, WILD),
)
"""Any steps with any numbers, most of them far beyond what there is to pick from."""


def made_up(batch: ForwardBatch, generator: torch.Generator) -> Output:
    """Return an output of the right shapes for a batch, of no meaning.

    A verify often says what a draft says, so that paths of every length are accepted.
    """
    requests, tokens = batch.live_requests, batch.live_tokens
    extends = batch.mode in {Mode.EXTEND, Mode.DRAFT_EXTEND}

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator)

    if batch.mode.drafts:
        size = SPECULATION.topk**2
        places = [
            torch.randperm(size, generator=generator)
            for _ in range(requests * SPECULATION.forwards)
        ]
        return {
            "scores": draw(requests, SPECULATION.candidates),
            "tokens": (draw(requests, SPECULATION.candidates) * CONFIG.vocab).long(),
            "chosen": torch.stack([place[: SPECULATION.topk] for place in places]).view(
                requests, -1
            ),
        }
    logits = draw(requests if extends else tokens, CONFIG.vocab)
    for request, span in enumerate(batch.spans):
        for token, parent in span.tree[1:]:
            if float(draw(1)) < 0.5:
                logits[request * len(span.tree) + parent, token] = 2
    topk_p, topk_index = logits.topk(SPECULATION.topk)
    rows = requests if batch.mode is Mode.DRAFT_EXTEND else tokens
    hidden = draw(rows, CONFIG.hidden)
    return {"logits": logits, "hidden": hidden, "topk_p": topk_p, "topk_index": topk_index}
