"""Run records made by hand: a green, a red, an interrupted and a hostile one, and their parts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paritybit.harness.explain.facts import (
    NOBODY,
    Explanation,
    FirstDifference,
    Reach,
    Situation,
    Slot,
    SlotMap,
    SlotTaken,
    SourceLine,
    StaticInputRow,
    Suspect,
    TimelineEntry,
    Writer,
    WrongElement,
)
from paritybit.harness.records.schema import (
    BugOnRunner,
    BugRow,
    CaseHead,
    CleanRow,
    Contract,
    ContractRow,
    Environment,
    Finding,
    HuntStatus,
    Record,
    Schedule,
    TrialSettings,
    Violation,
)

PROPERTIES = {
    "logits_parity": "live rows' logits: graph bits = eager bits",
    "kv_parity": "every slot of every pool: graph bits = eager bits",
    "write_frame": "a step changes only the slots in its own out_cache_loc",
    "hermetic_replay": (
        "a runner gives the same bits after earlier replays as it does when freshly captured"
    ),
    "read_frame": "a row reads its own request's slots, a padded one slot 0",
    "padded_reads": "among NaN that no row may read, no row turns NaN",
    "live_inputs": "each static input holds what the batch says",
    "slot_ownership": "every slot is held once or free once",
    "padding_noninterference": "bytes that nobody in the batch owns change nothing live",
    "index_contract": "static buffers are what was captured",
    "captured_path": "a graph was really replayed, of the right ops",
    "log_hygiene": "a step without a bug logs nothing at WARNING or above",
    "determinism": "playing the same schedule twice gives the same bits",
    "batch_invariance": (
        "the bits of a request do not depend on its row, on other requests in the "
        "batch, or on the bucket"
    ),
    "dense_agreement": "eager logits agree with a cache-free model within a bound",
    "token_trajectory": (
        "greedy decoding produces the same tokens with graph replay as with eager execution"
    ),
}
"""The properties that the records made here speak of."""

HOSTILE = "</pre></title><script>alert('x')</script>\"' onload=\"alert(1)\" {{ 7 * 7 }} &amp;"

PULL = "https://github.com/sgl-project/sglang/pull/"

EVENTS = {
    "padded replay": 1213,
    "idle replay": 212,
    "prompt in chunks": 266,
    "evicted": 77,
    "pool full": 3,
    "decode: replay": 1853,
    "decode: padded replay": 1213,
}

RUNNERS = ("decode", "target_verify", "cpu_graph", "piecewise")

LACKS_SWA = "it has no static input out_cache_loc_swa"
HIDDEN = "before_window clears the memo just before the window translation"

BUGS: dict[str, dict[str, str]] = {
    "swa_pad": {
        "cpu_graph": LACKS_SWA,
        "piecewise": "attention is narrowed to the real tokens: nobody reads the padded locations",
    },
    "swa_int64": {"cpu_graph": LACKS_SWA},
    "req_pool_pad": {"piecewise": "it has no static input req_pool_indices"},
    "loc_memo_capture": {"cpu_graph": "the runner captures nothing; each forward translates again"},
    "loc_memo_warning": {},
    "loc_memo_warning.entry": dict.fromkeys(RUNNERS, HIDDEN),
    "loc_memo_warning.before_window": dict.fromkeys(RUNNERS, "entry clears the memo"),
    "loc_memo_warning.entry+before_window": {},
}
"""Of each bug: the runners that it cannot affect, and why."""

SWA_PAD = (
    "out_cache_loc_swa is not reset when the batch is padded. Padded rows write "
    "K and V into SWA slots that an earlier, fuller batch left there."
)


ARGUMENTS: dict[str, dict[str, int | tuple[int, ...]]] = {
    "admit": {"prompt": 1, "chunk": 16},
    "extend": {"pick": 0, "tokens": 3},
    "decode": {"picks": (0, 1)},
    "idle": {},
}


def trial(**changes: Any) -> TrialSettings:
    """Return a trial's settings."""
    settings = TrialSettings(
        runner="decode",
        preset="gpt_oss",
        dtype="float32",
        device="cpu",
        scheme="memo",
        page_size=1,
        full_slots=96,
        swa_slots=64,
        rows=16,
        buckets=(2, 4, 8),
        token_buckets=(4, 12, 24),
        overlap=False,
        bugs=(),
    )
    return replace(settings, **changes)


def played(place: int, step: str, live: Sequence[int], **changes: Any) -> TimelineEntry:
    """Return one step of a time line; one that decodes unless `changes` say otherwise."""
    entry = TimelineEntry(
        place=place,
        step=step,
        mode="decode",
        runner="decode" if changes.get("bucket") else None,
        bucket=None,
        live=tuple(live),
        padded=0,
        parked=(),
        tokens=len(live),
    )
    return replace(entry, **{name: as_tuple(value) for name, value in changes.items()})


def as_tuple(value: Any) -> Any:
    """Return a list as a tuple, anything else as it is."""
    return tuple(value) if isinstance(value, list) else value


def static_input(
    name: str, values: Sequence[int], left_by: Sequence[int], **changes: Any
) -> StaticInputRow:
    """Return one static input of a replay of one live request or token."""
    row = StaticInputRow(
        name=name,
        dtype="int64",
        axis="token",
        padding="fill 0",
        live=1,
        values=tuple(values),
        left_by=tuple(left_by),
        stale=(),
    )
    return replace(row, **changes)


def sub_pool(kind: str, owners: Mapping[int, int], size: int = 80, **changes: Any) -> SlotMap:
    """Return the slots of a sub-pool; `owners` are requests by slot."""
    slots = SlotMap(
        model="target",
        kind=kind,
        owners=tuple(owners.get(slot, NOBODY) for slot in range(size)),
        live=(0,),
        written=(0,),
        differs=(),
        page_size=1,
    )
    return replace(slots, **changes)


FOUR_SLOTS = {3: 0, 8: 0, 9: 1, 22: 1}
FIVE_SLOTS = {5: 0, 6: 0, 12: 0, 30: 1, 31: 1}
"""The requests that own slots of a sub-pool."""


WRITER = Writer(step=2, runner="decode", row=1, request=1)

LOCATION = WrongElement("out_cache_loc_swa", (1,), "9", "0", WRITER, "copied", stale=True)
"""The element to blame in `swa_pad_finding`."""


def suspects(*elements: WrongElement) -> tuple[Suspect, ...]:
    """Return suspects of which static inputs explain a violation, by these elements."""
    return (
        Suspect("index tables", "nothing to reset"),
        Suspect("kept output", "nothing to reset"),
        Suspect("static inputs", "holds", elements),
        Suspect("capture", "violated"),
        Suspect("engine state", "violated"),
    )


DIFFERENCE = FirstDifference(
    op="store_kv",
    model="target",
    layer=0,
    kind="swa",
    tensor="K",
    row=1,
    live=False,
    slot=9,
    head=0,
    element=0,
    eager_bits="0xbda4e730",
    graph_bits="0xbf30d17e",
)


def explanation(**changes: Any) -> Explanation:
    """Return why the worlds differ in `swa_pad_finding`."""
    found = Explanation(
        property_id="kv_parity",
        at=Situation(step=3, runner="decode", bucket=2, live_size=1),
        difference=DIFFERENCE,
        taken=SlotTaken("target", "swa", 1, None, 9, None),
        slot=Slot("target", "swa", 9, "request 1", written_by=WRITER),
        suspects=suspects(LOCATION),
        repeats=True,
        proof=(
            "Step 2 replays decode over requests 0 and 1: it copies 9, the SWA slot of"
            " request 1, into out_cache_loc_swa[1].",
            (
                "Then step 3 replays the same bucket for request 0 alone: row 1 is "
                "padding, and out_cache_loc_swa[1] still holds 9, where 0."
            ),
            "But SWA slot 9 is request 1’s, which is parked and alive: padded row 1 writes its K"
            " there.",
            "So layer 0’s K of slot 9 differs between the worlds.",
        ),
        static_inputs=(
            static_input("input_ids", [41, 17], [3, 2], padding="keep"),
            static_input("positions", [6, 0], [3, 3]),
            static_input("seq_lens", [7, 1], [3, 3], dtype="int32", axis="request"),
            static_input("req_pool_indices", [4, 0], [3, 3], axis="request"),
            static_input("out_cache_loc", [12, 0], [3, 3]),
            static_input("out_cache_loc_swa", [8, 9], [3, 2], dtype="int32", stale=(1,)),
            static_input("encoder_lens", [0, 0], [3, -1], axis="request", padding="fill once"),
            static_input("custom_mask", [1] * 60, [3] * 60, axis="mask bit", stale=(55,)),
        ),
        slots=(
            sub_pool("full", FIVE_SLOTS, written=(0, 12)),
            sub_pool("swa", FOUR_SLOTS, 72, written=(8, 9), differs=(9,)),
            sub_pool("full", FIVE_SLOTS, model="draft"),
            sub_pool("swa", FOUR_SLOTS, 72, model="draft"),
        ),
        sources=(
            SourceLine("the contract row of out_cache_loc_swa", "subjects/runners/decode.py", 36),
            SourceLine("the graph is launched", "subjects/runners/base.py", 187),
        ),
    )
    return replace(found, **changes)


def finding(
    violations: Sequence[Violation],
    timeline: Sequence[TimelineEntry],
    name: str = "case",
    explained: Explanation | None = None,
) -> Finding:
    """Return a finding whose schedule has as many steps as its time line."""
    steps = tuple(
        {"step": entry.step, **ARGUMENTS.get(entry.step, {"pick": 0})} for entry in timeline
    )
    return Finding(
        violations=tuple(violations),
        case_file=f"cases/{name}.json",
        reproduce=f"paritybit replay paritybit-out/20251122T091500Z/cases/{name}.json",
        schedule=Schedule(seed=0, steps=steps),
        timeline=tuple(timeline),
        explanation=explained,
        error=None,
        case=CaseHead("paritybit-case", 2, "kv_parity", 0),
    )


def kv_violation(step: int) -> Violation:
    """Return a violation of kv_parity with both bit patterns."""
    where = {
        "layer": 0,
        "kind": "swa",
        "tensor": "K",
        "slot": 9,
        "head": 0,
        "element": 0,
        "differing_slots": [9],
        "eager_bits": "0xbda4e730",
        "graph_bits": "0xbf30d17e",
        "owner": "request 1",
    }
    message = (
        "layer 0 (swa), K, slot 9 of request 1, head 0, element 0: eager 0xbda4e730,"
        " graph 0xbf30d17e"
    )
    return Violation("kv_parity", step, message, where)


def swa_pad_finding() -> Finding:
    """Return the shrunk counterexample of swa_pad: two requests decode, then one alone."""
    violations = [
        kv_violation(3),
        Violation(
            property="write_frame",
            step=3,
            message="the graph world changed swa slot 9 of request 1, which is not in the step's"
            " out_cache_loc",
            where={"world": "graph", "kind": "swa", "slot": 9, "owner": "request 1"},
        ),
        Violation(
            property="hermetic_replay",
            step=3,
            message=(
                "padded row 1 of 2, output 0: freshly captured 0xbe361e2a, after earlier "
                "replays 0xbfacd223"
            ),
            where={
                "tensor": "logits",
                "row": 1,
                "element": 0,
                "eager_bits": "0xbe361e2a",
                "graph_bits": "0xbfacd223",
                "live": False,
            },
        ),
    ]
    timeline = [
        played(0, "admit", [0], mode="extend"),
        played(1, "admit", [1], mode="extend", parked=[0]),
        played(2, "decode", [0, 1], bucket=2),
        played(
            3,
            "decode",
            [0],
            bucket=2,
            padded=1,
            parked=[1],
            violated=["kv_parity", "write_frame", "hermetic_replay"],
        ),
    ]
    return finding(violations, timeline, "swa_pad-decode", explanation())


def traffic_finding() -> Finding:
    """Return a counterexample with every kind of step and three buckets."""
    timeline = [
        played(0, "admit", [0], mode="extend", tokens=7),
        played(1, "admit", [1], mode="extend", tokens=16, parked=[0]),
        played(2, "extend", [1], mode="extend", tokens=3, parked=[0]),
        played(3, "admit", [2], mode="extend", parked=[0, 1]),
        played(4, "decode", [0, 1, 2], bucket=4, padded=1),
        played(4, "decode", [0, 1, 2], bucket=4, padded=1),
        played(5, "retract", [], mode=None, tokens=0, parked=[0, 2]),
        played(6, "idle", [], mode="idle decode", bucket=2, padded=2, tokens=0, parked=[0, 2]),
        played(7, "resume", [1], mode="extend", tokens=21, parked=[0, 2]),
        played(8, "admit", [3], mode="extend", tokens=5, parked=[0, 2, 1]),
        played(9, "admit", [4], mode="extend", tokens=9, parked=[0, 2, 1, 3]),
        played(10, "decode", [4, 0, 2, 1, 3], bucket=8, padded=3),
        played(11, "evict", [], mode=None, tokens=0, parked=[0, 2, 1, 3, 4]),
        played(12, "decode", [2, 0], bucket=2, parked=[1, 3, 4]),
        played(13, "finish", [], mode=None, tokens=0, parked=[0, 1, 3, 4]),
        played(14, "decode", [3, 4, 0], bucket=4, padded=1, parked=[1], violated=["kv_parity"]),
    ]
    many_owners = {slot: slot % 5 for slot in range(4, 60)}
    explained = explanation(
        at=Situation(step=14, runner="decode", bucket=4, live_size=3),
        static_inputs=tuple(
            static_input(f"static_input_{number}", range(8), [14] * 3 + [12, 10, 10, 10, -1])
            for number in range(12)
        ),
        slots=tuple(sub_pool(kind, many_owners, live=(3, 4, 0)) for kind in ("full", "swa")),
    )
    return finding([kv_violation(14)], timeline, "swa_pad-decode-traffic", explained)


def capture_finding() -> Finding:
    """Return the counterexample of loc_memo_capture: the first replay is already wrong."""
    logits = Violation(
        property="logits_parity",
        step=1,
        message="live row 0 (request 0), logit 0: eager 0xc09d3b0a, graph 0xc0aa7b15",
        where={
            "tensor": "logits",
            "row": 0,
            "element": 0,
            "eager_bits": "0xc09d3b0a",
            "graph_bits": "0xc0aa7b15",
            "owner": "request 0",
        },
    )
    breach = "the graph contains 0 translations; its location scheme needs 1"
    path = Violation(
        property="captured_path",
        step=1,
        message=breach,
        where={"breaches": [breach]},
    )
    violated = ["logits_parity", "kv_parity", "captured_path"]
    timeline = [
        played(0, "admit", [0], mode="extend"),
        played(1, "decode", [0], bucket=2, padded=1, violated=violated),
    ]
    explained = explanation(
        at=Situation(step=1, runner="decode", bucket=2, live_size=1),
        slot=None,
        suspects=(Suspect("capture", "holds"), Suspect("engine state", "violated")),
    )
    violations = [logits, kv_violation(1), path]
    return finding(violations, timeline, "loc_memo_capture-decode", explained)


def warning_finding() -> Finding:
    """Return a counterexample without bits: an eager forward that warns."""
    message = (
        "loc changed mid-forward from 1 elements to 1 without invalidate_loc_cache();"
        " a call site may be missing"
    )
    violation = Violation(
        property="log_hygiene",
        step=0,
        message=f"eager forward: {message}",
        where={"messages": [message], "path": "eager forward"},
    )
    timeline = [played(0, "admit", [0], mode="extend", violated=["log_hygiene"])]
    explained = Explanation(
        property_id="log_hygiene",
        at=Situation(step=0, runner="piecewise"),
        proof=("Step 0 prefills eagerly.", "So the pool warns, every value being right."),
        sources=(SourceLine("logged in translate_window", "subjects/key_lists.py", 339),),
    )
    return finding([violation], timeline, "loc_memo_warning-decode", explained)


def bug(name: str, status: HuntStatus, runner: str = "decode", **changes: Any) -> BugRow:
    """Return one hunt; nothing was found unless `changes` say so."""
    caught = status == "caught"
    row = BugRow(
        bug=name,
        runner=runner,
        trial=trial(bugs=(name,), runner=runner),
        source="generated",
        thread=f"{PULL}23552, fixed by {PULL}24743",
        mechanism=SWA_PAD,
        detected_by="kv_parity",
        unaffected=None,
        status=status,
        error=None,
        schedules=6,
        schedules_to_detection=6 if caught else None,
        steps=134,
        replays=57,
        padded_replays=36,
        seconds=7.4,
        events={"decode: bucket 2": 57, "padded replay": 36},
        capture_warnings=0,
        seen=("kv_parity",) if caught else (),
        reach=Reach(1, 1, 1, 2, 3) if caught else Reach(50, 12, 0, 4, None),
        finding=swa_pad_finding() if caught else None,
    )
    return replace(row, **{key: as_tuple(value) for key, value in changes.items()})


def clean_trials() -> tuple[CleanRow, ...]:
    """Return nine clean trials; the required events are spread over them."""
    costly = ("padding_noninterference", "determinism", "batch_invariance", "dense_agreement")
    step_properties = tuple(name for name in PROPERTIES if name not in costly)
    trials: list[CleanRow] = []
    for number, preset in enumerate(("gpt_oss", "gemma3", "mimo") * 3):
        traffic = number >= 6
        rest = {name: count % 9 if number == 0 else 0 for name, count in EVENTS.items()}
        buckets = {"decode: bucket 2": 41, "decode: bucket 4": 30, "decode: bucket 8": 12}
        trials.append(
            CleanRow(
                trial=trial(
                    preset=preset,
                    scheme=("memo", "preset", "per_layer")[number // 3],
                    page_size=(1, 4, 1)[number // 3],
                    dtype="bfloat16" if number % 2 else "float32",
                ),
                source="traffic" if traffic else "generated",
                status="green",
                error=None,
                schedules=4 if traffic else 50,
                steps=812 + 97 * number,
                replays=402 + 31 * number,
                padded_replays=233 + 17 * number,
                seconds=4.1 + number,
                events={name: count // 9 + rest[name] for name, count in EVENTS.items()} | buckets,
                capture_warnings=0,
                finding=None,
                properties=step_properties if traffic else tuple(PROPERTIES),
            )
        )
    return tuple(trials)


def contracts() -> tuple[Contract, ...]:
    """Return the contracts of the decode runner under two location schemes, cut short."""
    rows = (
        ContractRow("input_ids", "token", "int64", "keep"),
        ContractRow("positions", "token", "int64", "fill 0"),
        ContractRow("seq_lens", "request", "int32", "fill 1"),
        ContractRow("out_cache_loc", "token", "int64", "fill 0"),
        ContractRow("encoder_lens", "request", "int32", "fill once"),
    )
    swa = ContractRow("out_cache_loc_swa", "token", "int32", "fill 0")
    return Contract("decode", "memo", rows), Contract("decode", "preset", (*rows, swa))


def green_bugs() -> tuple[BugRow, ...]:
    """Return hunts that all ended as the table says."""
    memo = f"{PULL}25824, fixed by {PULL}26152"
    return (
        bug("swa_pad", "caught", seen=("kv_parity", "write_frame", "hermetic_replay")),
        bug(
            "swa_pad",
            "caught",
            source="traffic",
            schedules=2,
            schedules_to_detection=2,
            finding=traffic_finding(),
        ),
        bug(
            "loc_memo_capture",
            "caught",
            thread=f"{PULL}25824",
            mechanism="The memo is not cleared at the top of the warm-up and capture runs: the"
            " capture hits what the warm-up left, and every replay writes to its SWA slots.",
            seen=("logits_parity", "kv_parity", "captured_path"),
            schedules_to_detection=5,
            finding=capture_finding(),
        ),
        bug(
            "loc_memo_warning",
            "caught",
            thread=memo,
            mechanism="Nobody clears the memo around the window translation, so it takes turns"
            " with out_cache_loc's and the pool warns, every value being right.",
            detected_by="log_hygiene",
            seen=("log_hygiene",),
            schedules=1,
            schedules_to_detection=1,
            capture_warnings=3,
            finding=warning_finding(),
        ),
        bug(
            "loc_memo_warning.entry",
            "unaffected",
            thread=memo,
            mechanism="The memo is not cleared before a path is chosen.",
            detected_by=None,
            unaffected=HIDDEN,
            schedules=50,
            reach=None,
        ),
    )


def pairs() -> tuple[BugOnRunner, ...]:
    """Return each bug on each runner, whether it was tried there or not."""
    return tuple(
        BugOnRunner(
            bug=name,
            runner=runner,
            unaffected=unaffected.get(runner),
            can_be_switched_on="no static input" not in unaffected.get(runner, ""),
        )
        for name, unaffected in BUGS.items()
        for runner in RUNNERS
    )


def green() -> Record:
    """Return the record of a green run."""
    return Record(
        command="paritybit regress --source generated,traffic",
        seed=0,
        examples=50,
        started="2026-11-20T16:00:00Z",
        seconds=341.2,
        verdict="green",
        message="Clean is green on 9 trials; 5 of 5 hunts ended as the table says.",
        environment=Environment(
            device="cpu",
            device_name="CPU, 2 cores",
            python="3.11.7",
            torch="2.13.0+cpu",
            triton="3.6.0",
            numpy="2.3.5",
            hypothesis="6.170",
            paritybit="0.1.0",
            commit="abc1234",
            dirty=False,
        ),
        clean=clean_trials(),
        bugs=green_bugs(),
        pairs=pairs(),
        engine_runners={name: (name,) for name in RUNNERS},
        uncompiled_runners=("cpu_graph",),
        contracts=contracts(),
        properties=dict(PROPERTIES),
        required_events=tuple(EVENTS),
    )


def red_bugs() -> tuple[BugRow, ...]:
    """Return hunts that did not end as the table says, each in another way."""
    return (
        bug(
            "swa_int64",
            "missed",
            mechanism="out_cache_loc_swa is int64 while the pool's SWA locations are int32.",
            detected_by="index_contract",
            schedules=50,
        ),
        bug(
            "req_pool_pad",
            "wrong property",
            thread=f"{PULL}26292",
            mechanism=(
                "req_pool_indices is not reset when the batch is padded. The dummy attention "
                "of a padded row follows a stale request row in req_to_token to KV that was "
                "freed or belongs to another request."
            ),
            detected_by="hermetic_replay",
            schedules_to_detection=6,
            seen=("kv_parity", "write_frame"),
            finding=swa_pad_finding(),
        ),
        bug(
            "loc_memo_warning.before_window",
            "affected after all",
            mechanism="The memo is not cleared before the window translation.",
            detected_by=None,
            unaffected="entry clears the memo",
            seen=("log_hygiene",),
            finding=warning_finding(),
        ),
        bug(
            "loc_memo_warning.entry+before_window",
            "vacuous",
            mechanism="Nothing clears the memo before the window translation.",
            detected_by="log_hygiene",
            replays=0,
            padded_replays=0,
        ),
    )


def red() -> Record:
    """Return the record of a run in which everything that can go wrong did."""
    record = green()
    record = with_clean(record, 4, status="red", finding=swa_pad_finding())
    record = with_clean(record, 7, status="vacuous", replays=0, padded_replays=0)
    return replace(
        without_event(record, "pool full"),
        verdict="red",
        message="Clean is red on 1 of 9 trials; 5 of 9 hunts ended as the table says.",
        environment=replace(record.environment, commit=None, dirty=True, triton=None),
        bugs=(*record.bugs, *red_bugs()),
    )


def without_event(record: Record, name: str) -> Record:
    """Return a record whose clean trials never reached a state."""
    clean = (
        replace(row, events={event: n for event, n in row.events.items() if event != name})
        for row in record.clean
    )
    return replace(record, clean=tuple(clean))


def with_clean(record: Record, place: int, **changes: Any) -> Record:
    """Return a record with one of its clean trials changed."""
    clean = list(record.clean)
    clean[place] = replace(clean[place], **changes)
    return replace(record, clean=tuple(clean))


def with_bug(record: Record, place: int, **changes: Any) -> Record:
    """Return a record with one of its hunts changed."""
    bugs = list(record.bugs)
    bugs[place] = replace(bugs[place], **changes)
    return replace(record, bugs=tuple(bugs))


def finding_of(record: Record, place: int) -> Finding:
    """Return the finding of a hunt that has one."""
    found = record.bugs[place].finding
    assert found is not None
    return found


def with_finding(record: Record, place: int, **changes: Any) -> Record:
    """Return a record with the finding of one of its hunts changed."""
    return with_bug(record, place, finding=replace(finding_of(record, place), **changes))


def findings(record: Record) -> list[Finding]:
    """Return all findings of a record, in the order of its page."""
    hunts = (*record.clean, *record.bugs)
    return [hunt.finding for hunt in hunts if hunt.finding is not None]


def without_finding(record: Record, place: int) -> Record:
    """Return a record one hunt of which missed its bug."""
    return with_bug(
        record, place, status="missed", finding=None, seen=(), schedules_to_detection=None
    )


def many(count: int) -> Record:
    """Return the record of a run with `count` findings, each explained."""
    names = list(BUGS)
    traffic, generated = traffic_finding(), swa_pad_finding()
    bugs = (
        bug(
            names[number % len(names)],
            "caught",
            RUNNERS[number % len(RUNNERS)],
            finding=traffic if number % 4 else generated,
        )
        for number in range(count)
    )
    return replace(red(), bugs=tuple(bugs))


def interrupted() -> Record:
    """Return the record of a run that was cut short after its first bug."""
    record = green()
    return replace(
        record,
        verdict="interrupted",
        message="Cut short after 2 of 9 trials and 1 of 5 hunts.",
        clean=record.clean[:2],
        bugs=record.bugs[:1],
    )


def traceback_of(raised: str) -> str:
    """Return a traceback as a record holds it, of one frame."""
    frame = '  File "harness/explain/report.py", line 1, in explanation'
    return f"Traceback (most recent call last):\n{frame}\n{raised}\n"


def failed_explainer() -> Record:
    """Return the record of a run in which the explainer of one finding failed."""
    traceback = traceback_of("ZeroDivisionError: division by zero")
    error = "the explainer failed: ZeroDivisionError: division by zero"
    record = with_finding(replace(green(), verdict="red"), 0, explanation=None, error=traceback)
    return with_bug(record, 0, status="failed", error=error)


def hostile() -> Record:
    """Return a record whose every free text is an attack."""
    record = red()
    first, *others = record.contracts
    row, *rows = first.rows
    attacked_contract = replace(first, rows=(replace(row, name=HOSTILE), *rows))
    attacked_pairs = [replace(pair, bug=HOSTILE) for pair in record.pairs[: len(RUNNERS)]]
    record = replace(
        record,
        command=HOSTILE,
        message=HOSTILE,
        started=HOSTILE,
        environment=replace(record.environment, device_name=HOSTILE, torch=HOSTILE, commit=HOSTILE),
        properties=record.properties | {"kv_parity": HOSTILE},
        contracts=(attacked_contract, *others),
        pairs=tuple(
            replace(
                pair,
                runner=pair.runner.replace("cpu_graph", HOSTILE),
                unaffected=pair.unaffected and HOSTILE,
            )
            for pair in (*record.pairs, *attacked_pairs)
        ),
    )
    record = with_clean(record, 0, events=record.clean[0].events | {HOSTILE: 4})
    record = with_clean(record, 4, trial=trial(preset=HOSTILE))
    return with_bug(
        record,
        0,
        bug=HOSTILE,
        runner=HOSTILE,
        source=HOSTILE,
        mechanism=HOSTILE,
        unaffected=HOSTILE,
        error=HOSTILE,
        thread=f"javascript:alert(1) data:text/html,x https://example.org/{HOSTILE}",
        finding=hostile_finding(finding_of(record, 0)),
    )


def hostile_finding(found: Finding) -> Finding:
    """Return a finding whose every free text is an attack."""
    violation, *violations = found.violations
    where = violation.where | {"owner": HOSTILE, "eager_bits": HOSTILE}
    step, *steps = found.schedule.steps
    entry, *entries = found.timeline
    return replace(
        found,
        case_file=HOSTILE,
        reproduce=HOSTILE,
        error=HOSTILE,
        schedule=replace(found.schedule, steps=(step | {"step": HOSTILE}, *steps)),
        timeline=(replace(entry, step=HOSTILE), *entries),
        violations=(replace(violation, message=HOSTILE, where=where), *violations),
        explanation=hostile_explanation(),
    )


def hostile_explanation() -> Explanation:
    """Return an explanation whose every free text is an attack."""
    explained = explanation()
    slot = explained.slot
    assert slot is not None
    row, *rows = explained.static_inputs
    pool, *pools = explained.slots
    return replace(
        explained,
        proof=(HOSTILE, HOSTILE),
        slot=replace(slot, owner=HOSTILE),
        suspects=suspects(replace(LOCATION, value=HOSTILE)),
        static_inputs=(replace(row, name=HOSTILE, dtype=HOSTILE), *rows),
        slots=(replace(pool, model=HOSTILE, kind=HOSTILE), *pools),
        sources=(SourceLine(HOSTILE, HOSTILE, 1),),
    )


SAMPLES = {
    "green": green(),
    "red": red(),
    "interrupted": interrupted(),
    "failed explainer": failed_explainer(),
    "hostile": hostile(),
}
"""The records that every page must show right."""
