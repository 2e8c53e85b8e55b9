"""The reports to the authors of engines in `docs/reports/`, by the check that has the finding."""

from collections.abc import Mapping

SENT: Mapping[str, tuple[str, ...]] = {
    "engine error": (
        "sglang-reused-prefix-stall",
        "transformers-cancelled-batch",
        "transformers-one-token-prompt",
        "transformers-host-blocks",
        "transformers-offload-stall",
    ),
    "kernel race": ("vllm-rejection-race",),
    "stale input": ("transformers-unordered-inputs",),
    "stray write": ("vllm-dummy-drafts", "vllm-dummy-states"),
    "wrong owner": ("vllm-graphs-in-files",),
    "wrong row": (
        "sglang-resumed-minimum",
        "vllm-prompt-likelihoods",
        "vllm-early-end",
        "vllm-dropped-likelihoods",
    ),
}
