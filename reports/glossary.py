"""The words of this project that a reader of its output meets, each in a sentence.

`docs/glossary.md` has the same lines, which a test holds.
"""

from collections.abc import Mapping

GLOSSARY: Mapping[str, str] = {
    "runner": "One of the engine's ways to run a batch by replaying a captured CUDA graph, such as"
    " decode or target_verify.",
    "bucket, padding": "A graph is captured for a few batch sizes, its buckets. A smaller batch is"
    " filled up to the next one with padded rows, which belong to no request.",
    "schedule": "A list of steps (admit a request, decode, draft, verify, finish) that is played in"
    " two worlds: one runs every step eagerly, the other replays graphs.",
    "property": "A statement that must hold after every step, such as “the graph's bits are the"
    " eager bits”. One that does not hold is a finding.",
    "trial": "One runner on one model, with one location scheme, page size and dtype, played"
    " through a number of schedules. A clean trial is one of the unchanged engine.",
    "hunt": "A trial with one known bug switched on. It ends when the bug shows, or when all its"
    " schedules are played.",
    "model, preset": "gemma3, gpt_oss and mimo: tiny models with the attention layers of the large"
    " ones. The option that chooses one is --preset.",
    "location scheme": "How an attention layer with a sliding window (SWA) finds the slots that it"
    " writes: per_layer looks them up in every layer; preset reads a static buffer that was filled"
    " before the replay; memo keeps the last look-up and gives it out again.",
    "leg": "In the trial of a released engine: one of its runners on one model, in a process of its"
    " own.",
    "case": "A JSON file with one failing schedule, made as short as it can be, that anyone can"
    " replay.",
}
"""Ten words or pairs of words, those first that the others need."""
