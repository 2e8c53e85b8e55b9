"""Follows the drafts of an engine: who proposes them, and which of them its sampler accepts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paritybit.connectors.vllm.requests import resumed_of
from paritybit.connectors.vllm.speculation import Account, account_of, drafts_of, tokens_of
from paritybit.watch.journal import Journal
from paritybit.watch.watcher import Watcher

Original = Callable[..., Any]


class Drafting:
    """The part of an engine that follows its drafts. `account` is None without speculation."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.watcher: Watcher | None = None
        self.scheduler: Any = None
        self.account: Account | None = None

    def follow_drafts(self, runner: Any, output: Any) -> None:
        """Take over what the scheduler says, before a forward, of requests with drafts."""
        if self.scheduler is None:
            return
        if self.account is None:
            self.account = account_of(runner.vllm_config)
        if self.account is not None:
            resumed = resumed_of(output.scheduled_cached_reqs)
            self.account.follow(output, resumed, self.scheduler.requests)

    def sampled(self, original: Original, runner: Any, *args: Any, **kwargs: Any) -> Any:
        """Count the drafts that a sampler accepts."""
        result = original(runner, *args, **kwargs)
        if self.account is not None:
            names = names_of(runner, args, kwargs)
            found = self.account.sampled(names, tokens_of(result))
            if self.watcher is not None:
                self.journal.count(
                    drafts=found.drafts,
                    accepted_drafts=found.accepted,
                    rejected_drafts=found.drafts - found.accepted,
                )
        return result

    def proposed(self, original: Original, owner: Any, *args: Any, **kwargs: Any) -> Any:
        """Note the drafts that are proposed."""
        result = original(owner, *args, **kwargs)
        if self.account is not None:
            drafts = args[1] if result is None else result
            self.account.proposed(names_of(owner, args, kwargs), drafts_of(drafts))
        return result


def names_of(owner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Return the requests of a batch that a runner keeps or a function is given, in its order."""
    given = next((one for one in (*args, *kwargs.values()) if hasattr(one, "req_ids")), None)
    return list((owner.input_batch if given is None else given).req_ids)
