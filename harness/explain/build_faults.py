"""Causes of violations that show in no bit of a forward: places in the code.

A cause function takes a recorded forward, and returns the cause or None.
"""

from collections.abc import Sequence
from types import FrameType

from paritybit.harness.explain.counterfactuals.setters import setters
from paritybit.harness.explain.facts import Cause, CodeSite, SourceLine
from paritybit.harness.explain.first_difference import Index
from paritybit.harness.explain.origins.source_lines import contract_row, site_of
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.harness.explain.static_origin import element_read, origin_at
from paritybit.harness.explain.tracing import following, lines_of
from paritybit.reference.ops import Ops
from paritybit.subjects.buffers import BufferPool, Conversion, StaticInputs
from paritybit.subjects.captured import CapturedEngine
from paritybit.subjects.contracts import LISTED_CONVERSIONS
from paritybit.subjects.pool import TRANSLATE, SubjectPool
from paritybit.subjects.runners.base import GraphRunner


def warning_site(recorded: RecordedForward) -> Cause | None:
    """Explain a warning by the place in the engine's code that logged it."""
    site = next((site for site in recorded.sites if site.functions), None)
    if site is None:
        return None
    callers = " in ".join(site.functions[-2:-4:-1])
    message = f"{site.message}; called by {callers}" if callers else site.message
    return Cause("call site", site=CodeSite(site.functions[-1], site.file, message, site.line))


def dtype_cause(recorded: RecordedForward) -> Cause | None:
    """Explain a broken index contract: a wrong dtype, an unlisted conversion or a new address."""
    found = _locations_misread(recorded) or unlisted_conversion(recorded)
    return found or _moved_buffer(recorded)


def _moved_buffer(recorded: RecordedForward) -> Cause | None:
    """Return the first static buffer that is no longer the tensor that the graph reads."""
    facts = recorded.observation.facts if recorded.observation is not None else None
    if facts is None:
        return None
    for name, captured in facts.captured_buffers.items():
        now = facts.buffers.get(name)
        if now is not None and now.address != captured.address:
            message = (
                f"{name} is no longer the tensor that was captured, and the graph still reads "
                "the captured one"
            )
            return Cause("build", site=site_of(StaticInputs, message, "static buffer"))
    return None


def _locations_misread(recorded: RecordedForward) -> Cause | None:
    """Return the first store that reads its locations as another dtype."""
    for number, call in enumerate(recorded.run.calls):
        if call.name != "store_kv" or call.inputs[1].dtype == call.inputs[2]:
            continue
        loc, dtype = call.inputs[1], call.inputs[2]
        read, right = loc.view(dtype)[: loc.numel()].tolist(), loc.tolist()
        row = next((row for row in range(len(read)) if read[row] != right[row]), 0)
        index = Index(number, row, None, read[row], right[row])
        read_from = element_read(recorded, index)
        found = (
            origin_at(recorded, index, *read_from, stale=False, right=index.right)
            if read_from
            else None
        )
        message = (
            f"the locations are {loc.dtype} but the store reads {dtype}: row 1 is read "
            "from the upper half of element 0"
        )
        return Cause("build", site=site_of(Ops.store_kv, message, "store_kv"), index=found)
    return None


def unlisted_conversions(runner: GraphRunner) -> Sequence[Conversion]:
    """Return the conversions on copy into a runner's static buffers that are not listed."""
    return sorted(runner.conversions - LISTED_CONVERSIONS, key=str)


def unlisted_conversion(recorded: RecordedForward) -> Cause | None:
    """Return the first copy into a static buffer with a conversion that is not listed."""
    runner = recorded.runner
    unlisted = () if runner is None else unlisted_conversions(runner)
    if runner is None or not unlisted:
        return None
    name, source, destination = unlisted[0]
    message = (
        f"copying {name} converts {source} to {destination}, which is not on the list of "
        "allowed conversions"
    )
    made = declared_at(runner, name)
    return Cause("build", site=site_of(StaticInputs.populate, message), made=made)


def declared_at(runner: GraphRunner, name: str) -> tuple[SourceLine, ...]:
    """Return the lines that declare a static buffer of a runner, and its dtype.

    If the buffer has another dtype than its contract says, the line that made it comes first.
    """
    if name in runner.inputs.rows:
        row, dtype = contract_row(type(runner), name), runner.inputs.rows[name].dtype
        made = tuple(setters(type(runner.inputs), "buffers"))
        declared = () if row is None else (row,)
        as_declared = runner.inputs.buffers[name].dtype == (dtype or runner.target.dtype)
        return declared if as_declared else (*made[:1], *declared)
    found = list[tuple[SourceLine, ...]]()

    def look(frame: FrameType, line: int, returned: object) -> None:
        held = (*frame.f_locals.values(), returned)
        if any(isinstance(one, dict) and name in one for one in held):
            found.append(lines_of(frame, line, "declared"))

    with following(look):
        runner.metadata_sizes(runner.buckets[-1])
    return found[0] if found else ()


def off_path_cause(recorded: RecordedForward) -> Cause | None:
    """Explain a graph with too many translations for its location scheme, by the first one."""
    runner, bucket = recorded.runner, recorded.bucket
    if runner is None or bucket is None:
        return None
    moved = _moved_output(recorded)
    if moved is not None:
        return moved
    operations = runner.operations(bucket)
    wanted = runner.translations(recorded.pair.trial.scheme)
    places = [place for place, name in enumerate(operations) if name == TRANSLATE]
    if len(places) <= wanted:
        return None
    place = places[wanted]
    message = (
        f"op {place} of the graph's {len(operations)} is a translation, the first of "
        f"{len(places) - wanted} unexpected ones; the next store is number "
        f"{operations[:place].count('store_kv')}"
    )
    return Cause("build", site=site_of(getattr(SubjectPool, TRANSLATE), message, TRANSLATE))


def _moved_output(recorded: RecordedForward) -> Cause | None:
    """Return the first static output that has moved since the graphs were captured."""
    facts = recorded.observation.facts if recorded.observation is not None else None
    if facts is None or not facts.outputs:
        return None
    for name, captured in facts.captured_outputs.items():
        now = facts.outputs.get(name)
        if now is None or now.address != captured.address:
            message = f"the output {name} is not the tensor that is known from the capture"
            return Cause("build", site=site_of(CapturedEngine.capture_again, message))
    return None


def refused_build_cause(reason: str) -> Cause:
    """Explain a build that cannot be captured because its runners disagree on a shared buffer."""
    return Cause("build", site=site_of(BufferPool.get, reason))
