"""The reports to the authors of engines in `docs/reports/`, by the check that has the finding."""

from collections.abc import Mapping

SENT: Mapping[str, tuple[str, ...]] = {
    "corrupted read": ("sglang-captured-slots",),
    "engine error": (
        "sglang-reused-prefix-stall",
        "transformers-cancelled-batch",
        "transformers-one-token-prompt",
        "transformers-host-blocks",
        "transformers-offload-stall",
    ),
    "kernel race": ("vllm-rejection-race",),
    "stale input": (
        "sglang-draft-queries",
        "transformers-unordered-inputs",
        "sglang-refused-turn",
    ),
    "stray write": ("vllm-dummy-drafts", "vllm-dummy-states"),
    "uninitialised read": ("vllm-transferred-window",),
    "wrong list": ("sglang-window-pages",),
    "wrong owner": ("vllm-graphs-in-files",),
    "wrong row": (
        "sglang-resumed-minimum",
        "vllm-prompt-likelihoods",
        "vllm-early-end",
        "vllm-dropped-likelihoods",
    ),
}
