"""The table of legs: settings with which sglang is served by default, each in one process."""

from paritybit.drive.legs import Leg

LEGS = (
    Leg("decode graphs", (), 3.0),
    Leg("overlap", ("--overlap",), 2.0),
    Leg("page size 16", ("--page-size", "16")),
    Leg("page size 64", ("--page-size", "64", "--overlap")),
    Leg("no prefix cache", ("--no-prefix-cache",)),
    Leg("chunks larger than the window pool", ("--chunk", "512")),
    Leg("few window slots", ("--pool", "384", "--windows", "160", "--chunk", "32")),
    Leg(
        "few window pages",
        ("--pool", "512", "--windows", "320", "--chunk", "32", "--page-size", "16"),
    ),
    Leg("attention sinks", ("--model", "gpt_oss", "--whole-prompts")),
    Leg("widths of K and V", ("--model", "mimo", "--overlap")),
    Leg("EAGLE topk 1", ("--model", "gpt_oss", "--speculative", "eagle", "--page-size", "16")),
    Leg("EAGLE page size 4", ("--model", "gpt_oss", "--speculative", "eagle", "--page-size", "4")),
    Leg(
        "EAGLE topk 2",
        (
            *("--model", "gpt_oss", "--speculative", "eagle", "--topk", "2"),
            *("--pool", "384", "--windows", "320"),
        ),
    ),
    Leg("EAGLE overlap", ("--model", "gpt_oss", "--speculative", "eagle", "--overlap")),
    Leg(
        "draft model",
        ("--model", "gpt_oss", "--speculative", "standalone", "--topk", "2", "--overlap"),
    ),
    Leg(
        "drafts from the target's KV",
        ("--speculative", "frozen_kv_mtp", "--topk", "2", "--overlap"),
    ),
    Leg("each request alone", ("--alone",)),
    Leg("LoRA adapters", ("--model", "gpt_oss", "--adapters", "3")),
    Leg("actions", ("--actions",), 2.0),
    Leg("actions with overlap", ("--actions", "--overlap", "--page-size", "16")),
    Leg("KV on the host", ("--host-cache",), 2.0),
    Leg("idle data-parallel rank", ("--model", "gpt_oss", "--ranks", "2")),
    Leg("CPU graphs", ("--graphs", "cpu"), device="cpu"),
    Leg("breakable prefill graphs", ("--graphs", "breakable")),
    Leg("states of convolutions", ("--model", "lfm2")),
    Leg("positions of images", ("--model", "qwen2_vl", "--graphs", "breakable")),
)
"""The legs in order, with their shares of the time."""
