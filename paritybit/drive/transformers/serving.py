"""A whole transformers in this process: its generation loop, with a player for a client."""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from paritybit.drive.player import Orders, PlayedError, Player
from paritybit.drive.playing import EngineFailedError, Progress
from paritybit.drive.requests import FIRST_TOKEN, Limits, Wave, waves
from paritybit.drive.settings import LackingError
from paritybit.drive.transformers.settings import Served
from paritybit.subjects.engines.shared.loading import named

SAMPLE = "__child#"
"""What the engine puts between the name of a request and the number of a further sample."""


class Engine:
    """A generation loop that serves what a player plays. `forwards` counts what it ran."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.player: Player | None = None
        self.manager: Any = None
        self.forwards = 0
        self._progress = Progress()
        self._samples: dict[str, list[list[int]]] = {}

    def serve(self, stop: Callable[[], bool]) -> None:
        """Start the loop and serve waves until `stop` says so, then until it is idle.

        Raises EngineFailedError if the engine raises, LackingError for settings that it lacks.
        """
        transformers: Any = importlib.import_module("transformers")
        continuous: Any = importlib.import_module(
            "transformers.generation.continuous_batching.continuous_api"
        )
        self.manager = self._manager(transformers)
        limits = self.served.limits()
        planned = other_beginnings(waves(self.served.seed, limits), limits)
        self.player = Player(planned, self._orders(), stop)
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
        try:
            named(self.manager._run_generation_loop, use_inference_mode=False)()
        except PlayedError:
            return
        error = self.manager.background_thread_status.fatal_error
        raise EngineFailedError(f"the generation loop ended: {error!r}")

    def _manager(self, transformers: Any) -> Any:
        """Return the engine's manager of a model with random weights."""
        torch.manual_seed(self.served.seed)
        config = self.served.configuration()
        try:
            model = transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.for_model(**config),
                attn_implementation=self.served.attention,
            )
            made = transformers.generation.ContinuousBatchingConfig
            # Older releases do not switch by themselves, and have no name for it.
            batching = named(made, auto_switch_to_flash=False)(**self.served.batching())
        except (TypeError, ValueError) as error:
            raise LackingError(f"this release cannot be served so: {error}") from error
        model = model.to(self.served.device).eval()
        generation = transformers.GenerationConfig(
            max_new_tokens=self.served.limits().pool,
            do_sample=self.served.samples > 1,
            eos_token_id=-1,
            num_return_sequences=self.served.samples,
        )
        return model.init_continuous_batching(
            generation_config=generation, continuous_batching_config=batching
        )

    def _poll(self) -> None:
        """Let the player act. Raises EngineFailedError if requests wait and none is served."""
        assert self.player is not None
        self._progress.require(self.forwards, self.player.open)
        outputs = self.manager.output_router.output_queue
        while not outputs.empty():
            output = outputs.get_nowait()
            if output.is_finished():
                name = output.request_id.partition(SAMPLE)[0]
                samples = self._samples.setdefault(name, [])
                samples.append(output.generated_tokens)
                if len(samples) == self.served.samples:
                    self.player.ended(name, self._samples.pop(name)[0])
        for act in self.player.poll():
            act()
        self.manager._wake_up_loop.set()  # An idle loop would wait for a client.

    def _orders(self) -> Orders:
        def arrive(name: str, prompt: list[int], tokens: int, temperature: float) -> Any:
            del temperature  # It is one for all requests.
            return lambda: self.manager.add_request(prompt, name, max_new_tokens=tokens)

        def abort(name: str) -> Any:
            return lambda: self._abort(name)

        return Orders(arrive, abort, lambda: self._flush)

    def _abort(self, name: str) -> None:
        """Cancel a request. The engine says nothing of its end."""
        assert self.player is not None
        for one in (name, *(f"{name}{SAMPLE}{n}" for n in range(self.served.samples - 1))):
            self.manager.cancel_request(one)
        self.player.ended(name, ())

    def _flush(self) -> None:
        """Empty the prefix cache as the engine does when it runs short of blocks."""
        self.manager.batch_processor.cache.evict_cached_blocks()


def other_beginnings(planned: Iterator[Wave], limits: Limits) -> Iterator[Wave]:
    """Give every fifth request of a wave another first token.

    What it shares with others then begins after another prefix: the same tokens, and other KV.
    """
    for wave in planned:
        requests = list(wave.requests)
        for place in range(2, len(requests), 5):
            first, *rest = requests[place].prompt
            first = first + 1 if first + 1 < limits.vocabulary else FIRST_TOKEN
            requests[place] = replace(requests[place], prompt=(first, *rest))
        yield replace(wave, requests=tuple(requests))
