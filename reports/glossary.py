"""The glossary of the page. `docs/glossary.md` is generated from it."""

from collections.abc import Mapping

GLOSSARY: Mapping[str, str] = {
    "runner": (
        "A part of the engine that runs one kind of batch by replaying captured CUDA graphs, "
        "for example decode or target_verify."
    ),
    "bucket, padding": (
        "A bucket is a batch size for which a graph was captured. A smaller batch is filled "
        "up to the next bucket with padded rows, which belong to no request."
    ),
    "live row, tail": (
        "A live row belongs to a request. The tail of a static input is its part for padded rows."
    ),
    "schedule": (
        "A list of steps: admit a request, decode, draft, verify, finish. Each schedule is "
        "played twice, once with eager forwards (the eager run) and once with graph replay "
        "(the graph run). In explore, a list of actions."
    ),
    "laboratory, sanitizer": (
        "The laboratory tests the built-in engine with generated schedules. The sanitizer checks a "
        "whole engine while it serves requests."
    ),
    "run": (
        "One call of a command, which has its own folder, or one of the two plays of a schedule."
    ),
    "step": "One element of a schedule. It needs at most one forward pass.",
    "row": (
        "A request's part of a batch: one token, or several tokens of its prompt or drafts. In a "
        "contract, a static input."
    ),
    "group": "Layers that share slot numbers, for example all sliding-window layers.",
    "idle": (
        "An engine without a request is idle. An idle step replays a graph with padded rows only."
    ),
    "property": (
        "A statement that must hold after every step, for example “graph replay and eager "
        "execution produce the same bits”. A violated property is a finding."
    ),
    "check": "A rule by which the sanitizer judges an engine, for example “stray write”.",
    "verdict": "Whether a run has a finding, no finding, or is undecided.",
    "suspect, cause": (
        "A suspect is what may be to blame for a violation, such as the static inputs. Each is "
        "reset alone, and the step runs again. The cause is the first suspect whose reset makes "
        "the property hold."
    ),
    "trial": (
        "One runner on one model, played through several schedules with fixed settings: "
        "location scheme, page size and dtype. A clean trial tests the unchanged engine."
    ),
    "vacuous": (
        "A trial that could not show a violation, for example because no graph was replayed. It "
        "fails."
    ),
    "subject, engine under test": (
        "The built-in engine that replays graphs, without a bug or with one of the catalogue."
    ),
    "hunt": "A trial with one known bug switched on. It ends when a property detects the bug.",
    "target": "The property that must detect the bug of a hunt.",
    "contract": (
        "The table of a runner's static inputs, the tensors that its graphs read: what each "
        "contains, and what padding does to it."
    ),
    "fresh engine": (
        "A second copy of the engine under test, reset to its state after capture before each use."
    ),
    "extra run": (
        "A step that the fresh engine also runs, with something changed that must not matter, such "
        "as noise in unowned memory."
    ),
    "poison": (
        "A value, written to padding or to slots that a replay may overwrite, that no result may "
        "depend on."
    ),
    "site": "A call that a change in an engine's history added. A bug leaves it out.",
    "scene": (
        "Steps of a schedule that combine boundary conditions: fill a bucket, let something "
        "happen, for example an eviction, and replay again."
    ),
    "oracle": "A dense computation of a forward pass, without slots.",
    "tape": "The recorded torch calls of a forward pass, which replace a CUDA graph on a CPU.",
    "model": (
        "A small model with the attention layers of a published one: gemma3, gpt_oss or mimo."
    ),
    "location scheme": (
        "How a sliding-window (SWA) layer finds its write slots. per_layer translates them in "
        "every layer, preset reads a static buffer filled before the replay, and memo reuses "
        "the last translation."
    ),
    "case": "A JSON file with one failing schedule, shortened as far as possible.",
    "record": (
        "The JSON file that a run writes: results, findings and environment. The command"
        " report reads it."
    ),
    "connector": (
        "The code that attaches the sanitizer to an engine and tells it what each forward pass "
        "computes, reads and writes."
    ),
    "ledger": "The sanitizer's table of who wrote each KV slot, what it wrote, and who freed it.",
    "chain": (
        "The hashes of a request's tokens, each of all tokens up to a position. The ledger has the "
        "hash of each slot."
    ),
    "stray write": "A change of a slot that no row of the forward pass owns.",
    "rerun": (
        "A replay that the sanitizer repeats, with nothing or one thing changed, and then undoes."
    ),
    "relation, control": (
        "A relation must hold between two runs of a replay. A control is a change that must show. "
        "Without it, the test of a relation proves nothing."
    ),
    "scan": "A computation of the checksums of all slots, which shows those that changed.",
    "journal": "The file in which a watched process writes its findings and counts, line by line.",
    "configuration": (
        "One combination of an engine's settings, served in a process of its own. Its files are "
        "in the folder `configs`."
    ),
    "covering array": (
        "A list of configurations in which each pair of settings that can be combined occurs at "
        "least once."
    ),
    "wave": "Requests that are sent to an engine together. A request script is a list of waves.",
    "company": "Other requests that an engine serves at the same time.",
    "stand-in": "A replacement for a part of an engine that cannot run on a CPU.",
}
"""The terms and their definitions. A term comes after those that its definition uses."""
