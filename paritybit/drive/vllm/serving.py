"""A whole vLLM in this process: its own engine core, with a player in place of clients."""

import contextlib
import functools
import importlib
import inspect
import itertools
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from paritybit.compat import override
from paritybit.connectors.hooking import maybe
from paritybit.connectors.vllm.scheduling import copies, parts_of
from paritybit.drive.answers import (
    END_OF_TEXT,
    LIKELIEST,
    NUMBER,
    Answer,
    Likely,
    outside,
    report,
    strings_of,
)
from paritybit.drive.configs import LackingError
from paritybit.drive.engine import Acts, Engine, EngineFailedError, PlayedError
from paritybit.drive.job import comparisons
from paritybit.drive.models import VOCABULARY
from paritybit.drive.operating.embeddings import embedding
from paritybit.drive.operating.images import MERGED, grid, hash_of, images_of
from paritybit.drive.operating.weights import other_weights
from paritybit.drive.requests import UNMASKED
from paritybit.drive.script import FIRST_TOKEN, Part, Planned, Sampling, Wave
from paritybit.drive.vllm import apart, lora, ranks
from paritybit.drive.vllm.answers import NAME, Compiler, tokenizer
from paritybit.drive.vllm.apart import Wire
from paritybit.drive.vllm.host import CHANCE, LATEST
from paritybit.drive.vllm.settings import CONTEXT, DRAFT, VllmServed
from paritybit.drive.vllm.stand_ins import install_before_engine, install_in_engine
from paritybit.watch import journal

ARGUMENTS, CORE = "vllm.engine.arg_utils", "vllm.v1.engine.core"
"""The modules that import the engine. It reads the variables of settings later."""

LOWEST = -100.0
"""What is added to the logits of tokens that a processor forbids: the engine's least bias."""

PREFILL: Mapping[str, object] = {"do_remote_decode": True, "do_remote_prefill": False}
"""What a router asks of the engine for prefill."""

RUNNING, LOADING = "RUNNING", "WAITING_FOR_REMOTE_KVS"
"""The status of the requests that the engine can retract, and of those that wait for KV."""

PREEMPTED = "requests preempted while KV moved"
OWN_PREEMPTED = "requests preempted while their own KV moved"
"""The names of counts."""

EMPTIED = 1 / 64
"""The part of the steps with copies under way before which the simple connector forgets what the
host has. With the other one, a run of 0.33.0 had a finding that is not traced."""

FEW = 8
"""So few tokens may be sampled with n-gram drafts that some drafts are accepted."""


def install(device: str) -> None:
    """Replace parts of the engine, and import it."""
    install_before_engine(device)
    for name in (ARGUMENTS, CORE):
        importlib.import_module(name)
    if device == "cpu":  # The engine's worker for CPUs replaces what the one for GPUs needs.
        importlib.import_module("paritybit.drive.vllm.worker")


class Vllm(Engine):
    """An engine core of vLLM. `forwards` counts its steps."""

    def __init__(self, served: VllmServed) -> None:
        os.environ.update(served.variables())
        self.served = served
        self._answers: dict[str, Answer] = {}
        self._greedy: dict[str, tuple[int | None, Answer]] = {}
        """The adapters and the answers of requests that get the likeliest tokens."""
        self._core: Any = None
        self._outputs: Any = None
        self._flushes = 0
        self._adapters: Mapping[int, dict[str, Any]] = {}
        self._version = 0
        """How often the adapters have been loaded again."""
        self._slept = 0
        self._others: Sequence[int] = ()
        """The processes of the data-parallel ranks before this one."""
        self._peers: Any = None
        self._queued = list[tuple[Any, ...]]()
        """What the engine for prefill gets with its next step, if it is another one."""
        self._there: dict[str, tuple[Planned, list[int]]] = {}
        """The requests that it has."""
        self._routed: dict[str, tuple[int, tuple[Planned, list[int], Any]]] = {}
        """The requests that it had, and in how many polls they are here."""
        self._rests = True
        """Whether it has none."""

    @override
    def start(self, direct: Callable[[Engine], object]) -> None:
        if self.served.dp > 1:
            self._others = ranks.forked(self.served.dp)
        try:
            with tempfile.TemporaryDirectory(prefix="paritybit-") as folder:
                self._core = self._started(Path(folder))
                compiler, grammars = Compiler(), self._core.structured_output_manager
                grammars.backend, grammars.backend_name = compiler, NAME
                grammars.executor = compiler
                direct(self)
                if self.served.apart and Wire.decodes:
                    Wire.ask(apart.END, None)
        except LackingError:
            raise
        except Exception as error:
            raise EngineFailedError(traceback.format_exc()) from error
        finally:
            if self.served.ranks > 1 and self._core is not None:
                self._core.model_executor.shutdown()
        before = 1 if self.served.apart else self.served.dp - 1
        if len(self._others) == before and not ranks.joined(self._others):
            raise EngineFailedError("the engine of another process has failed")

    @override
    def play(self, waves: Iterator[Wave], stop: Callable[[], bool]) -> None:
        first = 0 if self.served.apart else len(self._others)
        super().play(islice(waves, first, None, self.served.dp), stop)

    @override
    def run(self) -> None:
        processors: Any = importlib.import_module("vllm.v1.engine.output_processor")
        self._answers, self._greedy = {}, {}
        if self.served.apart and not Wire.decodes:
            Wire.answer(self._prefill)
            return
        self._outputs = processors.OutputProcessor(tokenizer(), log_stats=False)
        with contextlib.suppress(PlayedError):
            while True:
                with self._counting():
                    for act in self.player.poll():
                        act()
                    if self.served.apart:
                        self._route()
                    self._step()
                self._wait(done=False)
        self._step()  # It tells workers which requests have ended.
        while self._wait(done=True):
            self._step()

    def _wait(self, *, done: bool) -> bool:
        """Wait for the other data-parallel ranks. Returns whether one is not done."""
        if self._peers is None:
            return False
        return bool(self._config.has_unfinished_dp(self._peers, not done))

    def _prefill(self, acts: Sequence[tuple[Any, ...]]) -> tuple[list[tuple[str, Any]], bool]:
        """Do a step of the engine for prefill. Returns what has ended, and whether it rests."""
        for what, *given in acts:
            getattr(self, what)(*given)
        Wire.tick()
        outputs, ran = self._core.step_fn()
        self._core.post_step(ran)
        self.forwards += bool(ran)
        made = [one for of_client in (outputs or {}).values() for one in of_client.outputs]
        ended = [(one.request_id, one.kv_transfer_params) for one in made if one.finished]
        return ended, not self._core.scheduler.requests

    def _begin_prefill(self, one: Planned, prompt: list[int]) -> None:
        request, _ = self._request(one, prompt, PREFILL)
        request.sampling_params.max_tokens = request.sampling_params.min_tokens = 1
        self._core.add_request(*self._core.preprocess_add_request(request))

    def _end_prefill(self, name: str) -> None:
        self._core.abort_requests([name])

    def _route(self) -> None:
        """Let the engine for prefill do a step, and take over its requests some polls later."""
        acts, self._queued = self._queued, []
        ended, self._rests = Wire.ask(apart.STEP, acts)
        Wire.tick()
        for name, transfer in ended:
            if name in self._there:
                given = (*self._there.pop(name), transfer)
                self._routed[name] = CHANCE.randint(0, LATEST), given
        for name, (polls, given) in [*self._routed.items()]:
            self._routed[name] = polls - 1, given
            if polls <= 0:
                del self._routed[name]
                self._arrive(*self._request(*given))

    def _send(self, *act: Any) -> None:
        """Give the engine for prefill an act with its next step."""
        self._queued.append(act)
        if act[0] == "_begin_prefill":
            self._there[act[1].name] = act[1:]

    def _step(self) -> None:
        manager = maybe(self._core.scheduler.connector, "scheduler_manager")
        if copies(manager) and CHANCE.random() < EMPTIED:
            self._core.reset_prefix_cache(False, True)
        outputs, ran = self._core.step_fn()
        if self._peers is not None and not ran:
            self._core.execute_dummy_batch()
        self._core.post_step(ran)
        self.forwards += bool(ran)
        self.require_progress(0 if outputs else self.player.open)
        for of_client in (outputs or {}).values():
            self._hear(of_client.outputs)

    def _hear(self, outputs: Sequence[Any]) -> None:
        """Note the outputs of a step, as the engine's client gets them."""
        for output in outputs:
            if output.request_id not in self._answers:
                report(f"request {output.request_id} goes on after it has ended", what="goes on")
        processed = self._outputs.process_outputs(outputs)
        self._core.abort_requests(processed.reqs_to_abort)
        for output in processed.request_outputs:
            (made,), name = output.outputs, output.request_id
            answer = self._answers[name]
            answer.deliver(made.token_ids)
            answer.tokens += made.token_ids
            answer.text += made.text
            prompt, steps = output.prompt_logprobs or [], made.logprobs or []
            given = [Likely(answer.prompt[0], None) for _ in prompt[:1]]
            given += [
                likely(one, answer, best=at in answer.before) for at, one in enumerate(prompt) if at
            ]
            given = given[max(0, answer.asked.likelihoods or 0) :]
            given += [likely(one, answer, best=answer.greedy) for one in steps]
            answer.ranked += given
            if output.finished:
                reason = {"length": NUMBER, "stop": made.stop_reason or END_OF_TEXT}
                answer.reason = reason.get(made.finish_reason, made.finish_reason)
                answer.aborted |= made.finish_reason == "error" and self.served.fails
                self._end(name)

    def _end(self, name: str) -> None:
        answer = self._answers.pop(name)
        if self.likely is not None:
            self.likely[name] = answer.steps
        if answer.before and answer.likeliest and not answer.aborted:
            journal.count(**{comparisons(self.served.model): 1})
        answer.judge(name, cut=len(answer.prompt) + answer.most >= CONTEXT)
        self.player.ended(name, answer.tokens)

    def _started(self, folder: Path) -> Any:
        arguments: Any = importlib.import_module(ARGUMENTS)
        core: Any = importlib.import_module(CORE)
        executors: Any = importlib.import_module("vllm.v1.executor.abstract")
        register(self.served.shape.config["architectures"][0])
        if self.served.speculative == "eagle":
            register(DRAFT.config["architectures"][0])
        self._write = functools.partial(lora.write, self.served.shape, self.served.adapters, folder)
        self._adapters = self._write()
        given: dict[str, Any] = self.served.arguments(folder)
        if self.served.apart:
            self._others = Wire.fork()
            role = "kv_consumer" if Wire.decodes else "kv_producer"
            given["kv_transfer_config"] |= {"kv_role": role, "engine_id": role}
        try:
            config = arguments.EngineArgs(**given).create_engine_config()
        except ValueError as error:
            raise LackingError(f"the release refuses these settings: {error}") from error
        install_in_engine(self.served)
        if self.served.dp > 1:
            self._config = config.parallel_config
            self._peers = self._config.stateless_init_dp_group()
        return core.EngineCore(config, executors.Executor.get_class(config), log_stats=False)

    @override
    def arrive(self, one: Planned, prompt: list[int]) -> Any:
        if self.served.apart:
            return functools.partial(self._send, "_begin_prefill", one, prompt)
        return functools.partial(self._arrive, *self._request(one, prompt))

    def _request(
        self, one: Planned, prompt: list[int], transfer: Mapping[str, object] | None = None
    ) -> tuple[Any, Answer]:
        """Return a request, with what a router adds for a transfer of KV, and its answer."""
        structures: Any = importlib.import_module("vllm.v1.engine")
        sampling: Any = importlib.import_module("vllm.sampling_params")
        known = inspect.signature(structures.EngineCoreRequest).parameters
        asked = sampling_of(one, self.served)
        given, stops = arguments_of(asked, sampling), asked.stop_token_ids or ()
        if strings := strings_of(asked):
            given |= {"stop_token_ids": None, "stop": [*strings]}
        given["include_stop_str_in_output"] = kept = sum(stops) % 2 == 1
        ends = {*(() if asked.ignore_eos else (END_OF_TEXT,)), *(() if strings else stops)}
        answer = Answer(prompt, one.tokens, asked, ends, strings, kept, text="")
        answer.greedy = one.temperature == 0 and {*asked.given()} <= UNMASKED
        if self.served.forced:  # Where a forced rejection leaves no token, any may follow it.
            answer.drafted, answer.greedy = range(one.tokens), False
        kinds = sampling.RequestOutputKind
        given["output_kind"] = kinds.DELTA if one.tokens % 2 else kinds.FINAL_ONLY
        if self.likely is not None:
            answer.likeliest = LIKELIEST
            # A request for the likelihoods of its prompt reads no cached prefix.
            given |= {"logprobs": LIKELIEST, "prompt_logprobs": one.arrives % 2 * LIKELIEST or None}
        elif asked.likelihoods is not None:
            answer.likeliest = given["logprobs"]
            # The older runner then answers all requests wrongly (#51789), and drafts have none.
            if asked.likelihoods < 0 and self.served.runner == 2 and not self.served.speculative:
                answer.likeliest, answer.others = 0, prompt[: answer.likeliest]
                given |= {"logprobs": None, "logprob_token_ids": answer.others}
        pictures = [*images_of(one.prompt)]
        if self.served.repeatable and not pictures:
            self._relate(one, answer)
        if transfer is not None:
            given["extra_args"] = {"kv_transfer_params": dict(transfer)}
        how = sampling.SamplingParams(max_tokens=one.tokens, temperature=one.temperature, **given)
        how.update_from_generation_config({}, END_OF_TEXT)
        how._bad_words_token_ids = asked.bad_words and [[*word] for word in asked.bad_words]
        more = {
            **{name: None for name, one in known.items() if one.default is one.empty},
            "request_id": one.name,
            "external_req_id": one.name,
            "prompt_token_ids": prompt,
            "sampling_params": how,
            "arrival_time": time.time(),
            "priority": one.priority or 0,
            "cache_salt": one.space and str(one.space),
            "lora_request": self._adapter(one),
            "mm_features": self._pictured(pictures) if pictures else None,
        }
        return structures.EngineCoreRequest(**more), answer

    def _relate(self, one: Planned, answer: Answer) -> None:
        """Note which tokens of an answer's prompt an earlier request got as the likeliest."""
        adapter, first = self._greedy.get(one.follows or "", (None, None))
        if first is not None and adapter == one.adapter:
            answer.before = range(len(first.prompt), len(first.prompt) + len(first.tokens))
        if answer.greedy:
            self._greedy[one.name] = one.adapter, answer

    def _pictured(self, pictures: Sequence[tuple[int, Part]]) -> list[Any]:
        """Return the images of a prompt, as the engine's processor would."""
        inputs: Any = importlib.import_module("vllm.multimodal.inputs")
        model: Any = importlib.import_module("vllm.model_executor.models.qwen2_vl")
        hasher: Any = importlib.import_module("vllm.multimodal.hasher").MultiModalHasher
        width, made = self.served.shape.config["hidden_size"], []
        for at, part in pictures:
            shown = embedding(part, width)
            data = {"image_embeds": shown, "image_grid_thw": torch.tensor([grid(part)])}
            fields = model._create_qwen2vl_field_factory(MERGED)(data)
            (item,) = inputs.MultiModalKwargsItems.from_hf_inputs(data, fields)["image"]
            known = hash_of(part)
            name = hasher.hash_kwargs("sha256", image=shown) if known is None else str(known)
            place = inputs.PlaceholderRange(at, part.length)
            made.append(inputs.MultiModalFeatureSpec(item, "image", name, place, name))
        return made

    @override
    def abort(self, name: str) -> Any:
        return functools.partial(self._abort, name)

    def flush(self) -> Any:
        """Return a call that empties the prefix cache, and every second time also the host's."""
        self._flushes += 1
        if self.served.apart:
            self._send("_flush")
        return functools.partial(self._core.reset_prefix_cache, False, self._flushes % 2 == 0)

    @override
    def acts(self) -> Acts:
        acts = {**acts_of(self._core, self.at_rest), "sleep": lambda: [self._sleep]}
        if self.served.adapters:
            acts["adapters"] = self._load_again
        # The engine retracts no request whose KV comes from the host, so it must be at rest.
        without = {"retract"} if self.served.offload else set[str]()
        return {name: one for name, one in acts.items() if name not in without}

    @override
    def at_rest(self) -> bool:
        if not self._rests or not self.served.actions:
            return self._rests
        scheduler, blocks = self._core.scheduler, self._core.scheduler.kv_cache_manager
        waiting = [one for one in scheduler.requests.values() if one.status.name != RUNNING]
        return not (
            any(any(blocks.get_block_ids(one.request_id)) for one in waiting)
            or scheduler.deferred_frees
            or any(copies(maybe(one, "scheduler_manager")) for one in parts_of(scheduler.connector))
        )

    def _sleep(self) -> None:
        """Sleep and wake up. Every second time, all weights are given up, and loaded again.

        What adapters and drafts have on a GPU would not come back.
        """
        self._slept += 1
        deep = self._slept % 2 == 0 and not self.served.adapters and not self.served.speculative
        if deep:
            self._core.collective_rpc(keep_weights)
        self._core.sleep(1 + deep)
        self._core.wake_up(["weights"])
        if deep:
            self._core.collective_rpc(load_weights)
        self._core.wake_up(["kv_cache"])

    def _load_again(self) -> list[Any]:
        """Return calls that load new adapters under the old names, or unload those for requests."""
        self._version += 1
        self._adapters = self._write(self._version)
        request: Any = importlib.import_module("vllm.lora.request").LoRARequest
        load, remove = self._core.add_lora, self._core.remove_lora
        return [
            functools.partial(load, request(**names, load_inplace=True))
            if (number + self._version) % 2
            else functools.partial(remove, number)
            for number, names in self._adapters.items()
        ]

    @override
    def moves(self, name: str) -> str:
        """Return whether a request waits for KV, or KV of it is copied or held elsewhere.

        Another engine holds it until it is pulled, and a preempted request may find it elsewhere.
        """
        scheduler = self._core.scheduler
        parts, request = parts_of(scheduler.connector), scheduler.requests.get(name)
        if request is None or not parts:
            return ""
        if request.status.name in (LOADING, "PREEMPTED"):
            return str(request.status.name)
        if (maybe(request, "kv_transfer_params") or {}).get("do_remote_prefill"):
            return "held"
        return "copied" * any(copied(one, name) for one in parts)

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        """Count the requests that are preempted while KV moves, and those whose own KV does."""
        requests = self._core.scheduler.requests
        moving = {name for name in requests if self.moves(name) not in ("", "PREEMPTED")}
        before = {name: one.num_preemptions for name, one in requests.items() if moving}
        yield
        left = ((one, requests[one].num_preemptions) for one in before if one in requests)
        again = {name for name, count in left if count > before[name]}
        if again:
            journal.count(**{PREEMPTED: len(again), OWN_PREEMPTED: len(again & moving)})

    def _adapter(self, one: Planned) -> Any:
        if one.adapter is None:
            return None
        requests: Any = importlib.import_module("vllm.lora.request")
        return requests.LoRARequest(**self._adapters[one.adapter])

    def _arrive(self, request: Any, answer: Answer) -> None:
        self._answers[request.request_id] = answer
        self._outputs.add_request(request, None)
        made, *more = self._core.preprocess_add_request(request)
        answer.recorded = made.output_token_ids
        self._core.add_request(made, *more)

    def _flush(self) -> None:
        self._core.reset_prefix_cache(False, False)

    def _abort(self, name: str) -> None:
        if name in self._there or name in self._routed:  # A router forgets what it has.
            if self._there.pop(name, None):
                self._send("_end_prefill", name)
            self._routed.pop(name, None)
            self.player.ended(name, ())
            return
        self._core.abort_requests(self._outputs.abort_requests([name], internal=True))
        if name in self._answers:
            self._answers[name].aborted = True
            self._end(name)


ENGINE = Vllm


def sampling_of(one: Planned, served: VllmServed) -> Sampling:
    """Return the parameters of sampling that a request gets."""
    asked = one.sampling or Sampling()
    if served.speculative is not None:
        asked = replace(asked, min_p=None, logit_bias=None)
        if served.runner == 2 and one.length == 1:  # It returns too many.
            asked = replace(asked, likelihoods=None)
    if asked.grammar is not None and asked.processor is not None:  # Some tokens must be left.
        asked = replace(asked, allowed_token_ids=None)
    if served.speculative == "ngram":
        few = FEW if asked.grammar is None else 2 * FEW
        stops = asked.stop_token_ids
        if stops and asked.min_tokens:  # A minimum forbids only tokens that are allowed.
            stops = (FEW // 2 * (1 + sum(stops) % 2),)  # Not as strings: see `strings_of`.
        allowed = tuple(range(FIRST_TOKEN, FIRST_TOKEN + few))
        asked = replace(asked, allowed_token_ids=allowed, stop_token_ids=stops)
    return asked


def arguments_of(asked: Sampling, module: Any) -> dict[str, Any]:
    """Return parameters of sampling by vLLM's names. `module` has its classes."""
    given = asked.given()
    given.pop("bad_words", None)  # The engine gets their tokens.
    if "logit_bias" in given:
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    for name in {"allowed_token_ids", "stop_token_ids"} & {*given}:
        given[name] = [*given[name]]
    if (grammar := given.pop("grammar", None)) is not None:
        given["structured_outputs"] = module.StructuredOutputsParams(regex=str(grammar))
        given["structured_outputs"]._backend = NAME
    if (processor := given.pop("processor", None)) is not None:
        forbidden = outside(processor, VOCABULARY).nonzero().flatten().tolist()
        given["logit_bias"] = dict.fromkeys(forbidden, LOWEST)
    if (first := given.pop("likelihoods", None)) is not None:
        listed = first % 4
        given |= {"logprobs": listed, "prompt_logprobs": None if first < 0 else listed}
    return given


def likely(step: Mapping[int, Any], answer: Answer, *, best: bool) -> Likely:
    """Return the log-likelihoods of a step, in which the engine lists the next token first."""
    ranked = {token: one.logprob for token, one in step.items() if one.rank <= answer.likeliest}
    others = {token: step[token].logprob for token in answer.others if token in step}
    token, mine = next(iter(step.items()))
    return Likely(token, mine.logprob, ranked, others, best)


def copied(connector: Any, name: str) -> bool:
    """Return whether a connector copies KV of a request, or holds it until the request has room."""
    held = maybe(connector, "scheduler_manager._pending_cpu_hits") or ()
    jobs = (maybe(connector, "connector_scheduler._req_status") or {}).get(name)
    stores = (maybe(connector, "scheduler_manager._reqs_to_store") or {}).get(name)
    return bool(name in held or maybe(jobs, "transfer_jobs") or maybe(stores, "store_events"))


def acts_of(core: Any, at_rest: Callable[[], bool]) -> Acts:
    """Return the acts of an engine core, as its own calls. A retraction also empties the cache."""
    retract = functools.partial(core.reset_prefix_cache, reset_running_requests=True)
    pause = functools.partial(core.pause_scheduler, "keep", clear_cache=False)
    updates = itertools.count(1)

    def update() -> list[Any]:
        # The engine leaves it to its caller to drop embeddings that older weights computed.
        load = functools.partial(core.collective_rpc, load_weights, args=(next(updates),))
        return [load, core.reset_encoder_cache]

    return {
        "weights": lambda: [*update(), functools.partial(require, core.reset_prefix_cache)],
        "weights kept": update,
        "flush": lambda: [functools.partial(require, core.reset_prefix_cache)],
        "pause": lambda: [pause],
        "retract": lambda: [pause, functools.partial(require, retract)],
        "preempt": lambda: [functools.partial(preempt, core.scheduler, retract, at_rest)],
        "continue": lambda: [core.resume_scheduler],
    }


def keep_weights(worker: Any) -> None:
    """Keep a copy of all weights of a worker."""
    model = worker.model_runner.get_model()
    worker.kept_weights = [(name, one.detach().clone()) for name, one in model.named_parameters()]


def load_weights(worker: Any, update: int | None = None) -> None:
    """Load the weights of an update, or those that were kept."""
    given = worker.kept_weights if update is None else None
    if update is not None:
        given = other_weights(worker.model_runner.get_model(), update)
    with torch.no_grad():  # The engine leaves it to its caller.
        worker.reload_weights(weights_iterator=given, is_checkpoint_format=False)


def preempt(scheduler: Any, retract: Callable[[], bool], at_rest: Callable[[], bool]) -> None:
    """Preempt the running requests.

    While copies or forwards under way hold blocks, the engine then raises an error.
    """
    rests = at_rest()
    try:
        require(retract)
    except RuntimeError:
        if rests and not maybe(scheduler, "deferred_frees"):
            raise


def require(act: Callable[[], bool]) -> None:
    """Perform an act, and report it if the engine refuses."""
    lines = journal.of_process()
    if not act() and lines is not None:
        lines.undecided("an action was refused: the prefix cache was not emptied")


def register(architecture: str) -> None:
    """Register the class of a model here. A subprocess would inspect it without the stand-ins."""
    registry: Any = importlib.import_module("vllm.model_executor.models.registry").ModelRegistry
    registry.register_model(architecture, registry.models[architecture].load_model_cls())
