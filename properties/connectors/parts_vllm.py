"""Stand-ins of the parts of vLLM that its connector looks at."""

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from paritybit.connectors.vllm.engine import VllmEngine
from paritybit.watch.journal import Journal
from paritybit.watch.settings import Settings
from properties.connectors.parts import Part, hooked
from properties.support.watching import lines_in

PAGE, BLOCKS, WINDOW = 4, 16, 4


class FullAttentionSpec(Part):
    """A group without a window."""


class SlidingWindowSpec(Part):
    """A group with a window."""


class MambaSpec(Part):
    """A group of recurrent layers."""


class Model(Part):
    """A model."""

    def __call__(self) -> None:
        """Compute nothing."""


GROUPS = (
    Part(layer_names=["full"], kv_cache_spec=FullAttentionSpec(block_size=PAGE)),
    Part(
        layer_names=["slid"],
        kv_cache_spec=SlidingWindowSpec(block_size=PAGE, sliding_window=WINDOW),
    ),
)


def a_pool() -> tuple[Part, dict[str, Part], torch.Tensor]:
    """Return a configuration, layers, and the cache that both groups share, [blocks, page, 2]."""
    cache = torch.zeros(BLOCKS, PAGE, 2)
    layers = {name: Part(kv_cache=cache) for name in ("full", "slid")}
    return Part(kv_cache_groups=GROUPS, num_blocks=BLOCKS), layers, cache


def a_pool_with_drafts() -> tuple[Part, dict[str, Part], tuple[torch.Tensor, torch.Tensor]]:
    """Return a pool as `a_pool` does with two caches: the second is of a draft model.

    A layer of the target shares it, in the group that slides.
    """
    target, drafted = torch.zeros(BLOCKS, PAGE, 2), torch.zeros(BLOCKS, PAGE, 2)
    names = ("full", "eagle"), ("slid", "more")
    groups = [
        Part(layer_names=list(mine), kv_cache_spec=group.kv_cache_spec)
        for mine, group in zip(names, GROUPS, strict=True)
    ]
    caches = {"full": target, "eagle": drafted, "slid": target, "more": drafted}
    layers = {name: Part(kv_cache=cache) for name, cache in caches.items()}
    return Part(kv_cache_groups=groups, num_blocks=BLOCKS), layers, (target, drafted)


def output(
    counts: Mapping[str, int],
    new: Mapping[str, tuple[list[int], ...]] | None = None,
    cached: Mapping[str, tuple[int, tuple[list[int], ...] | None]] | None = None,
    resumed: tuple[str, ...] = (),
    finished: tuple[str, ...] = (),
    drafts: Mapping[str, list[int]] | None = None,
    hit: int = 0,
) -> Part:
    """Return what a scheduler says before a forward. New requests have `hit` tokens cached."""
    return Part(
        finished_req_ids=set(finished),
        scheduled_new_reqs=[
            Part(req_id=name, block_ids=blocks, num_computed_tokens=hit)
            for name, blocks in (new or {}).items()
        ],
        scheduled_cached_reqs=Part(
            req_ids=list(cached or {}),
            num_computed_tokens=[computed for computed, _ in (cached or {}).values()],
            new_block_ids=[blocks for _, blocks in (cached or {}).values()],
            resumed_req_ids=set(resumed),
        ),
        num_scheduled_tokens=counts,
        total_num_scheduled_tokens=sum(counts.values()),
        scheduled_spec_decode_tokens=drafts or {},
        kv_cache_block_copies=None,
    )


def a_request(*tokens: int) -> Part:
    """Return a request of the scheduler."""
    facts = {"lora_request": None, "cache_salt": None, "is_finished": bool}
    return Part(all_token_ids=list(tokens), **facts)


DECODE = output({"a": 1}, cached={"a": (6, None)})

TABLE = [[1, 2, 5], [3, 4, 6]]
"""The blocks of request a in both groups: 12 positions."""

FIRST = output({"a": 6}, new={"a": (TABLE[0], TABLE[1])})
PROMPT = list(range(10, 16))
"""The first forward of request a, and its tokens."""


class Served:
    """An engine with one request at a time, on which the connector's hooks are called.

    `method` is that of its speculation, and `ahead` says that it schedules asynchronously. With
    `state`, it has a recurrent layer, whose state a forward writes to the block with this number.
    Its kernels get the block `kernel`, and whether a prompt `goes_on` from a state.

    If it is `apart`, its scheduler is in another process.

    As a stage of a pipeline, its model gets `received` and returns `sent`.
    """

    received: Any = None
    sent: Any = None

    def __init__(
        self,
        folder: Path,
        method: str | None = None,
        ahead: bool = False,
        state: int | None = None,
        apart: bool = False,
    ) -> None:
        self.journal = Journal(folder / "process-1.jsonl")
        self.engine = VllmEngine("0", self.journal, Settings(str(folder), None, 1))
        config, layers, caches = a_pool_with_drafts()
        self.cache, self.drafted = caches
        if method != "eagle":
            config, layers, self.cache = a_pool()
        self.state = self.kernel = state
        self.goes_on: bool | None = None
        if state is not None:
            spec = MambaSpec(block_size=PAGE)
            if method is not None:  # The first of its inputs is kept, and those of three drafts.
                vars(spec).update(num_speculative_blocks=3, mamba_type=Part(name="SHORT_CONV"))
            recurrent = Part(layer_names=["conv"], kv_cache_spec=spec)
            vars(config)["kv_cache_groups"] = (*GROUPS, recurrent)
            layers["conv"] = Part(kv_cache=(self.cache,))
        compilation = Part(static_forward_context=layers)
        model = Part(max_model_len=64, get_vocab_size=lambda: 100)
        self.runner = Part(
            vllm_config=Part(
                compilation_config=compilation,
                parallel_config=Part(),
                speculative_config=None
                if method is None
                else Part(method=method, num_speculative_tokens=3, disable_eagle_block_drop=False),
                kv_transfer_config=None,
                cache_config=Part(),
                scheduler_config=Part(async_scheduling=ahead),
                model_config=model,
            ),
            kv_cache_config=config,
            get_model=Model,
            input_batch=Part(req_ids=[]),
            input_ids=torch.zeros(8, dtype=torch.int64),
            positions=torch.zeros(8, dtype=torch.int64),
        )
        if method == "eagle":
            self.runner.drafter = Part(
                _draft_attn_layer_names={"eagle"},
                input_ids=torch.zeros(8, dtype=torch.int64),
                positions=torch.zeros(8, dtype=torch.int64),
            )
        self.blocks = [Part(block_id=n, ref_cnt=0, is_null=n == 0) for n in range(BLOCKS)]
        self.free = self.blocks[1:]
        queue = Part(get_all_free_blocks=lambda: self.free)
        pool = Part(free_block_queue=queue, blocks=self.blocks)
        self.scheduler = Part(requests={}, kv_cache_manager=Part(block_pool=pool))
        self.core = self.engine
        if apart:
            journal = Journal(folder / "process-2.jsonl")
            self.core = VllmEngine("0", journal, Settings(str(folder), None, 1))
        hooked(self.engine.pools, lambda *_: None, self.runner, config)
        self.tell(output({}))

    def tell(self, said: Part) -> Part:
        """Let the scheduler say something, and return what its workers get."""
        hooked(self.core.schedule, lambda *_: said, self.scheduler)
        return said if self.core is self.engine else pickle.loads(pickle.dumps(said))

    def run(
        self,
        said: Part,
        table: list[list[int]],
        cached: int,
        tokens: list[int],
        name: str = "a",
        copies: Mapping[str, Callable[[], None]] = MappingProxyType({}),
        counted: int | None = None,
        change: Callable[[Any], object] = bool,
    ) -> None:
        """Run one forward of a request with block tables, as a worker has them.

        `copies` are made by the runner before the model or after it. The worker takes `counted`
        tokens for computed, by default those that are `cached`. `change` gets itself.
        """
        cached = cached if counted is None else counted
        self.runner.num_computed_tokens = torch.tensor([cached])
        places = range(cached, cached + len(tokens))
        slots = [[blocks[p // PAGE] * PAGE + p % PAGE for p in places] for blocks in table]
        self.runner.input_batch.req_ids = [name]
        self.runner.input_ids[: len(tokens)] = torch.tensor(tokens)
        self.runner.positions[: len(tokens)] = torch.tensor(list(places))
        metadata = {
            layer: Part(
                block_table=torch.tensor([blocks]),
                seq_lens=torch.tensor([cached + len(tokens)]),
                query_start_loc=torch.tensor([0, len(tokens)]),
                slot_mapping=torch.tensor(mine),
                num_actual_tokens=len(tokens),
            )
            for layer, blocks, mine in zip(("full", "slid"), table, slots, strict=True)
        }
        if self.state is not None:
            decodes, going = int(len(tokens) == 1), cached > 0
            metadata["conv"] = Part(
                num_decodes=decodes,
                state_indices_tensor_d=torch.tensor([[self.kernel]] * decodes),
                state_indices_tensor_p=torch.tensor([self.kernel] * (1 - decodes)),
                has_initial_states_p=torch.tensor(
                    [going if self.goes_on is None else self.goes_on] * (1 - decodes)
                ),
            )

        self.metadata = metadata
        change(self)

        def computed(runner: Any, said: Any) -> Any:
            hooked(self.engine.metadata, lambda owner: (metadata, None), self.runner)
            copies.get("before", bool)()
            if self.received is not None:
                call = lambda runner, intermediate_tensors: None  # noqa: E731
                given = {"intermediate_tensors": self.received}
                hooked(self.engine.model, call, self.runner, **given)
            hooked(self.engine.wrapper, written, None)
            copies.get("after", bool)()
            return self.sent

        def written(*_: Any) -> None:
            for mine in slots:
                self.cache.flatten(0, 1)[mine] = torch.rand(len(mine), 2)
            if self.state is not None:
                self.cache[self.state] = torch.rand(PAGE, 2)
            self.drafted.flatten(0, 1)[slots[1]] = torch.rand(len(slots[1]), 2)

        hooked(self.engine.execute, computed, self.runner, self.tell(said))

    def sample(self, *tokens: int) -> None:
        """Let the sampler return tokens for the batch's request, -1 for a draft it rejects."""
        made = Part(sampled_token_ids=torch.tensor([tokens]))
        hooked(self.engine.sampled, lambda *_: made, self.runner)

    def propose(self, *drafts: int) -> None:
        """Propose drafts for the batch's request."""
        hooked(self.engine.proposed, lambda *_: [list(drafts)], self.runner, None)

    def replay(self, wrapper: Any) -> None:
        """Run a decode whose model is a graph, or has one, that a wrapper replays."""

        def computed(runner: Any, said: Any) -> None:
            hooked(self.engine.metadata, lambda owner: (self.metadata, None), runner)
            slots = [one.slot_mapping for one in self.metadata.values()]

            def replayed(graph: Any) -> None:
                for number, mine in enumerate(slots):
                    self.cache.flatten(0, 1)[mine] = float(7 + number)

            def called(wrapper: Any) -> None:
                hooked(self.engine.replay, replayed, "graph")

            hooked(self.engine.wrapper, called, wrapper)

        hooked(self.engine.execute, computed, self.runner, self.tell(DECODE))

    def causes(self) -> set[str | None]:
        """Return the causes of wrong inputs and lists. None stands for one that is not known."""
        self.found()
        lines = lines_in(self.journal.path.parent)
        found = [one["cause"] for one in lines if one.get("check") in {"stale input", "wrong list"}]
        return {cause and cause["what"] for cause in found}

    def found(self) -> set[str]:
        """Return the names of the checks that found something, and what is undecided."""
        hooked(self.engine.execute, lambda *_: None, self.runner, self.tell(output({})))
        self.journal.settle()
        self.journal.write_counts()
        lines = lines_in(self.journal.path.parent)
        assert [line["what"] for line in lines if line["kind"] == "undecided"] == []
        return {line["check"] for line in lines if line["kind"] == "finding"}
