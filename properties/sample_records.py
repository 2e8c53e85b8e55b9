"""Run records made by hand: a green, a red, an interrupted and a hostile one."""

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from harness.campaigns.record import FORMAT, VERSION
from harness.checks.table import PROPERTIES

Record = dict[str, Any]

HOSTILE = "</pre></title><script>alert('x')</script>\"' onload=\"alert(1)\" {{ 7 * 7 }} &amp;"

PULL = "https://github.com/sgl-project/sglang/pull/"

EVENTS = {
    "padded replay": 1213,
    "several padded rows": 871,
    "replay without padding": 640,
    "idle replay": 212,
    "batch of several rows": 944,
    "batch shrank in its bucket": 388,
    "batch grew again in its bucket": 301,
    "smaller bucket after a larger": 512,
    "larger bucket after a smaller": 498,
    "requests parked": 1530,
    "prompt of one token": 420,
    "prompt beyond the window": 377,
    "prompt in chunks": 266,
    "length window - 1": 208,
    "length window": 231,
    "length window + 1": 190,
    "evicted": 77,
    "finished": 349,
    "retracted": 180,
    "resumed": 96,
    "slot issued again": 702,
    "SWA sub-pool nearly full": 58,
    "full sub-pool nearly full": 9,
    "pool full": 3,
    "decode: replay": 1853,
    "decode: padded replay": 1213,
}

RUNNERS = ("decode", "target_verify", "cpu_graph", "piecewise")

LACKS_SWA = "it has no static input out_cache_loc_swa"
HIDDEN = "before_window clears the memo right before the window translation"

BUGS: dict[str, dict[str, str]] = {
    "swa_pad": {
        "cpu_graph": LACKS_SWA,
        "piecewise": "attention is narrowed to the real tokens: nobody reads the padded locations",
    },
    "swa_int64": {"cpu_graph": LACKS_SWA},
    "req_pool_pad": {"piecewise": "it has no static input req_pool_indices"},
    "loc_memo_capture": {"cpu_graph": "nothing is captured: each forward translates anew"},
    "loc_memo_warning": {},
    "loc_memo_warning.entry": dict.fromkeys(RUNNERS, HIDDEN),
    "loc_memo_warning.before_window": dict.fromkeys(RUNNERS, "entry clears the memo"),
    "loc_memo_warning.entry+before_window": {},
}
"""Of each bug: the runners that it cannot harm, and why."""

SWA_PAD = (
    "out_cache_loc_swa is not reset when the batch is padded: padded rows write their K and V"
    " into SWA slots that an earlier, fuller batch left there."
)


ARGUMENTS: dict[str, Record] = {
    "admit": {"prompt": 1, "chunk": 16},
    "extend": {"pick": 0, "tokens": 3},
    "decode": {"picks": [0, 1]},
    "idle": {},
}


def trial(**changes: Any) -> Record:
    """Return a trial's settings."""
    settings: Record = {
        "runner": "decode",
        "preset": "gpt_oss",
        "dtype": "float32",
        "device": "cpu",
        "scheme": "memo",
        "page_size": 1,
        "full_slots": 96,
        "swa_slots": 64,
        "rows": 16,
        "buckets": [2, 4, 8],
        "token_buckets": [4, 12, 24],
        "bugs": [],
    }
    return settings | changes


def played(place: int, step: str, live: list[int], **changes: Any) -> Record:
    """Return one step of a time line; one that decodes unless `changes` say otherwise."""
    values: Record = {
        "place": place,
        "step": step,
        "mode": "decode",
        "runner": "decode" if changes.get("bucket") else None,
        "bucket": None,
        "live": live,
        "padded": 0,
        "parked": [],
        "tokens": len(live),
        "violated": [],
    }
    return values | changes


def static_input(name: str, values: list[Any], left_by: list[int], **changes: Any) -> Record:
    """Return one static input of a replay of one live request or token."""
    message = {"name": name, "dtype": "int64", "axis": "token", "padding": "fill 0", "live": 1}
    return message | {"values": values, "left_by": left_by, "stale": []} | changes


NOBODY = -1


def sub_pool(kind: str, owners: Mapping[int, int], size: int = 80, **changes: Any) -> Record:
    """Return the slots of a sub-pool; `owners` are requests by slot."""
    message: Record = {"model": "target", "kind": kind, "live": [0], "page_size": 1}
    slots = [owners.get(slot, NOBODY) for slot in range(size)]
    return message | {"owners": slots, "written": [0], "differs": []} | changes


def explanation(**changes: Any) -> Record:
    """Return why the worlds differ in `swa_pad_finding`, from the stale location to the bits."""
    values: Record = {
        "property": "kv_parity",
        "step": 3,
        "runner": "decode",
        "bucket": 2,
        "live_size": 1,
        "blame": "inputs",
        "third_arm": "as the graph",
        "difference": {
            "op": "store_kv",
            "model": "target",
            "layer": 0,
            "kind": "swa",
            "tensor": "K",
            "row": 1,
            "live": False,
            "slot": 9,
            "head": 0,
            "element": 0,
            "eager_bits": "0xbda4e730",
            "graph_bits": "0xbf30d17e",
        },
        "index": {
            "buffer": "out_cache_loc_swa",
            "element": 1,
            "value": 9,
            "right": 0,
            "stale": True,
            "row": 1,
            "key": None,
            "read": 9,
            "read_right": 0,
            "left_by": {"step": 2, "runner": "decode", "row": 1, "request": 1, "how": "copied"},
        },
        "slot": {
            "model": "target",
            "kind": "swa",
            "slot": 9,
            "owner": "request 1",
            "written_by": {"step": 2, "runner": "decode", "row": 1, "live": True, "request": 1},
        },
        "site": None,
        "proof": [
            "Let step 2 replay decode over requests 0 and 1: it copies 9, the SWA slot of"
            " request 1, into out_cache_loc_swa[1].",
            "Then step 3 replays the same bucket for request 0 alone: row 1 is padding, and"
            " out_cache_loc_swa[1] still holds 9, where 0 would be right.",
            "But SWA slot 9 is request 1’s, which is parked and alive: padded row 1 writes its K"
            " there.",
            "So layer 0’s K of slot 9 differs between the worlds.",
        ],
        "static_inputs": [
            static_input("input_ids", [41, 17], [3, 2], padding="keep"),
            static_input("positions", [6, 0], [3, 3]),
            static_input("seq_lens", [7, 1], [3, 3], dtype="int32", axis="request"),
            static_input("req_pool_indices", [4, 0], [3, 3], axis="request"),
            static_input("out_cache_loc", [12, 0], [3, 3]),
            static_input("out_cache_loc_swa", [8, 9], [3, 2], dtype="int32", stale=[1]),
            static_input("encoder_lens", [0, 0], [3, -1], axis="request", padding="fill once"),
            static_input("custom_mask", [1] * 60, [3] * 60, axis="mask bit", stale=[55]),
        ],
        "slots": [
            sub_pool("full", {5: 0, 6: 0, 12: 0, 30: 1, 31: 1}, written=[0, 12]),
            sub_pool("swa", {3: 0, 8: 0, 9: 1, 22: 1}, 72, written=[8, 9], differs=[9]),
            sub_pool("full", {5: 0, 6: 0, 12: 0, 30: 1, 31: 1}, model="draft"),
            sub_pool("swa", {3: 0, 8: 0, 9: 1, 22: 1}, 72, model="draft"),
        ],
    }
    return values | changes


def finding(
    violations: list[Record],
    timeline: list[Record],
    name: str = "case",
    explained: Record | None = None,
) -> Record:
    """Return a finding whose schedule has as many steps as its time line."""
    return {
        "violations": violations,
        "case_file": f"cases/{name}.json",
        "reproduce": f"paritybit replay reports/out/latest/cases/{name}.json",
        "schedule": {
            "seed": 0,
            "steps": [
                {"step": each["step"], **ARGUMENTS.get(each["step"], {"pick": 0})}
                for each in timeline
            ],
        },
        "timeline": timeline,
        "explanation": explained,
        "case": {"format": "paritybit-case", "version": 2, "target": "kv_parity", "seed": 0},
    }


def kv_violation(step: int) -> Record:
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
    return {"property": "kv_parity", "step": step, "message": message, "where": where}


def swa_pad_finding() -> Record:
    """Return the shrunk counterexample of swa_pad: two requests decode, then one alone."""
    violations = [
        kv_violation(3),
        {
            "property": "write_frame",
            "step": 3,
            "message": "the graph world changed swa slot 9 of request 1, which is not in the step's"
            " out_cache_loc",
            "where": {"world": "graph", "kind": "swa", "slot": 9, "owner": "request 1"},
        },
        {
            "property": "hermetic_replay",
            "step": 3,
            "message": "padded row 1 of 2, output 0: just captured 0xbe361e2a, with its history"
            " 0xbfacd223",
            "where": {
                "tensor": "logits",
                "row": 1,
                "element": 0,
                "eager_bits": "0xbe361e2a",
                "graph_bits": "0xbfacd223",
                "live": False,
            },
        },
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


def traffic_finding() -> Record:
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
        step=14,
        bucket=4,
        live_size=3,
        static_inputs=[
            static_input(f"static_input_{number}", list(range(8)), [14] * 3 + [12, 10, 10, 10, -1])
            for number in range(12)
        ],
        slots=[sub_pool(kind, many_owners, live=[3, 4, 0]) for kind in ("full", "swa")],
    )
    return finding([kv_violation(14)], timeline, "swa_pad-decode-traffic", explained)


def capture_finding() -> Record:
    """Return the counterexample of loc_memo_capture: the first replay is already wrong."""
    logits = {
        "property": "logits_parity",
        "step": 1,
        "message": "live row 0 (request 0), logit 0: eager 0xc09d3b0a, graph 0xc0aa7b15",
        "where": {
            "tensor": "logits",
            "row": 0,
            "element": 0,
            "eager_bits": "0xc09d3b0a",
            "graph_bits": "0xc0aa7b15",
            "owner": "request 0",
        },
    }
    breach = "the graph holds 0 translations; its era has 1"
    path = {
        "property": "captured_path",
        "step": 1,
        "message": breach,
        "where": {"breaches": [breach]},
    }
    violated = ["logits_parity", "kv_parity", "captured_path"]
    timeline = [
        played(0, "admit", [0], mode="extend"),
        played(1, "decode", [0], bucket=2, padded=1, violated=violated),
    ]
    explained = explanation(
        step=1,
        blame="captured state",
        third_arm="as the eager world",
        index=explanation()["index"]
        | {
            "buffer": None,
            "element": None,
            "left_by": {
                "step": -1,
                "runner": "decode",
                "row": 1,
                "request": None,
                "how": "capture",
            },
        },
        slot=None,
        site={
            "function": "memoised_translation",
            "file": "subjects/pool.py",
            "message": "captured without its translation",
        },
    )
    violations = [logits, kv_violation(1), path]
    return finding(violations, timeline, "loc_memo_capture-decode", explained)


def warning_finding() -> Record:
    """Return a counterexample without bits: an eager forward that warns."""
    message = (
        "loc changed mid-forward from 1 elements to 1 without invalidate_loc_cache();"
        " a call site may be missing"
    )
    violation = {
        "property": "log_hygiene",
        "step": 0,
        "message": f"eager forward: {message}",
        "where": {"messages": [message], "path": "eager forward"},
    }
    timeline = [played(0, "admit", [0], mode="extend", violated=["log_hygiene"])]
    explained = explanation(
        property="log_hygiene",
        step=0,
        runner="piecewise",
        bucket=None,
        live_size=None,
        blame="build",
        third_arm=None,
        difference=None,
        index=None,
        slot=None,
        site={
            "function": "translate_window",
            "file": "subjects/key_lists.py",
            "message": "translates while the memo holds another location",
        },
        proof=["Let step 0 prefill eagerly.", "So the pool warns, every value being right."],
        static_inputs=[],
        slots=[],
    )
    return finding([violation], timeline, "loc_memo_warning-decode", explained)


def bug(name: str, status: str, runner: str = "decode", **changes: Any) -> Record:
    """Return one hunt; nothing was found unless `changes` say so."""
    values: Record = {
        "bug": name,
        "runner": runner,
        "trial": trial(bugs=[name], runner=runner),
        "source": "generated",
        "thread": f"{PULL}23552, mended by {PULL}24743",
        "mechanism": SWA_PAD,
        "detected_by": "kv_parity",
        "unaffected": None,
        "status": status,
        "error": None,
        "schedules": 6,
        "schedules_to_detection": None,
        "steps": 134,
        "replays": 57,
        "padded_replays": 36,
        "seconds": 7.4,
        "events": {"decode: bucket 2": 57, "padded replay": 36},
        "capture_warnings": 0,
        "seen": [],
        "finding": None,
    }
    if status == "caught":
        values |= {"schedules_to_detection": 6, "seen": ["kv_parity"], "finding": swa_pad_finding()}
    return values | changes


def clean_trials() -> list[Record]:
    """Return nine clean trials; the required events are spread over them."""
    costly = ("padding_noninterference", "determinism", "batch_invariance", "dense_agreement")
    step_properties = [name for name in PROPERTIES if name not in costly]
    trials: list[Record] = []
    for number, preset in enumerate(("gpt_oss", "gemma3", "mimo") * 3):
        traffic = number >= 6
        settings = trial(
            preset=preset,
            scheme=("memo", "preset", "per_layer")[number // 3],
            page_size=(1, 4, 1)[number // 3],
            dtype="bfloat16" if number % 2 else "float32",
        )
        trials.append(
            {
                "trial": settings,
                "source": "traffic" if traffic else "generated",
                "status": "green",
                "error": None,
                "schedules": 4 if traffic else 50,
                "steps": 812 + 97 * number,
                "replays": 402 + 31 * number,
                "padded_replays": 233 + 17 * number,
                "seconds": 4.1 + number,
                "events": {name: count // 9 for name, count in EVENTS.items()}
                | {"decode: bucket 2": 41, "decode: bucket 4": 30, "decode: bucket 8": 12},
                "capture_warnings": 0,
                "properties": step_properties if traffic else list(PROPERTIES),
                "finding": None,
            }
        )
    trials[0]["events"] = Counter(trials[0]["events"])
    trials[0]["events"].update({name: count % 9 for name, count in EVENTS.items()})
    return trials


def contracts() -> list[Record]:
    """Return the contracts of the decode runner in two eras, cut short."""
    rows = [
        {"name": "input_ids", "axis": "token", "dtype": "int64", "padding": "keep"},
        {"name": "positions", "axis": "token", "dtype": "int64", "padding": "fill 0"},
        {"name": "seq_lens", "axis": "request", "dtype": "int32", "padding": "fill 1"},
        {"name": "out_cache_loc", "axis": "token", "dtype": "int64", "padding": "fill 0"},
        {"name": "encoder_lens", "axis": "request", "dtype": "int32", "padding": "fill once"},
    ]
    swa = {"name": "out_cache_loc_swa", "axis": "token", "dtype": "int32", "padding": "fill 0"}
    return [
        {"runner": "decode", "scheme": "memo", "rows": rows},
        {"runner": "decode", "scheme": "preset", "rows": [*rows, swa]},
    ]


def green_bugs() -> list[Record]:
    """Return hunts that all ended as the table says."""
    memo = f"{PULL}25824, mended by {PULL}26152"
    return [
        bug("swa_pad", "caught", seen=["kv_parity", "write_frame", "hermetic_replay"]),
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
            seen=["logits_parity", "kv_parity", "captured_path"],
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
            seen=["log_hygiene"],
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
        ),
    ]


def pairs() -> list[Record]:
    """Return each bug on each runner, whether it was tried there or not."""
    return [
        {
            "bug": name,
            "runner": runner,
            "unaffected": unaffected.get(runner),
            "can_be_switched_on": "no static input" not in unaffected.get(runner, ""),
        }
        for name, unaffected in BUGS.items()
        for runner in RUNNERS
    ]


def green() -> Record:
    """Return the record of a green run."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "command": "paritybit regress --source generated,traffic",
        "seed": 0,
        "examples": 50,
        "started": "2026-11-20T16:00:00Z",
        "seconds": 341.2,
        "verdict": "green",
        "message": "Clean is green on 9 trials; 5 of 5 hunts ended as the table says.",
        "environment": {
            "device": "cpu",
            "device_name": "CPU, 2 cores",
            "python": "3.11.7",
            "torch": "2.13.0+cpu",
            "triton": "3.6.0",
            "numpy": "2.3.5",
            "hypothesis": "6.170",
            "paritybit": "0.1.0",
            "commit": "abc1234",
            "dirty": False,
        },
        "clean": clean_trials(),
        "bugs": green_bugs(),
        "pairs": pairs(),
        "engine_runners": {name: [name] for name in RUNNERS},
        "contracts": contracts(),
        "properties": dict(PROPERTIES),
        "required_events": list(EVENTS),
    }


def red() -> Record:
    """Return the record of a run in which everything that can go wrong did."""
    record = green()
    record |= {
        "verdict": "red",
        "message": "Clean is red on 1 of 9 trials; 5 of 9 hunts ended as the table says.",
    }
    record["environment"] |= {"commit": None, "dirty": True, "triton": None}
    record["bugs"] += [
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
            mechanism="req_pool_indices is not reset when the batch is padded: the dummy attention"
            " of padded rows follows req_to_token of a stale row into freed or foreign KV.",
            detected_by="hermetic_replay",
            schedules_to_detection=6,
            seen=["kv_parity", "write_frame"],
            finding=swa_pad_finding(),
        ),
        bug(
            "loc_memo_warning.before_window",
            "affected after all",
            mechanism="The memo is not cleared before the window translation.",
            detected_by=None,
            unaffected="entry clears the memo",
            seen=["log_hygiene"],
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
    ]
    record["clean"][4] |= {"status": "red", "finding": swa_pad_finding()}
    record["clean"][7] |= {"status": "vacuous", "replays": 0, "padded_replays": 0}
    for each in record["clean"]:
        each["events"] = {k: n for k, n in each["events"].items() if k != "pool full"}
    return record


def without_finding(record: Record, place: int) -> Record:
    """Return a record one hunt of which missed its bug."""
    other = deepcopy(record)
    missed: Record = {
        "status": "missed",
        "finding": None,
        "seen": [],
        "schedules_to_detection": None,
    }
    other["bugs"][place] |= missed
    return other


def many(count: int) -> Record:
    """Return the record of a run with `count` findings, each explained."""
    record = red()
    names = list(BUGS)
    record["bugs"] = [
        bug(
            names[number % len(names)],
            "caught",
            RUNNERS[number % len(RUNNERS)],
            finding=traffic_finding() if number % 4 else swa_pad_finding(),
        )
        for number in range(count)
    ]
    return record


def interrupted() -> Record:
    """Return the record of a run that was cut short after its first bug."""
    record = green()
    record |= {
        "verdict": "interrupted",
        "message": "Cut short after 2 of 9 trials and 1 of 5 hunts.",
    }
    record["clean"], record["bugs"] = record["clean"][:2], record["bugs"][:1]
    return record


def hostile() -> Record:
    """Return a record whose every free text is an attack."""
    record = red()
    record |= {"command": HOSTILE, "message": HOSTILE, "started": HOSTILE}
    record["environment"] |= dict.fromkeys(("device_name", "torch", "commit"), HOSTILE)
    record["properties"]["kv_parity"] = HOSTILE
    record["contracts"][0]["rows"][0]["name"] = HOSTILE
    record["clean"][0]["events"][HOSTILE] = 4
    record["clean"][4]["trial"]["preset"] = HOSTILE
    attacked = record["bugs"][0]
    attacked |= dict.fromkeys(("bug", "runner", "source", "mechanism", "unaffected"), HOSTILE)
    record["pairs"] += [pair | {"bug": HOSTILE} for pair in record["pairs"][: len(RUNNERS)]]
    for pair in record["pairs"]:
        pair["runner"] = pair["runner"].replace("cpu_graph", HOSTILE)
        pair["unaffected"] = pair["unaffected"] and HOSTILE
    attacked["thread"] = f"javascript:alert(1) data:text/html,x https://example.org/{HOSTILE}"
    attacked["finding"] |= dict.fromkeys(("case_file", "reproduce"), HOSTILE)
    attacked["finding"]["schedule"]["steps"][0]["step"] = HOSTILE
    attacked["finding"]["timeline"][0]["step"] = HOSTILE
    attacked["finding"]["violations"][0]["message"] = HOSTILE
    attacked["finding"]["explanation"] |= {"proof": [HOSTILE, HOSTILE], "blame": HOSTILE}
    attacked["finding"]["explanation"]["static_inputs"][0] |= {"name": HOSTILE, "dtype": HOSTILE}
    attacked["finding"]["explanation"]["static_inputs"][0]["values"][0] = HOSTILE
    attacked["finding"]["explanation"]["slots"][0] |= {"model": HOSTILE, "kind": HOSTILE}
    attacked["finding"]["explanation"]["slot"]["owner"] = HOSTILE
    record["engines"] = [
        {
            "release": HOSTILE,
            "faults": {HOSTILE: HOSTILE},
            "stubbed": [HOSTILE],
            "emulated": [HOSTILE],
            "message": HOSTILE,
        }
    ]
    attacked["finding"]["violations"][0]["where"] |= {"owner": HOSTILE, "eager_bits": HOSTILE}
    return record


SAMPLES = {"green": green, "red": red, "interrupted": interrupted, "hostile": hostile}
