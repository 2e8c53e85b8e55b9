"""Plants faults in vLLM's drafter, and says who sees them.

A script: one release per process. `python -m properties.engines.mutated_vllm_drafts PACKAGE
MUTATION …`, where `eagle_draft` and `eagle_draft_extend` are those runners as they are.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from paritybit.harness.engines.playlist import FIRST
from paritybit.harness.schedules.schedule import Admit, Decode, Draft, DraftExtend, Schedule

from properties.engines.mutated_vllm import as_it_is
from properties.engines.planting_vllm import Plant, played, say, shown_by

ALONE = Schedule((Admit(5, 24), DraftExtend((0,)), Draft((0,)), Decode((0,)), DraftExtend((0,))))
"""One request, beside which a row of a graph of two is padded."""

LEFT = 3
"""A length that an earlier batch left."""


def drafter_of(own: Any) -> Any:
    """Return the engine's drafter of a runner."""
    return own.runner.runner.speculator


def wrap(own: Any, name: str, made: Callable[..., Any]) -> None:
    """Let calls of a function of the drafter's module for its own buffers go to `made`.

    That is called with the function and what it is given.
    """
    drafter = drafter_of(own)
    module = sys.modules[type(drafter).__mro__[1].__module__]
    right = getattr(module, name)

    def called(*arguments: Any, **named: Any) -> Any:
        ours = any(one is drafter.input_buffers for one in arguments)
        return made(right, *arguments, **named) if ours else right(*arguments, **named)

    setattr(module, name, called)


def recapture(own: Any) -> None:
    """Let the engine capture its graphs and its drafter's anew."""
    drafter = drafter_of(own)
    drafting = drafter.prefill_cudagraph_manager, drafter.decode_cudagraph_manager
    for manager in (own.runner.runner.cudagraph_manager, *drafting):
        manager.graphs = {}
        vars(manager).pop("run_fullgraph", None)
    own.runner.runner.cudagraph_manager.hidden_states = None
    own.runner.capture()


def leave_draft_lengths(own: Any) -> None:
    """Give padded requests a length before drafts are proposed."""

    def prepared(right: Any, tokens: Any, *rest: Any, **named: Any) -> None:
        right(tokens, *rest, **named)
        drafter_of(own).input_buffers.seq_lens[len(tokens) :] = LEFT

    wrap(own, "prepare_decode_inputs", prepared)


def leave_last_tokens(own: Any) -> None:
    """Keep an earlier batch's last tokens in the rows of padded requests."""

    def prepared(right: Any, last: Any, *rest: Any, **named: Any) -> Any:
        before = last.clone()
        found = right(last, *rest, **named)
        live = rest[2].num_reqs
        last[live:] = before[live:]
        return found

    wrap(own, "prepare_prefill_inputs", prepared)


def sample_after_the_rejected(own: Any) -> None:
    """Take the last token that ran for the last that was accepted."""

    def prepared(right: Any, *given: Any, **named: Any) -> Any:
        return right(*given[:5], torch.zeros_like(given[5]), *given[6:], **named)

    wrap(own, "prepare_prefill_inputs", prepared)


def count_the_rejected(own: Any) -> None:
    """Count rejected tokens among those that drafts see."""

    def prepared(
        right: Any, tokens: Any, lengths: Any, rejected: Any, *rest: Any, **named: Any
    ) -> None:
        right(tokens, lengths, torch.zeros_like(rejected), *rest, **named)

    wrap(own, "prepare_decode_inputs", prepared)


def leave_draft_rows(own: Any) -> None:
    """Keep an earlier batch's requests in the rows of padded ones."""
    drafter = drafter_of(own)
    copied = drafter._copy_request_inputs

    @wraps(copied)
    def copying(live: int, *rest: Any, **named: Any) -> None:
        before = drafter.idx_mapping.clone()
        copied(live, *rest, **named)
        drafter.idx_mapping[live:] = before[live:]

    drafter._copy_request_inputs = copying


def leave_draft_slots(own: Any) -> None:
    """Fill the slots' tail of drafts from the padded count on: pull request 36580 once more."""
    tables = own.runner.runner.block_tables
    compute = tables.compute_slot_mappings

    def computed(idx: Any, starts: Any, positions: Any, *rest: Any, **named: Any) -> Any:
        before = tables.slot_mappings.clone()
        found = compute(idx, starts, positions, *rest, **named)
        token = torch.arange(before.shape[1])
        padded = (token >= starts[-1]) & (token < len(positions))
        tables.slot_mappings.copy_(torch.where(padded, before, tables.slot_mappings))
        return found

    tables.compute_slot_mappings = computed
    recapture(own)
    del tables.compute_slot_mappings


def keep_hidden_states(own: Any) -> None:
    """Let each further draft start from the hidden states of the first."""

    def updated(right: Any, *given: Any, **named: Any) -> None:
        right(*given[:4], given[4].clone(), *given[5:], **named)

    wrap(own, "update_draft_inputs", updated)
    recapture(own)


MUTATIONS: dict[str, tuple[str, Plant]] = {
    "eagle_draft": ("eagle_draft", as_it_is),
    "eagle_draft_extend": ("eagle_draft_extend", as_it_is),
    **{
        one.__name__: ("eagle_draft_extend", one)
        for one in (leave_last_tokens, sample_after_the_rejected)
    },
    **{
        one.__name__: ("eagle_draft", one)
        for one in (
            leave_draft_lengths,
            count_the_rejected,
            leave_draft_rows,
            leave_draft_slots,
            keep_hidden_states,
        )
    },
}
"""What is planted, by name, and in which runner."""


def shown(engine: Any, mutation: str) -> dict[str, Any]:
    """Return what two schedules of a runner show with a fault planted in it."""
    runner, plant = MUTATIONS[mutation]

    def planted(own: Any) -> None:
        with torch.inference_mode():
            plant(own)

    return shown_by(played(engine, runner, planted, (FIRST[runner], ALONE)))


if __name__ == "__main__":
    say(sys.argv[1], shown, sys.argv[2:])
