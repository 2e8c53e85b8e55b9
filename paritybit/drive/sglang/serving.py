"""A whole sglang in this process: its own scheduler, with a player in place of clients."""

import argparse
import contextlib
import importlib
import inspect
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count, zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from paritybit.compat import override
from paritybit.drive.answers import (
    END_OF_TEXT,
    LIKELIEST,
    NUMBER,
    Answer,
    Late,
    Likely,
    report,
    strings_of,
    text_of,
)
from paritybit.drive.configs import LackingError
from paritybit.drive.engine import Acts, Engine, EngineFailedError, PlayedError
from paritybit.drive.models import IMAGE, VOCABULARY
from paritybit.drive.operating.embeddings import embedding, positions
from paritybit.drive.operating.images import grid, hash_of, images_of
from paritybit.drive.operating.sglang import acts_of, id_of, loads
from paritybit.drive.script import Part, Planned, Sampling
from paritybit.drive.sglang import apart
from paritybit.drive.sglang.answers import SglangGrammar, processor
from paritybit.drive.sglang.late import Clock
from paritybit.drive.sglang.ranks import PLAYED, Ranks, answering
from paritybit.drive.sglang.settings import LISTED, SglangServed, says
from paritybit.drive.sglang.stand_ins import ANYWHERE, ON_A_CPU, QUANTISED
from paritybit.drive.stand_ins import installing
from paritybit.engines.loading import named
from paritybit.watch import journal

IMPORTED = ("sglang.srt.managers.scheduler", "sglang.srt.models.registry")
"""The modules of the engine that take longest to import."""

TREE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
"""The variable with the language of the prefix cache."""

UNIFIED = "SGLANG_ENABLE_UNIFIED_RADIX_TREE"
"""The variable that chooses the unified prefix cache, in releases with another one."""

NOTHING = ("input_embeds", "mm_inputs", "token_type_ids")
"""Optional fields of a request that some releases require. They are None."""

GRAMMARS = "sglang.srt.constrained.base_grammar_backend"

NO_HOST_CACHE: Mapping[str, str] = {
    "HiRadixCache only supports": "this release keeps no sliding windows on the host",
    "Not enough host memory": "this machine has too little free memory for KV on the host",
}
"""Parts of the error messages of releases that refuse the host cache, and what each means."""

COPIES = ("ongoing_write_through", "ongoing_load_back", "ongoing_prefetch", "ongoing_backup")
"""Attributes of a prefix cache: its copies to and from the host and files that are under way."""

CAPACITY = 1 << 20
"""The length of a session, which the engine does not limit."""

PATIENCE = 1e6
"""The seconds that the engine waits before it refuses to empty its cache."""

FOLDER = "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"
"""The variable with the folder of the files."""

TOKENIZER = SimpleNamespace(
    eos_token_id=END_OF_TEXT,
    bos_token_id=None,
    additional_stop_token_ids=None,
    decode=text_of,
    encode=lambda text, **_: [*text],
)
"""A tokenizer that gives a text as many tokens as it may have at most."""

SPACES = {None: (None, None), 1: ("a", None), 2: (None, "a"), 3: ("b", None), 4: ("a", "a")}
"""The extra key and the salt of each namespace of the prefix cache."""

KINDS = ("token", "top", "token_ids")
"""The kinds of tokens with log-likelihoods: the one there, the likeliest ones, and given ones."""

COUNTS = ("prompt_tokens", "completion_tokens")


def install(device: str) -> None:
    """Replace parts of the engine, and import it."""
    installing.install(device, ANYWHERE, ON_A_CPU)
    for name in IMPORTED:
        importlib.import_module(name)


class Sglang(Engine):
    """A scheduler of sglang."""

    def __init__(self, served: SglangServed) -> None:
        self.served = served
        self._run: Callable[[], Any] | None = None
        self._scheduler: Any = None
        self._answers: dict[str, Answer] = {}
        self._aborted = set[str]()
        self._first: list[Any] = []
        self._ranks = Ranks(served.pp, served.dp)
        self._turn = 0
        """The data-parallel group that gets the next request."""
        self._version = 0
        """How often the adapters have been loaded again."""
        self._sessions: dict[int, list[str | None]] = {}
        """The name and the turns of each open session, by its number."""
        self._opened: list[Any] = []
        """Requests that open sessions with the next poll."""
        self._names = (f"session {number}" for number in count())
        self._closing = set[str | None]()
        """The sessions whose end the engine was asked for."""
        self._inexact = set[str | None]()
        """Turns of sessions that the engine may refuse, or give another prompt."""
        self._turns: dict[str, int] = {}
        """The session of each turn of one that keeps its slots."""
        self._kept: dict[int, list[int]] = {}
        """The tokens of each of these: those of its last turn that was not aborted."""
        self._late: list[Any] = []
        """Requests that arrive with the next poll."""
        self._role = list[str]()
        """The part of the command line for the role of one of two engines."""
        self._rooms = count(1)
        """The numbers of requests that two engines share."""

    @property
    def structures(self) -> Any:
        """The module with the engine's own requests."""
        return importlib.import_module("sglang.srt.managers.io_struct")

    @property
    def forwards(self) -> int:  # type: ignore[override]
        """The number of batches that the scheduler has run."""
        return 0 if self._scheduler is None else int(self._scheduler.forward_ct)

    @override
    def run(self) -> None:
        assert self._run is not None, "the engine has not started"
        self._answers, self._aborted = {}, set()
        Clock.seed(self.served.seed)
        self.player.idle_polls *= self.served.pp  # Each stage has batches of its own.
        if self.served.apart:
            self.player.idle_polls = apart.REST
        with contextlib.suppress(PlayedError):
            self._run()

    @override
    def start(self, direct: Callable[[Engine], object]) -> None:
        if self.served.quantised and self.served.device == "cpu":
            installing.put(QUANTISED)
        if self.served.python_tree:
            os.environ.setdefault(TREE, "python")
            os.environ.setdefault(UNIFIED, "1")
        module: Any = importlib.import_module("sglang.srt.managers.scheduler")
        configuration: Any = importlib.import_module("sglang.srt.server_args")
        with tempfile.TemporaryDirectory(prefix="paritybit-") as folder:
            if self.served.storage:
                os.environ[FOLDER] = str(Path(folder, "files"))
            mine = self._separate(Path(folder)) if self.served.apart else Path(folder)
            arguments = self._settle(configuration, mine)
            ports = configuration.PortArgs.init_new(arguments)
            if not self.served.apart:
                self._ranks = Ranks.forked(self.served.tp, self.served.pp, self.served.dp)
            self._intercept(module, direct)
            given = {
                "server_args": arguments,
                "port_args": ports,
                "pipe_writer": SimpleNamespace(send=lambda told: None),
                "pp_rank": self._ranks.pp,
                "tp_rank": 0 if self.served.apart else self._ranks.tp,
            }
            if self.served.dp > 1:
                given["dp_rank"] = self._ranks.group
            start = module.run_scheduler_process
            for name, parameter in inspect.signature(start).parameters.items():
                if name not in given and parameter.default is inspect.Parameter.empty:
                    given[name] = None if name == "dp_rank" else 0
            try:
                start(**given)
            except PlayedError:
                if (code := self._ranks.wait()) != 0:
                    raise EngineFailedError(f"a rank failed with exit code {code}") from None
                return
            except EngineFailedError as error:
                self._ranks.leave()
                if isinstance(error.__cause__, LackingError):
                    raise error.__cause__ from None
                why = (why for part, why in NO_HOST_CACHE.items() if part in str(error))
                if self.served.host_cache and (lacking := next(why, None)) is not None:
                    raise LackingError(lacking) from error
                raise

    def _separate(self, folder: Path) -> Path:
        """Fork the engine for prefill. Returns the folder of each engine."""
        port = apart.free_port()
        self._ranks = Ranks.forked(2, 1, 1)
        role = apart.ROLES[self._ranks.tp]
        self._role = ["--disaggregation-mode", role, "--disaggregation-bootstrap-port", str(port)]
        apart.begin(next(iter(self._ranks.pipes.values())), role, port)
        mine = folder / role
        mine.mkdir()
        return mine

    def _settle(self, configuration: Any, folder: Path) -> Any:
        parser = argparse.ArgumentParser()
        configuration.ServerArgs.add_cli_args(parser)
        package = Path(configuration.__file__).parent.parent
        known = frozenset(parser._option_string_actions)
        words = self.served.words(known, folder, package, *self._role[1:2])
        arguments = configuration.prepare_server_args([*words, *self._role])
        if hasattr(arguments, "resolve_once"):
            arguments.resolve_once()
        return arguments

    def _intercept(self, module: Any, direct: Callable[[Engine], object]) -> None:
        """Call `direct` in place of the scheduler's loop, and raise its errors in this process."""
        run = module.Scheduler.run_event_loop

        def playing(scheduler: Any) -> Any:
            self._scheduler, self._run = scheduler, lambda: run(scheduler)
            scheduler.tokenizer = TOKENIZER
            constrained: Any = importlib.import_module(GRAMMARS)
            backend = constrained.BaseGrammarBackend()
            backend.executor = SimpleNamespace(submit=lambda make, *given: Late(make(*given)))
            backend.dispatch_regex = type(
                "Classes", (SglangGrammar, constrained.BaseGrammarObject), {}
            )
            scheduler.grammar_manager.grammar_backend = backend
            if self.served.mixed and not scheduler.is_mixed_chunk:
                raise LackingError("this release mixes no batches with these settings")
            channels = getattr(scheduler, "ipc_channels", scheduler)
            hear = answering(self._ranks, self._hear)
            type(channels.send_to_tokenizer).send_output = lambda sender, *given: hear(*given)
            self._receive(type(getattr(scheduler, "request_receiver", scheduler)))
            Clock.seed(self.served.seed)
            if self._ranks.plays:
                self._first = self._loads()
                direct(self)
            else:
                self._run()
            raise PlayedError

        def failed() -> str:
            raise EngineFailedError(traceback.format_exc()) from sys.exc_info()[1]

        module.Scheduler.run_event_loop = playing
        module.get_exception_traceback = failed

    def _receive(self, receiver: Any) -> None:
        """Give the scheduler the player's requests, in the first rank if there are several."""
        if self.served.apart:
            receiver.recv_requests = lambda *arguments, **named: self._exchange()
            return
        if not self._ranks.several:
            receiver.recv_requests = lambda *arguments, **named: self._poll()
            return
        if not hasattr(receiver, "_pull_raw_reqs"):
            raise LackingError("this release receives the requests of several ranks in another way")
        pull, receive = receiver._pull_raw_reqs, receiver.recv_requests

        def received(holder: Any, *arguments: Any, **named: Any) -> Any:
            given = receive(holder, *arguments, **named)
            if self._ranks.ends(given):
                raise PlayedError
            return given

        receiver._pull_raw_reqs = lambda holder: (
            self._pull() if self._ranks.leads and self._ranks.pp == 0 else pull(holder)
        )
        receiver.recv_requests = received

    def _pull(self) -> list[Any]:
        """Return the requests that arrive now at the first rank of a data-parallel group."""
        if not self._ranks.plays:
            return self._ranks.exchange()
        groups: list[list[Any]] = [[] for _ in range(self.served.dp)]
        for connection in self._ranks.leaders():
            for output in connection.recv():
                self._hear(output)
        given, self._late = [*self._late, *self._poll_once()], []
        works = [one for one in given if hasattr(one, "input_ids")]
        groups[0] = [one for one in given if not hasattr(one, "input_ids")]  # All ranks get these.
        if groups[0] and len(groups) > 1:  # The engine would handle them after the others.
            self._late, works = works, []
        for one in works:
            groups[self._turn % len(groups)].append(one)
            self._turn += 1
        for connection, mine in zip(self._ranks.leaders(), groups[1:], strict=True):
            connection.send(mine)
        return groups[0]

    def _exchange(self) -> list[Any]:
        """Return the requests that arrive now at one of two engines."""
        quiet = self._scheduler.is_fully_idle()
        if not self._ranks.plays:
            Clock.tick()
            return apart.Wire.exchange([], quiet)
        try:
            given = self._poll()
        except PlayedError:
            apart.Wire.exchange(None, quiet)
            raise
        return apart.Wire.exchange(given, quiet)

    def _poll_once(self) -> list[Any]:
        """Return what arrives now. When all is played, tell the other ranks, once."""
        if self._ranks.rounds is not None:
            return []
        try:
            return self._poll()
        except PlayedError:
            return [self.structures.AbortReq(rid=PLAYED)]

    def _poll(self) -> list[Any]:
        """Return the requests that arrive now. Raises StalledError if the engine serves none."""
        Clock.tick()
        self.require_progress(self.player.open)
        first, self._first = self._first, []
        given = self.player.poll()
        opened, self._opened = self._opened, []
        return [*first, *opened, *given, *self._closed()]

    def _of_session(self, one: Planned, prompt: list[int]) -> tuple[list[int], list[int], Any]:
        """Return the new tokens of a turn of a session, all of its tokens, and its name.

        The first turn opens the session. A streaming one, as every second one, has no branches, and
        goes on after its last turn that was not aborted.
        """
        assert one.session is not None
        streams = self._streams(one)
        opens = one.session not in self._sessions
        turns = self._sessions.setdefault(one.session, [next(self._names)] if opens else [])
        name, latest, knows = turns[0], turns[-1], one.follows in turns[1:]
        if opens:
            how = {"capacity_of_str_len": CAPACITY, "session_id": name, "streaming": streams}
            self._opened.append(self.structures.OpenSessionReqInput(**how))
        turns.append(one.name)
        goes_on = not opens and (knows or streams)
        wrong = latest != one.follows if streams else one.follows in self._aborted
        if goes_on and (wrong or one.follows in self._inexact):
            self._inexact.add(one.name)
        if streams:
            self._turns[one.name] = one.session
            prompt = [*self._kept.get(one.session, ()), *one.ids()] if goes_on else prompt
        rid = one.follows if knows and not streams else None
        params = self.structures.SessionParams(id=name, rid=rid)
        return one.ids() if goes_on else prompt, prompt, params

    def _pictured(self, one: Planned, pictures: Sequence[tuple[int, Part]]) -> Any:
        """Return the images of a prompt, as the engine's processor would."""
        batches: Any = importlib.import_module("sglang.srt.managers.schedule_batch")
        width, places, items = self.served.shape.config["hidden_size"], positions(one.prompt), []
        # On a CPU, the vision model passes features on. A batch has images of one kind alone.
        encoded = self.served.device == "cpu" and self.served.seed % 2 == 1
        for at, part in pictures:
            given: dict[str, Any] = {"feature": embedding(part, width)}
            if not encoded:
                kind = batches.MultimodalInputFormat.PRECOMPUTED_EMBEDDING
                given = {"format": kind, "precomputed_embeddings": given["feature"]}
            item = batches.MultimodalDataItem(
                modality=batches.Modality.IMAGE,
                hash=hash_of(part),
                offsets=[(at, at + part.length - 1)],
                model_specific_data={"image_grid_thw": torch.tensor([grid(part)])},
                **given,
            )
            item.set_pad_value()
            items.append(item)
        return batches.MultimodalProcessorOutput(
            mm_items=items,
            im_token_id=IMAGE,
            mrope_positions=places,
            mrope_position_delta=(places.max() + 1 - one.length)[None, None],
        )

    def _closed(self) -> list[Any]:
        """Return requests that close sessions, of every third one before its last turn ends."""
        given = list[Any]()
        if not self._sessions:
            return given
        coming, running = self.player.sessions
        for number in {*self._sessions} - coming:
            name, ended = self._sessions[number][0], number not in running
            if ended or (number % 3 == 0 and name not in self._closing):
                self._closing.add(name)
                given.append(self.structures.CloseSessionReqInput(session_id=name))
            if ended:
                del self._sessions[number]
                self._kept.pop(number, None)
        return given

    def _streams(self, one: Planned) -> bool:
        """Return whether a request belongs to a session that keeps its slots."""
        return (one.session or 0) % 2 == 1 and self.served.streams(self._package)

    @property
    def _package(self) -> Path:
        """The folder of the engine's package."""
        return Path(self.structures.__file__).parents[2]

    def arrive(self, one: Planned, prompt: list[int]) -> Any:
        """Return the engine's request. On a CPU, drafts are verified without random numbers.

        Trees of drafts are verified by sampling with a compiled kernel alone.
        """
        sampling: Any = importlib.import_module("sglang.srt.sampling.sampling_params")
        request = inspect.signature(self.structures.TokenizedGenerateReqInput).parameters
        greedy = self.served.speculative is not None and self.served.device == "cpu"
        given: dict[str, Any] = {name: None for name in NOTHING if name in request}
        if one.adapter:
            given["lora_id"] = id_of(one.adapter, self._version)
        keys = zip(("extra_key", "cache_salt"), SPACES[one.space], strict=True)
        given |= {name: key for name, key in keys if name in request}
        if one.priority is not None:
            given["priority"] = one.priority
        new = prompt
        if one.session is not None:
            new, prompt, given["session_params"] = self._of_session(one, prompt)
        if pictures := [*images_of(one.prompt)]:
            given["mm_inputs"] = self._pictured(one, pictures)
        if self.served.apart:
            address = {"host": apart.HOST, "port": int(self._role[-1]), "room": next(self._rooms)}
            given |= {f"bootstrap_{name}": part for name, part in address.items()}
        more = one.sampling or Sampling()
        # Such a session has none of prompts. Those of images would be those of their hashes.
        if more.likelihoods is not None and (self._streams(one) or pictures):
            more = replace(more, likelihoods=-1)
        if more.hidden_states:
            given["return_hidden_states"] = True
        if more.processor is not None:
            given["custom_logit_processor"] = processor(more.processor)
        # Older releases return what was accepted after a string.
        strings = () if self.served.speculative else strings_of(more)
        stopping: dict[str, Any] = {"stop": [*strings], "stop_token_ids": None} if strings else {}
        stopping["stream_interval"] = len(prompt) % 3 + 1
        how = named(sampling.SamplingParams, **(sampling_of(one) | stopping))(
            max_new_tokens=one.tokens, temperature=0.0 if greedy else one.temperature
        )
        how.normalize(self._scheduler.tokenizer)
        others = () if strings else more.stop_token_ids or ()
        stops = () if more.ignore_eos else (END_OF_TEXT, *others)
        drafted = range(one.tokens if self.served.forced else 0)
        asked = replace(more, allowed_token_ids=None, bad_words=None)  # The engine has none.
        if strings:  # They end a request before `min_tokens`, too.
            asked = replace(asked, min_tokens=None)
        answer = Answer([*prompt], one.tokens, asked, stops, strings, drafted=drafted)
        answer.greedy = (greedy or not one.temperature) and not self.served.forced
        if self.likely is not None:
            answer.likeliest = LIKELIEST
        elif more.likelihoods is not None:
            answer.likeliest = len(prompt) % 4
            if says(self._package, *LISTED):
                answer.others = prompt[: len(prompt) % 3]
        answer.aborted = one.name in self._inexact
        self._answers[one.name] = answer
        return self.structures.TokenizedGenerateReqInput(
            rid=one.name,
            input_text="",
            input_ids=_like_ids(self.structures, new),
            sampling_params=how,
            return_logprob=self.likely is not None or more.likelihoods is not None,
            logprob_start_len=-1 if more.likelihoods is None else more.likelihoods,
            top_logprobs_num=answer.likeliest,
            token_ids_logprob=answer.others or None,
            stream=len(prompt) % 2 == 0,
            **given,
        )

    def _stays(self, session: int, turn: str) -> bool:
        """Return whether a session keeps an aborted turn that was retracted before.

        This is an error of 0.5.23: see `docs/findings.md`.
        """
        sessions = getattr(self._scheduler, "session_controller", {})
        held = sessions.get(self._sessions[session][0])
        node = held.req_nodes.get(turn) if held is not None else None
        return node is not None and node.req.retraction_count > 0

    @override
    def abort(self, name: str) -> Any:
        if name in self._answers:
            self._answers[name].aborted = True
        return self.structures.AbortReq(rid=name)

    @property
    def defers(self) -> bool:  # type: ignore[override]
        """Whether the engine is asked to wait before it empties its cache."""
        known = inspect.signature(self.structures.FlushCacheReqInput).parameters
        return self.served.host_cache and self.served.ranks == 1 and "timeout_s" in known

    @override
    def flush(self) -> Any:
        how = {"timeout_s": PATIENCE} if self.defers else {}
        return self.structures.FlushCacheReqInput(**how)

    @override
    def acts(self) -> Acts:
        served = self.served
        acts = acts_of(self._scheduler, served.tp * served.dp, served.pp)
        return {**acts, "adapters": self._load_again} if served.adapters else acts

    def _loads(self) -> list[Any]:
        served = self.served
        ranks = served.tp * served.dp
        return loads(self.structures, served.shape, served.adapters, ranks, self._version)

    def _load_again(self) -> list[Any]:
        self._version += 1
        return self._loads()

    @override
    def moves(self, name: str) -> str:
        """Return whether KV of a request is fetched, transferred or retracted, or its node copied.

        An engine for decode keeps what it retracts on the host.
        """
        cache, scheduler = self._scheduler.tree_cache, self._scheduler
        transfers = getattr(scheduler, "disagg_decode_transfer_queue", None)
        if any(one.req.rid == name for one in getattr(transfers, "queue", ())):
            return "transferred"
        retracted = getattr(scheduler, "disagg_decode_prealloc_queue", None)
        if any(one.rid == name for one in getattr(retracted, "retracted_queue", ())):
            return "retracted"
        for one, fetched in getattr(cache, COPIES[2], {}).items():
            if getattr(one, "rid", one) == name and fetched[2] is not None:  # Slots of the host.
                return "fetched"
        batches = getattr(scheduler, "running_batch", None), getattr(scheduler, "last_batch", None)
        requests = [one for batch in batches if batch is not None for one in batch.reqs]
        nodes = (getattr(one, "last_node", None) for one in requests if one.rid == name)
        keys = {getattr(node, "id", node) for node in nodes}
        ways = (one for one in COPIES[:2] if any(key in getattr(cache, one, ()) for key in keys))
        return next(ways, "")

    def at_rest(self) -> bool:
        """Return whether nothing is left that makes the engine refuse to empty its cache.

        These are copies of the prefix cache, requests that wait for a grammar, and work of another
        engine.
        """
        others = apart.Wire.rests() and self._scheduler.is_fully_idle()
        if getattr(getattr(self._scheduler, "grammar_manager", None), "grammar_queue", ()):
            return False
        if self.served.apart and not others:
            return False
        cache = self._scheduler.tree_cache
        return not any(getattr(cache, name, ()) for name in COPIES)

    def _hear(self, output: Any, *rest: Any) -> None:
        """Report the requests that an output of the scheduler ends to the player."""
        if getattr(output, "success", None) is False:
            why = getattr(output, "message", "") or getattr(output, "error_message", "")
            if (lines := journal.of_process()) is not None:
                lines.undecided(f"an action was refused: {type(output).__name__}: {why}")
        elif type(output).__name__ == "FlushCacheReqOutput":
            self.player.flushed()
        elif type(output).__name__ == "AbortReq":
            self._end(output.rid, {"type": "abort"})
        elif hasattr(output, "finished_reasons"):
            for index, request in enumerate(output.rids):
                if request not in self._answers:
                    # A batch that is under way still answers a request that the engine aborts.
                    if request not in self._aborted:
                        report(f"request {request} goes on after it has ended", what="goes on")
                    continue
                hear(self._answers[request], output, index)
                if (reason := output.finished_reasons[index]) is not None:
                    self._end(request, reason)

    def _end(self, request: str, reason: Mapping[str, Any]) -> None:
        if reason["type"] == "abort":
            self._aborted.add(request)
        answer = self._answers.pop(request, None)
        if answer is not None:
            room = self.served.limits().longest // 2
            answer.reason = {"stop": reason.get("matched"), "length": NUMBER}.get(reason["type"])
            cut = request in self._aborted or len(answer.prompt) + answer.most > room
            answer.judge(request, cut=cut)
            session = self._turns.pop(request, None)
            if session is not None and reason["type"] != "abort":
                self._kept[session] = [*answer.prompt, *answer.tokens]
            elif session is not None and self._stays(session, request):
                self._inexact.add(request)
            if self.likely is not None:
                self.likely[request] = answer.steps
        self.player.ended(request, answer.tokens if answer is not None else ())


ENGINE = Sglang

NAMES: Mapping[str, str] = {"min_tokens": "min_new_tokens", "seed": "sampling_seed"}
"""The names of parameters of sampling that differ in sglang."""


def hear(answer: Answer, output: Any, index: int) -> None:
    """Note an output of the scheduler, which belongs to the request at `index`."""
    if output.output_ids is not None:
        answer.deliver(output.output_ids[index])
        answer.tokens += map(int, output.output_ids[index])
        for name in COUNTS:
            answer.counts[name] = getattr(output, name)[index]
    for part in ("input", "output"):
        kinds = (places_of(output, f"{part}_{kind}", index) for kind in KINDS)
        for (token, value), *more in zip_longest(*kinds, fillvalue=((), None)):
            likeliest, others = (dict(zip(ids, found or (), strict=False)) for ids, found in more)
            best = answer.greedy and part == "output"
            at = len(answer.ranked) + (answer.asked.likelihoods or 0)
            last = (part, token, answer.prompt[at : at + 1]) == ("input", 0, [VOCABULARY - 1])
            right = VOCABULARY - 1 if last else token  # The engine calls its last token 0.
            answer.ranked.append(Likely(right, value, likeliest, others, best))


def places_of(output: Any, kind: str, index: int) -> list[Any]:
    """Return the tokens of a kind at each place of a request, and their log-likelihoods.

    Those before the first token of a prompt are None.
    """
    lists = (getattr(output, f"{kind}_logprobs_{of}") for of in ("idx", "val"))
    pairs = zip(*((one and one[index]) or () for one in lists), strict=False)
    return [((), None) if ids is None else (ids, found) for ids, found in pairs]


def sampling_of(one: Planned) -> dict[str, Any]:
    """Return the parameters of sampling of a request, by sglang's names."""
    given = {} if one.sampling is None else one.sampling.given()
    if "grammar" in given:
        given["regex"] = str(given["grammar"])
    if "processor" in given:
        given["custom_params"] = {"class": given["processor"]}
    return {NAMES.get(name, name): value for name, value in given.items()}


def _like_ids(structures: Any, prompt: list[int]) -> Any:
    """Return a prompt in the release's type: a list, or an array of 64-bit integers."""
    annotation = str(structures.TokenizedGenerateReqInput.__annotations__.get("input_ids", ""))
    if "array" in annotation.lower():
        return importlib.import_module("array").array("q", prompt)
    return prompt
