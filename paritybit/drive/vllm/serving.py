"""A whole vLLM in this process: its own engine core, with a player in place of clients."""

import contextlib
import functools
import importlib
import inspect
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from paritybit.drive.company import Likely, Plays
from paritybit.drive.directing import count_retractions, reach
from paritybit.drive.failures import EngineFailedError
from paritybit.drive.legs import LackingError
from paritybit.drive.operating.actions import Acts
from paritybit.drive.player import Orders, PlayedError, Player
from paritybit.drive.playing import Progress
from paritybit.drive.script import Planned, Wave
from paritybit.drive.vllm import lora
from paritybit.drive.vllm.settings import DRAFT, Served, require_drafter, said
from paritybit.drive.vllm.stand_ins import install_in_engine
from paritybit.watch import journal

END = 1
"""The token at which texts end."""

FEW = 8
"""The number of tokens that may be sampled with n-gram drafts, so that some are accepted."""


class Engine:
    """An engine core of vLLM that serves the requests of a player. `forwards` counts its steps."""

    likely: dict[str, list[Likely]] | None = None

    def __init__(self, served: Served) -> None:
        self.served = served
        self.player: Player | None = None
        self.forwards = 0
        self._made: dict[str, list[int]] = {}
        self._progress = Progress()
        self._core: Any = None
        self._adapters: Mapping[int, dict[str, Any]] = {}

    def start(self, direct: Callable[[Plays], object]) -> None:
        """Start the engine, and call `direct` when it is ready.

        Raises EngineFailedError if the engine raises or stalls, and LackingError for unsupported
        settings.
        """
        try:
            with tempfile.TemporaryDirectory(prefix="paritybit-") as folder:
                self._core = self._started(Path(folder))
                direct(self)
        except LackingError:
            raise
        except Exception as error:
            raise EngineFailedError(traceback.format_exc()) from error

    def play(self, waves: Iterator[Wave], stop: Callable[[], bool]) -> Player:
        """Serve waves until `stop` returns True or none is left, then until the engine is idle."""
        self.player = Player(waves, self._orders(self._core), stop)
        self._made = {}
        with contextlib.suppress(PlayedError):
            while True:
                for act in self.player.poll():
                    act()
                self._step(self._core)
        return self.player

    def _step(self, core: Any) -> None:
        """Run one step, and report requests that have ended to the player."""
        assert self.player is not None
        outputs, ran = core.step_fn()
        if hasattr(core, "post_step"):
            core.post_step(ran)
        self.forwards += bool(ran)
        self._progress.require(self.forwards, 0 if outputs else self.player.open)
        for of_client in (outputs or {}).values():
            for output in of_client.outputs:
                made = self._made.get(output.request_id)
                if made is None:  # It was aborted.
                    continue
                made.extend(output.new_token_ids)
                if output.finish_reason is not None:
                    self.player.ended(output.request_id, self._made.pop(output.request_id))

    def _started(self, folder: Path) -> Any:
        arguments: Any = importlib.import_module("vllm.engine.arg_utils")
        core: Any = importlib.import_module("vllm.v1.engine.core")
        executors: Any = importlib.import_module("vllm.v1.executor.abstract")
        register(self.served.shape.config["architectures"][0])
        if self.served.speculative == "eagle":
            register(DRAFT.config["architectures"][0])
        require_drafter(self.served)
        self._adapters = lora.write(self.served.shape, self.served.adapters, folder)
        if self._adapters:
            reach("a LoRA adapter", 0)
        try:
            config = arguments.EngineArgs(**self.served.arguments(folder)).create_engine_config()
        except ValueError as error:
            raise LackingError(f"the release refuses these settings: {said(error)}") from error
        install_in_engine(self.served)
        scheduler: Any = importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler
        count_retractions(scheduler, "_preempt_request", self.served.page_size, lambda _: 1)
        return core.EngineCore(config, executors.Executor.get_class(config), log_stats=False)

    def _orders(self, core: Any) -> Orders:
        structures: Any = importlib.import_module("vllm.v1.engine")
        sampling: Any = importlib.import_module("vllm.sampling_params")
        known = inspect.signature(structures.EngineCoreRequest).parameters
        nothing = {name: None for name, one in known.items() if one.default is one.empty}
        few = list(range(FEW)) if self.served.speculative == "ngram" else None

        def arrive(one: Planned, prompt: list[int]) -> Any:
            how = sampling.SamplingParams(
                max_tokens=one.tokens,
                temperature=one.temperature,
                ignore_eos=True,
                allowed_token_ids=few,
                **sampling_of(one, drafts=self.served.speculative is not None),
            )
            given = {
                "request_id": one.name,
                "prompt_token_ids": prompt,
                "sampling_params": how,
                "arrival_time": time.time(),
                "priority": one.priority or 0,
                "lora_request": self._adapter(one),
            }
            request = structures.EngineCoreRequest(**{**nothing, **given})
            return functools.partial(self._arrive, core, request)

        def abort(name: str) -> Any:
            return functools.partial(self._abort, core, name)

        return Orders(arrive, abort, lambda: core.reset_prefix_cache, acts_of(core))

    def _adapter(self, one: Planned) -> Any:
        """Return the engine's request for the adapter of a request, or None."""
        if one.adapter is None:
            return None
        reach("a LoRA adapter", 1)
        requests: Any = importlib.import_module("vllm.lora.request")
        return requests.LoRARequest(**self._adapters[one.adapter])

    def _arrive(self, core: Any, request: Any) -> None:
        self._made[request.request_id] = []
        core.add_request(*core.preprocess_add_request(request))

    def _abort(self, core: Any, name: str) -> None:
        assert self.player is not None
        core.abort_requests([name])
        self.player.ended(name, self._made.pop(name, []))


NO_DRAFTS = ("min_p", "logit_bias")
"""Parameters of sampling that vLLM refuses with speculation."""


def sampling_of(one: Planned, *, drafts: bool) -> dict[str, Any]:
    """Return the parameters of sampling of a request. One with `min_tokens` can end early."""
    given = {} if one.sampling is None else one.sampling.given()
    for name in NO_DRAFTS if drafts else ():
        given.pop(name, None)
    if "min_tokens" in given:
        given["stop_token_ids"] = [END]
    if "logit_bias" in given:
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    return given


def acts_of(core: Any) -> Acts:
    """Return the acts of an engine core, as its own calls. A retraction also empties the cache."""
    retract = functools.partial(core.reset_prefix_cache, reset_running_requests=True)
    pause = functools.partial(core.pause_scheduler, "keep", clear_cache=False)
    return {
        "flush": lambda: [functools.partial(require, core.reset_prefix_cache)],
        "pause": lambda: [pause],
        "retract": lambda: [pause, functools.partial(require, retract)],
        "preempt": lambda: [functools.partial(require, retract)],
        "continue": lambda: [core.resume_scheduler],
    }


def require(act: Callable[[], bool]) -> None:
    """Perform an act, and report it if the engine refuses."""
    lines = journal.of_process()
    if not act() and lines is not None:
        lines.undecided("an action was refused: the prefix cache was not emptied")


def register(architecture: str) -> None:
    """Register the class of a model here. A subprocess would inspect it without the stand-ins."""
    registry: Any = importlib.import_module("vllm.model_executor.models.registry").ModelRegistry
    registry.register_model(architecture, registry.models[architecture].load_model_cls())
