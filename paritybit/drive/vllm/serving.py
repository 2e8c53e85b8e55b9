"""A whole vLLM in this process: its own engine core, with a player in place of clients."""

import contextlib
import functools
import importlib
import inspect
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paritybit.drive.configs import LackingError
from paritybit.drive.engine import Acts, Engine, EngineFailedError, Likely, PlayedError
from paritybit.drive.script import Planned
from paritybit.drive.vllm import lora
from paritybit.drive.vllm.settings import DRAFT, Served
from paritybit.drive.vllm.stand_ins import install_before_engine, install_in_engine
from paritybit.watch import journal

ARGUMENTS, CORE = "vllm.engine.arg_utils", "vllm.v1.engine.core"
"""The modules that import the engine. It reads the variables of settings later."""

END = 1
"""The token at which texts end."""

LIKELIEST = 8
"""The number of the likeliest tokens of each step that are compared."""

FEW = 8
"""The number of tokens that may be sampled with n-gram drafts, so that some are accepted."""


def install(device: str) -> None:
    """Replace parts of the engine, and import it."""
    install_before_engine(device)
    for name in (ARGUMENTS, CORE):
        importlib.import_module(name)
    if device == "cpu":  # The engine's worker for CPUs replaces what the one for GPUs needs.
        importlib.import_module("paritybit.drive.vllm.worker")


class Vllm(Engine):
    """An engine core of vLLM. `forwards` counts its steps."""

    def __init__(self, served: Served) -> None:
        os.environ.update(served.variables())
        self.served = served
        self._made: dict[str, list[int]] = {}
        self._core: Any = None
        self._flushes = 0
        self._adapters: Mapping[int, dict[str, Any]] = {}

    def start(self, direct: Callable[[Engine], object]) -> None:
        """Start the engine core, and call `direct` when it is ready."""
        try:
            with tempfile.TemporaryDirectory(prefix="paritybit-") as folder:
                self._core = self._started(Path(folder))
                direct(self)
        except LackingError:
            raise
        except Exception as error:
            raise EngineFailedError(traceback.format_exc()) from error

    def run(self) -> None:
        """Run steps, each after what the player asks for."""
        self._made = {}
        with contextlib.suppress(PlayedError):
            while True:
                for act in self.player.poll():
                    act()
                self._step(self._core)

    def _step(self, core: Any) -> None:
        """Run one step, and report requests that have ended to the player."""
        outputs, ran = core.step_fn()
        core.post_step(ran)
        self.forwards += bool(ran)
        self.require_progress(0 if outputs else self.player.open)
        for of_client in (outputs or {}).values():
            for output in of_client.outputs:
                made = self._made.get(output.request_id)
                if made is None:  # It was aborted.
                    continue
                made.extend(output.new_token_ids)
                if self.likely is not None:
                    steps = self.likely.setdefault(output.request_id, [])
                    steps += likeliest(output.new_prompt_logprobs_tensors)
                    steps += likeliest(output.new_logprobs)
                if output.finish_reason is not None:
                    self.player.ended(output.request_id, self._made.pop(output.request_id))

    def _started(self, folder: Path) -> Any:
        arguments: Any = importlib.import_module(ARGUMENTS)
        core: Any = importlib.import_module(CORE)
        executors: Any = importlib.import_module("vllm.v1.executor.abstract")
        register(self.served.shape.config["architectures"][0])
        if self.served.speculative == "eagle":
            register(DRAFT.config["architectures"][0])
        self._adapters = lora.write(self.served.shape, self.served.adapters, folder)
        try:
            config = arguments.EngineArgs(**self.served.arguments(folder)).create_engine_config()
        except ValueError as error:
            raise LackingError(f"the release refuses these settings: {error}") from error
        install_in_engine(self.served)
        return core.EngineCore(config, executors.Executor.get_class(config), log_stats=False)

    def arrive(self, one: Planned, prompt: list[int]) -> Any:
        """Return a call that adds a request."""
        structures: Any = importlib.import_module("vllm.v1.engine")
        sampling: Any = importlib.import_module("vllm.sampling_params")
        known = inspect.signature(structures.EngineCoreRequest).parameters
        how = sampling.SamplingParams(
            max_tokens=one.tokens,
            temperature=one.temperature,
            ignore_eos=True,
            logprobs=None if self.likely is None else LIKELIEST,
            # Such a request reads no cached prefix, so not each of them is one.
            prompt_logprobs=LIKELIEST if self.likely is not None and one.arrives % 2 else None,
            **sampling_of(one, self.served.speculative),
        )
        words = None if one.sampling is None else one.sampling.bad_words
        how._bad_words_token_ids = words and [[*word] for word in words]
        given = {
            **{name: None for name, one in known.items() if one.default is one.empty},
            "request_id": one.name,
            "prompt_token_ids": prompt,
            "sampling_params": how,
            "arrival_time": time.time(),
            "priority": one.priority or 0,
            "lora_request": self._adapter(one),
        }
        return functools.partial(self._arrive, structures.EngineCoreRequest(**given))

    def abort(self, name: str) -> Any:
        """Return a call that aborts a request."""
        return functools.partial(self._abort, name)

    def flush(self) -> Any:
        """Return a call that empties the prefix cache, and every second time also the host's."""
        self._flushes += 1
        return functools.partial(self._core.reset_prefix_cache, False, self._flushes % 2 == 0)

    def acts(self) -> Acts:
        """Return the acts as calls of the engine core."""
        return acts_of(self._core)

    def _adapter(self, one: Planned) -> Any:
        """Return the engine's request for the adapter of a request, or None."""
        if one.adapter is None:
            return None
        requests: Any = importlib.import_module("vllm.lora.request")
        return requests.LoRARequest(**self._adapters[one.adapter])

    def _arrive(self, request: Any) -> None:
        self._made[request.request_id] = []
        self._core.add_request(*self._core.preprocess_add_request(request))

    def _abort(self, name: str) -> None:
        self._core.abort_requests([name])
        self.player.ended(name, self._made.pop(name, []))


ENGINE = Vllm

NO_DRAFTS = ("min_p", "logit_bias")
"""Parameters of sampling that vLLM refuses with speculation."""


def sampling_of(one: Planned, speculative: str | None) -> dict[str, Any]:
    """Return the parameters of sampling of a request. One with `min_tokens` can end early."""
    given = {} if one.sampling is None else one.sampling.given()
    given.pop("bad_words", None)  # The engine gets their tokens.
    for name in NO_DRAFTS if speculative is not None else ():
        given.pop(name, None)
    if speculative == "ngram":
        given["allowed_token_ids"] = range(FEW)
    if "min_tokens" in given:
        given.setdefault("stop_token_ids", [END])
    if "logit_bias" in given:
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    for name in {"allowed_token_ids", "stop_token_ids"} & {*given}:
        given[name] = [*given[name]]
    return given


def likeliest(given: Any) -> list[Likely]:
    """Return the likeliest tokens of each step. The engine lists the next token before them."""
    if given is None:
        return []
    columns = given.logprob_token_ids[:, 1:].tolist(), given.logprobs[:, 1:].tolist()
    return [list(zip(*step, strict=True)) for step in zip(*columns, strict=True)]


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
