"""A whole transformers in this process: its generation loop, with a player in place of clients."""

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from paritybit.drive.configs import LackingError
from paritybit.drive.engine import Acts, Engine, EngineFailedError, PlayedError
from paritybit.drive.script import Planned
from paritybit.drive.stand_ins.installing import install as replace
from paritybit.drive.transformers.settings import FLASH, Served
from paritybit.drive.transformers.stand_ins import ON_A_CPU, captures_flash
from paritybit.engines.loading import named

SAMPLE = "__child#"
"""The engine's separator between the name of a request and the number of another sample."""


DEFAULTS: Mapping[str, float] = {"temperature": 0.9, "top_k": 50, "top_p": 0.95}
"""Parameters of sampling that requests can replace. The engine knows no others."""


def sampling_of(one: Planned) -> dict[str, float]:
    """Return the temperature of a request, and its parameters of sampling that the engine knows."""
    given = {} if one.sampling is None else one.sampling.given()
    known = {name: value for name, value in given.items() if name in DEFAULTS}
    return known | ({"temperature": one.temperature} if one.temperature else {})


def install(device: str) -> None:
    """Replace parts of the engine, and import it."""
    replace(device, (), ON_A_CPU)


class Transformers(Engine):
    """A generation loop of transformers. `forwards` counts its steps."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.manager: Any = None
        self._samples: dict[str, list[list[int]]] = {}

    def start(self, direct: Callable[[Engine], object]) -> None:
        """Warm up the engine, and call `direct` when it is ready."""
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

    def run(self) -> None:
        """Run the generation loop."""
        try:
            named(self.manager._run_generation_loop, use_inference_mode=False)()
        except PlayedError:
            return
        error = self.manager.background_thread_status.fatal_error
        raise EngineFailedError(f"the generation loop ended: {error!r}") from error

    def _manager(self, transformers: Any) -> Any:
        """Return the engine's manager of a model with random weights."""
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
        generation = transformers.GenerationConfig(
            max_new_tokens=self.served.limits().pool,
            do_sample=self.served.samples > 1 or self.served.sampling,
            eos_token_id=-1,
            num_return_sequences=self.served.samples,
            **(DEFAULTS if self.served.sampling else {}),
        )
        return model.init_continuous_batching(
            generation_config=generation, continuous_batching_config=batching
        )

    def _poll(self) -> None:
        """Perform the player's actions. Raises StalledError if the engine serves no request."""
        self.require_progress(self.player.open)
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

    def arrive(self, one: Planned, prompt: list[int]) -> Any:
        """Return a call that adds a request."""
        how = sampling_of(one) if self.served.sampling else {}
        return partial(self.manager.add_request, prompt, one.name, max_new_tokens=one.tokens, **how)

    def abort(self, name: str) -> Any:
        """Return a call that cancels a request."""
        return partial(self._abort, name)

    def flush(self) -> Any:
        """Return a call that empties the prefix cache."""
        return self._flush

    def acts(self) -> Acts:
        """Return the acts as calls of the engine."""
        return {"flush": lambda: [self._flush]}

    def _abort(self, name: str) -> None:
        """Cancel a request. The engine does not report its end."""
        for one in (name, *(f"{name}{SAMPLE}{n}" for n in range(self.served.samples - 1))):
            self.manager.cancel_request(one)
        self.player.ended(name, ())

    def _flush(self) -> None:
        """Empty the prefix cache as the engine does when it runs short of blocks."""
        self.manager.batch_processor.cache.evict_cached_blocks()


ENGINE = Transformers
