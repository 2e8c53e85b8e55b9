"""A pair with one of an engine's speculative runners, and a draft model that the engine takes."""

from harness.checks.play import Lockstep
from harness.engines.adapters import DraftingEngines
from harness.lockstep.config import TrialConfig
from reference.config import full_draft_config
from subjects.engines.sglang.loading import Engine, message


def drafting_lockstep(
    engine: Engine, trial: TrialConfig, asked: set[str] | None = None
) -> tuple[Lockstep, str | None]:
    """Return a pair with the trial's speculative runner, and why its draft has no windows.

    The draft model has a window layer, unless the engine cannot capture the runner with one:
    it then has full layers alone, and what went wrong is said. `asked` collects the settings
    that the engine asked for and nobody declared. Raises what the engine raises where it can
    capture the runner with neither.
    """
    engines = DraftingEngines(engine, set() if asked is None else asked)
    try:
        return Lockstep(trial, engines=engines), None
    except Exception as error:  # An engine's code may fail in any way.
        refused = message(error)
    return Lockstep(trial, engines=engines, draft=full_draft_config), refused
