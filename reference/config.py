"""Model shapes: three hybrid sliding-window decoders, tiny for properties and real for scale.

The tiny sizes keep what the historical bugs depend on (layer pattern, grouped
queries, sinks, a window that short generations cross); the real dimensions are
the published ones and say what a tiny preset stands for: those of the `config.json` of
google/gemma-3-12b-it, openai/gpt-oss-20b and XiaomiMiMo/MiMo-V2-Flash on huggingface.co.
"""

from dataclasses import dataclass, replace

from paritybit.compat import StrEnum


class Role(StrEnum):
    """The two models of a speculative engine: the target, and the draft that runs ahead of it."""

    TARGET = "target"
    DRAFT = "draft"


class Shape(StrEnum):
    """How large a preset's model and its pools are.

    MID runs on a laptop. REAL has every published dimension but the number of layers, which is
    TINY's: all layers of a kind are alike, and their KV would leave no room for slots.
    """

    TINY = "tiny"
    MID = "mid"
    REAL = "real"


class Kind(StrEnum):
    """The two attention kinds of a hybrid decoder."""

    FULL = "full"
    SWA = "swa"


class Feature(StrEnum):
    """What an engine can do beyond the basics. A trial has it if it is named in its settings.

    LORA: each request has an adapter of its own. QUANTISED: K and V are 8 bits wide, with a scale
    for each head of a token beside them. SHARING: a request may share the KV of another's prefix.
    RECAPTURE: graphs are captured again while requests hold KV. CHAINS: a draft keeps one branch.
    """

    LORA = "lora"
    QUANTISED = "quantised"
    SHARING = "sharing"
    RECAPTURE = "recapture"
    CHAINS = "chains"


@dataclass(frozen=True)
class Speculation:
    """How far ahead a draft runs, and how much of it is verified.

    A draft keeps `topk` branches for `steps` tokens; the best of them and the root, the
    request's last token, make a tree of `draft_tokens` nodes. Of one branch that is all of it:
    a chain.
    """

    topk: int = 2
    steps: int = 3
    draft_tokens: int = 4

    @property
    def slots(self) -> int:
        """Draft KV slots that drafting for one request takes."""
        return self.topk * self.steps

    @property
    def forwards(self) -> int:
        """Forwards of one draft: its last tokens are proposed and never run."""
        return self.steps - 1

    @property
    def candidates(self) -> int:
        """Tokens that one draft proposes, before the best are kept."""
        return self.topk + self.forwards * self.topk**2

    @property
    def extend_tokens(self) -> int:
        """Most tokens of one request in a draft-extend graph: all of a verified path."""
        return self.steps + 1


SPECULATION = Speculation()
"""The widest speculation of a trial, and that of each without Feature.CHAINS."""

CHAIN = replace(SPECULATION, topk=1)
"""That of a trial with Feature.CHAINS: it differs in the branches alone."""


@dataclass(frozen=True)
class AttentionShape:
    """KV heads and head dimension (elements) of all layers of one kind."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class ModelConfig:
    """One decoder. Widths are in elements, `window` and `max_context` in tokens.

    A query at position i sees the keys j with i - window < j <= i on SWA layers.
    """

    name: str
    layers: tuple[Kind, ...]
    hidden: int
    intermediate: int
    heads: int
    full: AttentionShape
    swa: AttentionShape
    window: int
    vocab: int
    max_context: int
    activation: str
    sink_kinds: frozenset[Kind] = frozenset()
    full_rope_theta: float = 1_000_000.0
    swa_rope_theta: float = 10_000.0
    features: frozenset[Feature] = frozenset()

    def shape(self, kind: Kind) -> AttentionShape:
        """Return the KV shape of the layers of one kind."""
        return self.full if kind is Kind.FULL else self.swa

    def stored_dim(self, kind: Kind) -> int:
        """Return the elements that a pool holds of each head: one more if it has a scale."""
        return self.shape(kind).head_dim + (Feature.QUANTISED in self.features)

    @property
    def speculation(self) -> Speculation:
        """How the engine of this target drafts."""
        return CHAIN if Feature.CHAINS in self.features else SPECULATION

    def rope_theta(self, kind: Kind) -> float:
        """Return the RoPE base of the layers of one kind."""
        return self.full_rope_theta if kind is Kind.FULL else self.swa_rope_theta

    def layers_of(self, kind: Kind) -> tuple[int, ...]:
        """Return the indices of the layers of one kind, in execution order."""
        return tuple(index for index, layer in enumerate(self.layers) if layer is kind)


MID_FACTORS = {"hidden": 8, "intermediate": 8, "heads": 2, "window": 4, "vocab": 8}
"""How many times as large as tiny a model between tiny and real is, by dimension."""

MID_HEAD_DIM, MID_CONTEXT = 2, 4
"""Likewise of a head's width, and of the longest request."""


@dataclass(frozen=True)
class Preset:
    """A tiny model to run and the real model whose shape it has."""

    tiny: ModelConfig
    real: ModelConfig
    source: str

    def of(self, shape: Shape) -> ModelConfig:
        """Return the model of a shape."""
        if shape is Shape.TINY:
            return self.tiny
        return self._between if shape is Shape.MID else replace(self.real, layers=self.tiny.layers)

    @property
    def _between(self) -> ModelConfig:
        tiny = self.tiny
        wider = {name: getattr(tiny, name) * factor for name, factor in MID_FACTORS.items()}
        full, swa = (
            replace(tiny.shape(kind), head_dim=tiny.shape(kind).head_dim * MID_HEAD_DIM)
            for kind in (Kind.FULL, Kind.SWA)
        )
        context = tiny.max_context * MID_CONTEXT
        return replace(tiny, **wider, full=full, swa=swa, max_context=context)


def draft_config(target: ModelConfig) -> ModelConfig:
    """Return the draft model of a target: two layers, one of each kind, of its shapes."""
    return replace(target, name=f"{target.name}-draft", layers=_pattern("SF"))


def _pattern(code: str) -> tuple[Kind, ...]:
    return tuple(Kind.FULL if letter == "F" else Kind.SWA for letter in code)


PRESETS: dict[str, Preset] = {
    "gemma3": Preset(
        tiny=ModelConfig(
            name="gemma3",
            layers=_pattern("SSSSSF"),
            hidden=32,
            intermediate=64,
            heads=4,
            full=AttentionShape(kv_heads=2, head_dim=16),
            swa=AttentionShape(kv_heads=2, head_dim=16),
            window=12,
            vocab=96,
            max_context=48,
            activation="gelu",
        ),
        real=ModelConfig(
            name="gemma3",
            layers=_pattern("SSSSSF" * 8),
            hidden=3840,
            intermediate=15360,
            heads=16,
            full=AttentionShape(kv_heads=8, head_dim=256),
            swa=AttentionShape(kv_heads=8, head_dim=256),
            window=1024,
            vocab=262208,
            max_context=131072,
            activation="gelu",
        ),
        source="Gemma 3 12B, published configuration",
    ),
    "gpt_oss": Preset(
        tiny=ModelConfig(
            name="gpt_oss",
            layers=_pattern("SFSF"),
            hidden=32,
            intermediate=64,
            heads=4,
            full=AttentionShape(kv_heads=1, head_dim=16),
            swa=AttentionShape(kv_heads=1, head_dim=16),
            window=8,
            vocab=96,
            max_context=48,
            activation="silu",
            sink_kinds=frozenset(Kind),
            full_rope_theta=150_000.0,
            swa_rope_theta=150_000.0,
        ),
        real=ModelConfig(
            name="gpt_oss",
            layers=_pattern("SF" * 12),
            hidden=2880,
            intermediate=2880,
            heads=64,
            full=AttentionShape(kv_heads=8, head_dim=64),
            swa=AttentionShape(kv_heads=8, head_dim=64),
            window=128,
            vocab=201088,
            max_context=131072,
            activation="silu",
            sink_kinds=frozenset(Kind),
            full_rope_theta=150_000.0,
            swa_rope_theta=150_000.0,
        ),
        source="gpt-oss-20b, model card; one expert's width",
    ),
    "mimo": Preset(
        tiny=ModelConfig(
            name="mimo",
            layers=_pattern("FSSSF"),
            hidden=32,
            intermediate=64,
            heads=4,
            full=AttentionShape(kv_heads=1, head_dim=32),
            swa=AttentionShape(kv_heads=2, head_dim=16),
            window=8,
            vocab=96,
            max_context=48,
            activation="silu",
            sink_kinds=frozenset({Kind.SWA}),
            full_rope_theta=5_000_000.0,
        ),
        real=ModelConfig(
            name="mimo",
            layers=_pattern("F" + "SSSS" + "FSSSSS" * 7 + "F"),
            hidden=4096,
            intermediate=16384,
            heads=64,
            full=AttentionShape(kv_heads=4, head_dim=192),
            swa=AttentionShape(kv_heads=8, head_dim=192),
            window=128,
            vocab=152576,
            max_context=262144,
            activation="silu",
            sink_kinds=frozenset({Kind.SWA}),
            full_rope_theta=5_000_000.0,
        ),
        source="MiMo-V2-Flash, published configuration: 39 SWA and 9 full layers; one value width",
    ),
}
