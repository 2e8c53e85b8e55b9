"""Follows one paged cache and tells its watcher what happens, in its order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.transformers import cache as caches
from paritybit.connectors.transformers import streams
from paritybit.connectors.transformers.batch import Batch, Planned
from paritybit.connectors.transformers.inputs import (
    LARGEST_MASK,
    laws_of,
    lists_of,
    masks_of,
    statics_of,
)
from paritybit.watch.facts import Forward, Replay
from paritybit.watch.journal import Journal
from paritybit.watch.settings import Settings
from paritybit.watch.watcher import Watcher

KIND = "ModelRunner"
"""The engine's name for what replays graphs."""


class Engine:
    """What is known of one PagedAttentionCache. It keeps no reference to that."""

    def __init__(self, cache: Any, release: str, journal: Journal, settings: Settings) -> None:
        self.parts = caches.parts_of(cache)
        self.names = {part.allocator.index: name for name, part in self.parts.items()}
        self.watcher = Watcher(
            caches.groups_of(self.parts),
            engine="transformers",
            release=release,
            journal=journal,
            settings=settings,
        )
        self.watcher.listen("ContinuousBatchingLogger")
        self.planned: list[Planned] = []
        self.warming = False
        self.forwards, self.idle_at = 0, 0
        self.now: tuple[Any, Any, Batch] | None = None

    def prepare(self, requests: Sequence[Any]) -> None:
        """Note the requests of the next batch, before the engine counts their new tokens."""
        self.planned = [
            Planned(
                one.state, int(one.state.position_offset), int(one.query_length), one.has_new_token
            )
            for one in requests
        ]

    def forward(
        self,
        runner: Any,
        model: Any,
        given: Mapping[str, Any],
        run: Callable[[], Any],
        writer: Any = None,
    ) -> Any:
        """Watch a forward pass. `writer` is the stream that writes its inputs, if there is one."""
        watcher, due = self.watcher, self.watcher.due()
        inputs, early = streams.inputs_of(given, self.names), dict[str, Tensor]()
        if writer is not None:
            early = streams.copied(inputs) if due else early
            writer.synchronize()
        batch = Batch(self.planned, given, self.parts)
        owned = caches.owned(self.parts, batch.written())
        self.forwards += 1
        if not due:
            result = run()
            watcher.skipped(owned)
            return result
        if self.warming:
            watcher.begin(Forward("warmup", (), owned))
        else:
            watcher.begin(Forward(batch.kind, batch.rows(), owned))
            watcher.lists(list(lists_of(batch)))
            watcher.inputs("batch", [*laws_of(batch), *streams.unordered(early, inputs)])
            if any(mask.numel() > LARGEST_MASK for mask in masks_of(batch).values()):
                watcher.scope(masks_not_watched=f"those of more than {LARGEST_MASK} entries")
        self.now = runner, model, batch
        try:
            result = run()
        except BaseException:
            watcher.abandon()
            raise
        finally:
            self.now = None
        if not self.warming:  # Tokens of the batch before are carried over by this one.
            ids, positions = given["input_ids"][0], given["position_ids"][0]
            watcher.tokens(ids[: batch.size], positions[: batch.size])
        watcher.end()
        return result

    # Graphs.

    def captured(self, io: Any, graph: Any) -> None:
        """Note a graph that was captured over the static inputs of a batch."""
        self.watcher.captured(graph, KIND, statics_of(io, None))

    def replay(self, io: Any, graph: Any) -> Any:
        """Replay a graph, and judge it."""
        if self.now is None or not self.watcher.watching:
            return graph.replay()
        runner, model, batch = self.now
        statics, (count, padded) = statics_of(io, batch), (batch.size, batch.padded)
        predicted = sum(one.predicted for one in batch.requests)

        def outputs() -> dict[str, Tensor]:
            return {"output_ids": io.output_ids[:, :predicted]}

        def eager() -> dict[str, Tensor]:
            arguments = runner.inputs_and_outputs.get_cb_kwargs()
            runner._forward_process_and_sample(model, batch.given, *arguments)
            return outputs()

        return self.watcher.replay(
            Replay(graph, KIND, count, padded, statics, graph.replay, outputs, eager)
        )

    # Blocks.

    def allocated(self, index: int, blocks: Sequence[int]) -> None:
        """Note blocks that are handed out."""
        part = self.parts[self.names[index]]
        self.watcher.allocated(part.name, torch.tensor(list(blocks)) * part.page)

    def freed(self, index: int, blocks: Sequence[int], source: str | None) -> None:
        """Note blocks that are free again."""
        part = self.parts[self.names[index]]
        self.watcher.freed(part.name, torch.tensor(list(blocks)) * part.page, source)

    def copied(self, copies: Mapping[str, tuple[Sequence[int], Sequence[int]]]) -> None:
        """Note blocks that were copied."""
        for name, (source, target) in copies.items():
            part = self.parts[name]
            self.watcher.copied(name, part.of_blocks(source), part.of_blocks(target))

    def stored(self, request: str, tables: Mapping[str, Sequence[int]]) -> None:
        """Note that the blocks of a request were copied to the host."""
        for name, blocks in tables.items():
            self.watcher.store(request, name, self.parts[name].of_blocks(blocks))

    def loaded(self, request: str, tables: Mapping[str, Sequence[int]]) -> None:
        """Note that blocks of the host were copied to the first blocks of a request."""
        for name, blocks in tables.items():
            part = self.parts[name]
            mine = part.allocator.block_table.get(request, [])[: len(blocks)]
            self.watcher.load(request, name, part.of_blocks(mine))

    def idle(self, pool: Any) -> None:
        """Judge which slots are free or cached, once after each forward pass, if nothing runs."""
        if self.idle_at == self.forwards:
            return
        self.idle_at = self.forwards
        locked = {
            name: part.page * len(part.allocator.ledger.shared_ref_counts)
            for name, part in self.parts.items()
        }
        self.watcher.idle(caches.free_and_cached(self.parts, pool), locked)
