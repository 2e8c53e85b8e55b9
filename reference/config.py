"""Three small hybrid sliding-window decoders.

They keep what the historical bugs depend on: layer pattern, grouped queries, and a window that
short generations cross.
"""

from dataclasses import dataclass, replace

from paritybit.compat import StrEnum


class Role(StrEnum):
    """The two models of a speculative engine. The draft proposes tokens for the target."""

    TARGET = "target"
    DRAFT = "draft"


class Kind(StrEnum):
    """The two attention kinds of a hybrid decoder."""

    FULL = "full"
    SWA = "swa"


DRAFT_STEPS = 3
"""Number of tokens that a draft proposes for a request, and of the KV slots that it takes."""

DRAFT_FORWARDS = DRAFT_STEPS - 1
"""Number of forwards of one draft. Its last token is proposed but never run."""

DRAFT_TOKENS = 1 + DRAFT_STEPS
"""Number of tokens per request that a verify runs: the request's last token and its drafts."""


@dataclass(frozen=True)
class AttentionShape:
    """KV heads and head dimension (elements) of all layers of one kind."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class ModelConfig:
    """The configuration of one decoder. `source` names the published model with its structure.

    Widths are in elements, `window` and `max_context` in tokens. On SWA layers, a query at position
    i sees the keys j with i - window < j <= i.
    """

    name: str
    source: str
    layers: tuple[Kind, ...]
    full: AttentionShape
    swa: AttentionShape
    window: int
    hidden: int = 32
    intermediate: int = 64
    heads: int = 4
    vocab: int = 96
    max_context: int = 48
    full_rope_theta: float = 1_000_000.0
    swa_rope_theta: float = 10_000.0

    def shape(self, kind: Kind) -> AttentionShape:
        """Return the KV shape of the layers of one kind."""
        return self.full if kind is Kind.FULL else self.swa

    def rope_theta(self, kind: Kind) -> float:
        """Return the RoPE base of the layers of one kind."""
        return self.full_rope_theta if kind is Kind.FULL else self.swa_rope_theta

    def layers_of(self, kind: Kind) -> tuple[int, ...]:
        """Return the indices of the layers of one kind, in execution order."""
        return tuple(index for index, layer in enumerate(self.layers) if layer is kind)


def draft_config(target: ModelConfig) -> ModelConfig:
    """Return the draft model of a target: one SWA layer and one full layer of its shapes."""
    return replace(target, name=f"{target.name}-draft", layers=_pattern("SF"))


def _pattern(code: str) -> tuple[Kind, ...]:
    return tuple(Kind.FULL if letter == "F" else Kind.SWA for letter in code)


PRESETS: dict[str, ModelConfig] = {
    "gemma3": ModelConfig(
        name="gemma3",
        source="Gemma 3 12B, published configuration, with SiLU in place of GELU",
        layers=_pattern("SSSSSF"),
        full=AttentionShape(kv_heads=2, head_dim=16),
        swa=AttentionShape(kv_heads=2, head_dim=16),
        window=12,
    ),
    "gpt_oss": ModelConfig(
        name="gpt_oss",
        source="gpt-oss-20b, model card; one expert's width",
        layers=_pattern("SFSF"),
        full=AttentionShape(kv_heads=1, head_dim=16),
        swa=AttentionShape(kv_heads=1, head_dim=16),
        window=8,
        full_rope_theta=150_000.0,
        swa_rope_theta=150_000.0,
    ),
    "mimo": ModelConfig(
        name="mimo",
        source="MiMo-V2-Flash, published configuration: 39 SWA and 9 full layers; one value width",
        layers=_pattern("FSSSF"),
        full=AttentionShape(kv_heads=1, head_dim=32),
        swa=AttentionShape(kv_heads=2, head_dim=16),
        window=8,
        full_rope_theta=5_000_000.0,
    ),
}
