"""The engine's autoregressive drafter, built and captured by its own code over our draft model.

It runs behind a forward of the target: with what that gave it catches up, the tokens that were
rejected among the others, then it proposes a chain of drafts.
"""

from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from paritybit.reference.batch import Mode
from paritybit.reference.config import SPECULATION, Role
from paritybit.reference.eager import draft_inputs
from paritybit.reference.model import Model
from paritybit.reference.ops import Ops
from paritybit.subjects.engines.paged.requests import name_of
from paritybit.subjects.engines.paged.runner import PagedDrafter, Verified, accepted
from paritybit.subjects.engines.shared.loading import Engine, attribute, named
from paritybit.subjects.engines.shared.missing import PartMissingError
from paritybit.subjects.engines.shared.tensors import given_back
from paritybit.subjects.engines.vllm.contract import LAST_TOKENS, names_last_tokens
from paritybit.subjects.engines.vllm.model import Decoder, layer_name
from paritybit.subjects.engines.vllm.runner import GPU, OF_BATCHES, VllmRunner
from torch import Tensor

DRAFTER = f"{GPU}.spec_decode.eagle.speculator"
"""Where the engine's drafter is."""

EVERY_DRAFTER = f"{GPU}.spec_decode.speculator"
"""Where what all its drafters have in common is, in later releases."""

MANAGERS = {
    Mode.DRAFT_EXTEND: ("prefill_cudagraph_manager",),
    Mode.DRAFT: ("decode_cudagraph_manager", "cudagraph_manager"),
}
"""What holds the graphs of a drafter that catches up, and of one that proposes, by release."""

BUFFERS, SOURCES = ("hidden_states", "idx_mapping"), "sample_src_positions"
"""The drafter's own static buffers, besides those of batches; and one of later releases."""


class DraftDecoder(Decoder):
    """A draft model, as the engine calls it: on hidden states of the target or of its own.

    `said` [steps, rows, H + vocab] keeps, the newest last, what tokens were sampled from: hidden
    states and their logits. `ran` counts the forwards that were run or captured.
    """

    ran = 0

    def __init__(self, engine: Engine, model: Model, ops: Ops, first: int, rows: int) -> None:
        super().__init__(engine, model, ops, first=first)
        width = model.config.hidden + model.config.vocab
        self.said = torch.zeros(SPECULATION.steps, rows, width, device=model.device)

    def forward(self, input_ids: Tensor, positions: Tensor, *rest: Any, **named: Any) -> Any:
        """Return hidden states twice: those to sample from, and those of the next forward."""
        self.ran += 1
        tokens, states = input_ids.to(torch.int64), named["hidden_states"]
        live = torch.full_like(tokens[:1], tokens.shape[0], dtype=torch.int32)
        inputs = draft_inputs(self.ops, self.weights, tokens, states, positions, live)
        hidden = self.weights.run_layers(self.ops, inputs, self)
        return hidden, hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states [rows, H], and keep both."""
        logits = self.weights.logits(self.ops, hidden)
        self.said.copy_(self.said.roll(-1, 0))
        self.said[-1, : len(hidden)] = torch.cat((hidden, logits), 1)
        return logits


class DraftingRunner(PagedDrafter, VllmRunner):
    """The engine's runner with its drafter, whose graphs for batches of `mode` are on trial.

    `replayed` are the tokens of those that were replayed since a batch began, `graphs` is how
    many of them a batch takes.
    """

    @property
    def layers(self) -> list[Any]:
        """The engine's layers that have KV, the draft model's last."""
        return [*self.decoder.attention, *self.draft.attention]

    def speculator(self, config: Any, device: torch.device, *rest: Any) -> Any:
        """Return the engine's drafter over our draft model, in place of one of its registry."""
        self.replayed = list[int]()
        first, rows = len(self.model.config.layers), config.scheduler_config.max_num_seqs
        self.draft = DraftDecoder(self.engine, self.models[Role.DRAFT], self.ops, first, rows)
        known = config.compilation_config.static_forward_context

        def load(*rest: Any) -> DraftDecoder:
            known.update(zip(self.draft.names, self.draft.attention, strict=True))
            return self.draft

        self.engine.fill(DRAFTER, {"load_eagle_model": load})
        with suppress(PartMissingError):  # Later releases ask the registry of the target.
            self.engine.fill(EVERY_DRAFTER, {"_target_feeds_hc_residual": lambda config: False})
        self.remade = partial(self.engine.part(f"{DRAFTER}:EagleSpeculator"), config, device)
        made = self.remade()
        made.load_model(None)
        return made

    def capture(self) -> Any:
        """Let the engine capture the target's graphs, then the drafter's."""
        states, drafter = super().capture(), self.runner.speculator
        self.draft.ran = 0
        named(attribute(drafter, "capture", "capture_model"), attn_states=states)()
        watched = attribute(drafter, *MANAGERS[self.mode])
        watched.run_fullgraph = partial(self._replay, watched.run_fullgraph)
        # Every graph was run once before it was captured; one that catches up is a forward.
        forwards = (self.draft.ran // 2 - catching_graphs(drafter)) // len(watched.graphs)
        self.graphs = SPECULATION.forwards // forwards if self.mode is Mode.DRAFT else 1
        return states

    def _replay(self, replay: Any, size: Any) -> Any:
        self.replayed.append(tokens_of(size))
        return replay(size)

    def renew(self) -> None:
        """Make anew the drafter of a fresh runner."""
        runner, self.replayed = self.runner, []
        self.draft = copy(self.draft)
        self.draft.said = torch.zeros_like(self.draft.said)
        runner.speculator = made = copy(runner.speculator)
        vars(made).update(vars(self.remade()), model=self.draft)
        named(
            made.set_attn,
            **vars(runner),
            target_attn_groups=runner.attn_groups,
            target_input_buffers=runner.input_buffers,
        )()
        if hasattr(made, "init_cudagraph_manager"):
            made.init_cudagraph_manager(runner.cudagraph_manager.cudagraph_mode)

    def rows_of(self, targets: Sequence[Verified]) -> list[int]:
        """Return the rows of requests in the engine's tables."""
        rows = self.runner.req_states.req_id_to_index
        return [rows[name_of(one.serial)] for one in targets]

    def propose(
        self, told: Any, targets: Sequence[Verified], steps: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Let the drafter follow the target and draft: see `PagedDrafter`.

        The target's own forward is answered: what it gave is known.
        """
        runner, states, drafter = self.runner, self.runner.req_states, self.runner.speculator
        computed, sampled = states.num_computed_tokens.gpu, states.last_sampled_tokens
        rows = self.rows_of(targets)
        integers = partial(torch.tensor, dtype=torch.int32, device=self.device)
        zeros = partial(torch.zeros, states.max_num_reqs, device=self.device)

        def nothing(tokens: int) -> Tensor:
            return self.model.embedding.new_zeros(tokens, self.model.config.hidden)

        told.scheduled_cached_reqs.num_computed_tokens[:] = [one.length for one in targets]
        with given_back((computed, ...), (sampled, ...)):
            computed[rows] = integers([one.begin for one in targets])
            model = patch.object(runner, "model", lambda input_ids, **rest: nothing(len(input_ids)))
            graphs = patch.object(
                runner.cudagraph_manager, "run_fullgraph", lambda size: nothing(tokens_of(size))
            )
            with model, graphs:
                runner.execute_model(told)
            batch, parts = self.kept()
            by_layer = [one for one in parts if isinstance(one, dict) and layer_name(0) in one]
            hidden = nothing(batch.num_tokens_after_padding)
            places, tokens, states_of = accepted(targets)
            hidden[places] = states_of
            batch.input_ids[places] = integers(tokens)
            for row, one in zip(rows, targets, strict=True):
                sampled[row] = one.tokens[-1]
            self.replayed.clear()
            proposing = named(
                drafter.propose,
                input_batch=batch,
                attn_metadata=by_layer[0],
                slot_mappings=by_layer[1],
                last_hidden_states=hidden,
                aux_hidden_states=None,
                num_sampled=integers([1] * len(targets)),
                num_rejected=integers([one.rejected for one in targets]),
                last_sampled=sampled,
                next_prefill_tokens=states.next_prefill_tokens,
                temperature=zeros(),
                seeds=zeros(dtype=torch.int64),
                draft_logits_out=None,
            )
            with patch.object(drafter, "num_speculative_steps", steps):
                drafts = proposing()
            torch.cuda.synchronize()
        said, width = self.draft.said[-steps:, : len(targets)].clone(), self.model.config.hidden
        return drafts[:, :steps].clone(), said[..., :width], said[..., width:]

    def statics(self) -> dict[str, Tensor]:
        """Return every static buffer that a replay reads: the target's, then the drafter's."""
        drafter = self.runner.speculator
        later = {LAST_TOKENS: names_last_tokens(self), SOURCES: hasattr(drafter, SOURCES)}
        own = (*BUFFERS, *(name for name, there in later.items() if there))
        found = {name: attribute(drafter.input_buffers, name) for name in OF_BATCHES}
        found |= {name: attribute(drafter, name) for name in own}
        return {**super().statics(), **{f"drafter.{name}": found[name] for name in found}}


def catching_graphs(drafter: Any) -> int:
    """Return how many graphs a drafter has that catch up: early releases have none."""
    if not hasattr(drafter, MANAGERS[Mode.DRAFT][0]):
        return 0  # One graph manager alone is that of proposals.
    return len(attribute(drafter, *MANAGERS[Mode.DRAFT_EXTEND]).graphs)


def tokens_of(size: Any) -> int:
    """Return how many tokens a graph has room for: in some releases it is known by that alone."""
    tokens: int = getattr(size, "num_tokens", size)
    return tokens
