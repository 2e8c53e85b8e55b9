"""A whole transformers in this process: its generation loop, with a player in place of clients."""

import importlib
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import torch

from paritybit.compat import override
from paritybit.drive.answers import Answer, report
from paritybit.drive.company import CHECK
from paritybit.drive.configs import PLAINEST_MODEL, LackingError
from paritybit.drive.engine import Acts, Engine, EngineFailedError, PlayedError
from paritybit.drive.job import comparisons
from paritybit.drive.script import Planned, Sampling
from paritybit.drive.stand_ins.installing import install as replace
from paritybit.drive.transformers.plain import NOISE, difference
from paritybit.drive.transformers.settings import FLASH, TransformersServed
from paritybit.drive.transformers.stand_ins import ON_A_CPU, captures_flash
from paritybit.engines.loading import named
from paritybit.watch import journal

SAMPLE = "__child#"
"""The engine's separator between the name of a request and the number of another sample."""

DEFAULTS: Mapping[str, float] = {"temperature": 0.9, "top_k": 50, "top_p": 0.95}
"""The parameters of sampling that requests can replace."""


def sampling_of(one: Planned) -> dict[str, float]:
    """Return those of a request's sampling parameters that the engine supports."""
    given = {} if one.sampling is None else one.sampling.given()
    known = {name: value for name, value in given.items() if name in DEFAULTS}
    return known | ({"temperature": one.temperature} if one.temperature else {})


END = 0
"""The token at which texts end. An engine may take it for none."""


def install(device: str) -> None:
    """Replace parts of the engine, and import it."""
    replace(device, (), ON_A_CPU)


class Transformers(Engine):
    """A generation loop of transformers. `forwards` counts its steps."""

    def __init__(self, served: TransformersServed) -> None:
        self.served = served
        self.manager: Any = None
        self.plain: Any = None
        """A copy of the model with which answers are compared."""
        self._answers: dict[str, tuple[Answer, Mapping[str, Any]]] = {}
        """The answer to each sample, and the parameters of sampling by which it is drawn."""
        self._samples: dict[str, list[list[int]]] = {}
        self._stop = False
        """Whether the generation loop is to stop and start again when no request is open."""
        self._stopping = False
        """Whether it was asked to stop, and has not started again."""

    @override
    def start(self, direct: Callable[[Engine], object]) -> None:
        transformers: Any = importlib.import_module("transformers")
        continuous: Any = importlib.import_module(
            "transformers.generation.continuous_batching.continuous_api"
        )
        self.manager = self._manager(transformers)
        prepare = continuous.ContinuousBatchProcessor.prepare_next_batch
        step = continuous.ContinuousBatchProcessor._generation_step

        def prepared(processor: Any) -> Any:
            self._poll()
            return prepare(processor)

        def stepped(processor: Any, *arguments: Any) -> Any:
            self.forwards += 1
            return step(processor, *arguments)

        continuous.ContinuousBatchProcessor.prepare_next_batch = prepared
        continuous.ContinuousBatchProcessor._generation_step = stepped
        self.manager.warmup()
        direct(self)

    @override
    def run(self) -> None:
        status, error = self.manager.background_thread_status, None
        while error is None:
            status.clear()
            self._stopping = False
            try:
                named(self.manager._run_generation_loop, use_inference_mode=False)()
            except PlayedError:
                return
            error = status.fatal_error
        raise EngineFailedError(f"the generation loop ended: {error!r}") from error

    def _manager(self, transformers: Any) -> Any:
        if self.served.attention == FLASH and self.served.graphs and not captures_flash():
            raise LackingError("this release captures no graphs with flash attention")
        torch.manual_seed(self.served.seed)
        config = self.served.configuration()
        try:
            model = transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.for_model(**config),
                attn_implementation=self.served.attention,
            )
            made = transformers.generation.ContinuousBatchingConfig
            # Older releases never switch, and lack this setting.
            batching = named(made, auto_switch_to_flash=False)(**self.served.batching())
        except (TypeError, ValueError) as error:
            raise LackingError(f"this release cannot be served so: {error}") from error
        model = model.to(self.served.device, getattr(torch, self.served.dtype)).eval()
        if self.served.device == "cpu" and self.served.model == PLAINEST_MODEL:
            self.plain = deepcopy(model)  # In others, rounding may choose other experts.
            self.plain.set_attn_implementation("eager")
        generation = transformers.GenerationConfig(
            max_new_tokens=self.served.limits().pool,
            do_sample=self.served.drawn,
            eos_token_id=END,
            num_return_sequences=self.served.samples,
            **(DEFAULTS if self.served.drawn else {}),
        )
        return model.init_continuous_batching(
            generation_config=generation, continuous_batching_config=batching
        )

    def _poll(self) -> None:
        """Perform the player's actions."""
        self.require_progress(self.player.open)
        outputs = self.manager.output_router.output_queue
        while not outputs.empty():
            self._hear(outputs.get_nowait())
        # A loop that stops would lose a request that comes now.
        acts = () if self._stopping else self.player.poll()
        for act in acts:
            act()
        if self._stop and not acts and not self.player.open:
            self._stop, self._stopping = False, True
            status = self.manager.background_thread_status
            status.request_stop(status.FLUSH_AND_STOP, 0)
        self.manager._wake_up_loop.set()  # An idle loop would wait for a client.

    def _hear(self, output: Any) -> None:
        """Judge an output, and tell the player if all samples of the request have ended."""
        sample, tokens, likely = output.request_id, output.generated_tokens, output.logprobs
        if sample not in self._answers:
            if not self.served.overlap:  # Else a batch under way may still answer it.
                report(f"request {sample} is answered after it ended or was aborted")
            return
        answer, how = self._answers[sample]
        answer.deliver(tokens, likely)
        if tokens[: len(answer.tokens)] != answer.tokens:
            report(f"request {sample} takes back tokens that it returned")
        answer.tokens = [*tokens]
        if not output.is_finished():
            return
        del self._answers[sample]
        answer.judge(sample)
        numbers = [one for one in likely if one <= NOISE]  # Not those that are not a number.
        complete = len(numbers) == len(likely) == len(tokens) * self.served.likelihoods
        if output.prompt_ids != answer.prompt or not complete:
            report(f"request {sample} has another prompt, or not one log-likelihood per token")
        elif self.plain is not None and tokens and (likely or not how):
            journal.count(**{comparisons(self.served.model): 1})
            sampling = type(self.manager.generation_config)
            wrong = difference(self.plain, answer, likely, sampling, how)
            if wrong is not None:
                report(f"request {sample} gets {wrong}", CHECK)
        name = sample.partition(SAMPLE)[0]
        samples = self._samples.setdefault(name, [])
        samples.append(tokens)
        if len(samples) == self.served.samples:
            self.player.ended(name, self._samples.pop(name)[0])

    @override
    def arrive(self, one: Planned, prompt: list[int]) -> Any:
        how: dict[str, Any] = sampling_of(one) if self.served.sampling else {}
        drawn = {**DEFAULTS, **how} if self.served.drawn else {}
        asked, stops = one.sampling or Sampling(), [END]
        if asked.ignore_eos:
            how["eos_token_id"], stops = -1, []
        elif asked.stop_token_ids:
            how["eos_token_id"] = stops = [END, *asked.stop_token_ids]
        for name in self._sampled(one.name):
            self._answers[name] = Answer(prompt, one.tokens, stops=stops), drawn
        how |= {"max_new_tokens": one.tokens, "streaming": self.served.streamed}
        return partial(self.manager.add_request, prompt, one.name, **how)

    def _sampled(self, name: str) -> tuple[str, ...]:
        return (name, *(f"{name}{SAMPLE}{n}" for n in range(self.served.samples - 1)))

    @override
    def abort(self, name: str) -> Any:
        return partial(self._abort, name)

    @override
    def flush(self) -> Any:
        return self._flush

    @override
    def moves(self, name: str) -> str:
        """Return that KV of a request is on the host, if others run.

        Without a running request, the engine may stall: see `docs/findings.md`.
        """
        processor, mine = self.manager.batch_processor, {*self._sampled(name)}
        held = processor.offloading_manager._request_id_to_cpu_blocks
        left = processor.scheduler.active_requests.keys() - {*self.manager.cancel_queue.queue}
        return "on the host" * (not mine.isdisjoint(held) and not left <= mine)

    @override
    def acts(self) -> Acts:
        return {"flush": lambda: [self._flush]}

    def _abort(self, name: str) -> None:
        """Cancel a request. The engine does not report its end."""
        self._stop = False  # The end fails if a batch under way has a cancelled request.
        for one in self._sampled(name):
            self.manager.cancel_request(one)
            self._answers.pop(one, None)
        self.player.ended(name, ())

    def _flush(self) -> None:
        """Empty the prefix cache as the engine does when it runs short of blocks."""
        self.manager.batch_processor.cache.evict_cached_blocks()
        self._stop = True


ENGINE = Transformers
