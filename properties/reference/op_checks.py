"""What any op set must satisfy, as checks that raise `AssertionError`.

Run as a module it checks `CudaOps` under Triton's interpreter, which needs a process of its own:
Triton decides at import whether it interprets.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import torch
from paritybit.reference.config import PRESETS, AttentionShape, Kind, ModelConfig
from paritybit.reference.ops import STATE_GAIN, Ops
from torch import Tensor

from paritybit.engines.interpreter import quicken

MAX_ROWS = 33  # more than any replay of a trial runs
FEW_ROWS = 4  # one with each kind of list: see `key_lists`
DTYPES = (torch.float32, torch.bfloat16)

# Float32 arithmetic may miss the float64 result by this much of the sum of the terms'
# magnitudes: over a hundred roundings of 2**-24, which covers sums of this length and
# a GPU's approximate exp and cosine. One tf32 or bfloat16 product would miss by 5e-4.
ARITHMETIC_BOUND = 2e-5

# Widths that are no powers of two and span several tiles, unlike those of the presets.
RAGGED = replace(
    PRESETS["gemma3"],
    name="ragged",
    hidden=136,
    intermediate=140,
    heads=3,
    full=AttentionShape(kv_heads=1, head_dim=48),
    swa=AttentionShape(kv_heads=1, head_dim=48),
    vocab=50,
)


@dataclass(frozen=True)
class OpTrial:
    """One op set at the widths of one model, in batches of 1 to `rows` rows.

    `interpreted` is for Triton's interpreter, which is slow, and which cuts bits off a float32
    where a GPU rounds it to a bfloat16: few rows.
    """

    ops: Ops
    device: str
    config: ModelConfig
    dtype: torch.dtype
    interpreted: bool = False

    @property
    def rows(self) -> int:
        """Rows of the largest batch."""
        return FEW_ROWS if self.interpreted else MAX_ROWS

    def random(self, *shape: int, seed: int = 0) -> Tensor:
        """Return normal values in the trial's dtype, the same on every device."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator).to(self.device, self.dtype)

    def integers(self, high: int, *shape: int, seed: int = 0) -> Tensor:
        """Return int64 values below `high`, the same on every device."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(high, shape, generator=generator).to(self.device)

    def int32(self, values: list[int]) -> Tensor:
        """Return `values` as an int32 tensor."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def rounding(self, dtype: torch.dtype) -> float:
        """Return how much of a result its one conversion to `dtype` may change."""
        return torch.finfo(dtype).eps / (1 if self.interpreted else 2)


@dataclass(frozen=True)
class OpCase:
    """One op on all rows of a trial: `run` takes a slice of the rows and returns theirs.

    `expected` is float64; `magnitude` is what its arithmetic error is relative to.
    """

    run: Callable[[slice], Tensor]
    expected: Tensor
    magnitude: Tensor


def scan_states_case(trial: OpTrial) -> OpCase:
    """Return states of rows that follow no other; every third begins with none, where NaN lies."""
    config, rows = trial.config, trial.rows
    table = trial.random(config.vocab, config.hidden)
    states = trial.random(rows, config.hidden, seed=1)
    sources = trial.integers(rows, rows, seed=2)
    sources[::3] = -1
    states[[row for row in range(rows) if row not in sources.tolist()]] = torch.nan
    ids, follows = trial.integers(config.vocab, rows, seed=3), torch.zeros_like(sources).bool()
    decay = trial.random(config.hidden, seed=4).float()

    def run(part: slice) -> Tensor:
        inputs = states, sources[part], follows[part], 1, table, ids[part], decay
        return trial.ops.scan_states(*inputs)

    before = torch.where((sources >= 0)[:, None], states[sources.clamp(min=0)], 0.0)
    terms = torch.stack([decay.double() * before.double(), STATE_GAIN * table[ids].double()])
    return OpCase(run, terms.sum(0), terms.abs().sum(0))


def rotary_case(trial: OpTrial, kind: Kind) -> OpCase:
    """Return rotary angles from within the context and from far beyond it."""
    config, pairs = trial.config, trial.config.shape(kind).head_dim // 2
    positions = trial.integers(config.max_context, trial.rows)
    positions[1::2] += 100_000
    exponent = torch.arange(pairs, device=trial.device) / pairs
    frequency = config.rope_theta(kind) ** -exponent

    def run(part: slice) -> Tensor:
        return trial.ops.rotary(positions[part], frequency).transpose(0, 1)

    angle = (positions[:, None] * frequency.double())[:, None]
    expected = torch.cat([angle.cos(), angle.sin()], dim=1)
    # An angle is a float32: its own rounding outweighs all else when it is large.
    return OpCase(run, expected, 1 + angle.abs().expand_as(expected) * 2**-24 / ARITHMETIC_BOUND)


def norm_linear_case(trial: OpTrial) -> OpCase:
    """Return a normed product whose rows differ in scale."""
    config = trial.config
    hidden = trial.random(trial.rows, config.hidden)
    hidden *= 2.0 ** (torch.arange(trial.rows, device=trial.device)[:, None] % 7 - 3)
    norm = trial.random(config.hidden, seed=1)
    weight = trial.random(config.vocab, config.hidden, seed=2)
    rows = hidden.double()
    normed = norm.double() * rows / (rows.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return OpCase(
        lambda part: trial.ops.norm_linear(hidden[part], norm, weight),
        normed @ weight.double().T,
        normed.abs() @ weight.double().abs().T,
    )


def project_heads_case(trial: OpTrial, kind: Kind) -> OpCase:
    """Return heads of rows that differ in scale: the last ones are not turned."""
    config, shape = trial.config, trial.config.shape(kind)
    turned, pairs = config.heads + shape.kv_heads, shape.head_dim // 2
    hidden = trial.random(trial.rows, config.hidden)
    hidden *= 2.0 ** (torch.arange(trial.rows, device=trial.device)[:, None] % 7 - 3)
    norm = trial.random(config.hidden, seed=1)
    outputs = (turned + shape.kv_heads) * shape.head_dim
    weight = trial.random(outputs, config.hidden, seed=2)
    angle = trial.random(trial.rows, pairs, seed=3).float()
    rotary = torch.stack([angle.cos(), angle.sin()])

    def run(part: slice) -> Tensor:
        heads = trial.ops.project_heads(hidden[part], norm, weight, rotary[:, part], turned)
        return torch.cat(heads, 1)

    rows = hidden.double()
    normed = norm.double() * rows / (rows.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    halves = (trial.rows, -1, 2, pairs)
    first, second = (normed @ weight.double().T).view(halves).unbind(2)
    magnitude = (normed.abs() @ weight.double().abs().T).view(halves).sum(2).repeat(1, 1, 2)
    cosine, sine = rotary.double().unsqueeze(2)
    rotated = torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
    expected = torch.cat([first, second], -1)
    expected[:, :turned] = rotated[:, :turned]
    return OpCase(run, expected, magnitude)


def linear_add_case(trial: OpTrial, kind: Kind) -> OpCase:
    """Return a product added to a residual, as after attention."""
    width = trial.config.heads * trial.config.shape(kind).head_dim
    inputs = trial.random(trial.rows, width)
    weight = trial.random(trial.config.hidden, width, seed=1)
    residual = trial.random(trial.rows, trial.config.hidden, seed=2)
    return OpCase(
        lambda part: trial.ops.linear_add(inputs[part], weight, residual[part]),
        residual.double() + inputs.double() @ weight.double().T,
        residual.double().abs() + inputs.double().abs() @ weight.double().abs().T,
    )


def gated_linear_add_case(trial: OpTrial) -> OpCase:
    """Return a gated product added to a residual, every row a real token."""
    width = trial.config.intermediate
    gate_up = 2 * trial.random(trial.rows, 2 * width)
    weight = trial.random(trial.config.hidden, width, seed=1)
    residual = trial.random(trial.rows, trial.config.hidden, seed=2)
    limit = trial.int32([trial.rows])

    def run(part: slice) -> Tensor:
        return trial.ops.gated_linear_add(gate_up[part], weight, residual[part], limit)

    gate, up = gate_up.double().chunk(2, dim=-1)
    inputs = gate * gate.sigmoid() * up
    return OpCase(
        run,
        residual.double() + inputs @ weight.double().T,
        residual.double().abs() + inputs.abs() @ weight.double().abs().T,
    )


def store_kv_case(trial: OpTrial, kind: Kind) -> OpCase:
    """Return what distinct slots hold after a store of keys and values, each a view."""
    cache, wide, _ = _store_inputs(trial, kind, trial.rows, slots=2 * trial.rows)
    order = torch.randperm(2 * trial.rows, generator=torch.Generator().manual_seed(1))
    loc = order[: trial.rows].to(trial.device)

    def run(part: slice) -> Tensor:
        stored = cache.clone()
        trial.ops.store_kv(stored, loc[part], loc.dtype, *_halves(wide[part]))
        return stored[:, loc[part]].transpose(0, 1)

    expected = torch.stack(_halves(wide), dim=1).double()
    return OpCase(run, expected, torch.zeros_like(expected))


def attention_case(trial: OpTrial, kind: Kind) -> OpCase:
    """Return attention over lists of keys."""
    query, cache = _attention_inputs(trial, kind, trial.rows)
    lists = key_lists(trial, trial.rows)
    rows = [_attend(query[row], cache, slots) for row, slots in enumerate(lists.taken())]
    expected, magnitude = (torch.stack(part) for part in zip(*rows, strict=True))
    return OpCase(lambda part: lists.attend(trial, query, cache, part), expected, magnitude)


def _attend(query: Tensor, cache: Tensor, listed: list[int]) -> tuple[Tensor, Tensor]:
    """Return one row's attention [Q, D] and its magnitude, one head at a time."""
    result = torch.zeros(query.shape, dtype=torch.float64, device=query.device)
    magnitude = result.clone()
    group = query.shape[0] // cache.shape[2]
    for head in range(query.shape[0] if listed else 0):
        key, value = cache[:, listed, head // group].double()
        weight = (key @ query[head].double() / query.shape[1] ** 0.5).exp()
        total = weight.sum()
        result[head] = weight @ value / total
        magnitude[head] = weight @ value.abs() / total
    return result, magnitude


def _attention_inputs(trial: OpTrial, kind: Kind, rows: int) -> tuple[Tensor, Tensor]:
    """Return a query that is a view, and a cache."""
    shape, heads = trial.config.shape(kind), trial.config.heads
    query = trial.random(rows, heads + shape.kv_heads, shape.head_dim)[:, :heads]
    slots = 2 * trial.config.max_context
    return query, trial.random(2, slots, shape.kv_heads, shape.head_dim, seed=1)


@dataclass(frozen=True)
class ListForm:
    """The keys of an attention's rows, as the op takes them."""

    begin: Tensor
    end: Tensor
    slots: Tensor

    def taken(self) -> list[list[int]]:
        """Return for each row the slots that take part, in list order."""
        bounds = zip(self.begin.tolist(), self.end.tolist(), strict=True)
        return [self.slots[begin:end].tolist() for begin, end in bounds]

    def attend(self, trial: OpTrial, query: Tensor, cache: Tensor, part: slice) -> Tensor:
        """Return the attention of the rows in `part`."""
        begin, end, longest = self.begin[part], self.end[part], trial.config.max_context
        return trial.ops.attention(query[part], cache, begin, end, self.slots, longest)


def key_lists(trial: OpTrial, rows: int) -> ListForm:
    """Return lists of even slots, of very different lengths, which overlap.

    Every fifth list is empty, from row 2 on. An odd slot stands behind the last list.
    """
    context = trial.config.max_context
    lengths = [0 if row % 5 == 2 else 1 + 11 * row % context for row in range(rows)]
    stale = trial.int32([1])
    drawn = 2 * trial.integers(context, context, seed=1).to(torch.int32)
    begin = [min(3 * row, context - length) for row, length in enumerate(lengths)]
    end = [
        first + length if length else first // 2
        for first, length in zip(begin, lengths, strict=True)
    ]
    return ListForm(
        torch.tensor(begin, device=trial.device),
        torch.tensor(end, device=trial.device),
        torch.cat([drawn, stale]),
    )


def _poisoned(cache: Tensor, taken: list[list[int]]) -> Tensor:
    """Return `cache` with NaN in every slot that is in none of the lists `taken`."""
    slots = [slot for slots_of_row in taken for slot in slots_of_row]
    poisoned = torch.full_like(cache, torch.nan)
    poisoned[:, slots] = cache[:, slots]
    return poisoned


def _store_inputs(
    trial: OpTrial, kind: Kind, rows: int, slots: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a cache, rows that hold key and value among others, and a loc."""
    shape = trial.config.shape(kind)
    cache = trial.random(2, slots, shape.kv_heads, shape.head_dim)
    wide = trial.random(rows, 1 + 2 * shape.kv_heads, shape.head_dim, seed=1)
    return cache, wide, trial.integers(slots, rows, seed=2)


def _halves(wide: Tensor) -> tuple[Tensor, Tensor]:
    """Return the keys and the values in `wide`, as views."""
    key, value = wide[:, 1:].chunk(2, dim=1)
    return key, value


def cases(trial: OpTrial) -> dict[str, OpCase]:
    """Return every op at the trial's widths, for every shape of its attention."""
    found = {
        "scan_states": scan_states_case(trial),
        "norm_linear": norm_linear_case(trial),
        "gated_linear_add": gated_linear_add_case(trial),
    }
    for kind in Kind:
        found[f"rotary {kind}"] = rotary_case(trial, kind)
    for kind in {trial.config.shape(kind): kind for kind in Kind}.values():
        found[f"project_heads {kind}"] = project_heads_case(trial, kind)
        found[f"linear_add {kind}"] = linear_add_case(trial, kind)
        found[f"store_kv {kind}"] = store_kv_case(trial, kind)
        found[f"attention {kind}"] = attention_case(trial, kind)
    return found


def check_conformance(trial: OpTrial) -> None:
    """Check that every op is within its bound of float64, in the largest batch.

    `check_batch_invariance` says that smaller batches have the same bits.
    """
    for name, case in cases(trial).items():
        actual = case.run(slice(0, trial.rows))
        error = (actual.double() - case.expected).abs()
        bound = trial.rounding(actual.dtype) * case.expected.abs()
        bound += ARITHMETIC_BOUND * case.magnitude
        worst = (error - bound).max().item()
        # Put so that a NaN fails.
        assert worst <= 0, f"{name}: float64 is missed by {worst} over the bound"


def check_batch_invariance(trial: OpTrial) -> None:
    """Check that a row has the same bits in any batch and anywhere in it."""
    for name, case in cases(trial).items():
        whole = case.run(slice(0, trial.rows))
        prefixes = [slice(0, rows) for rows in range(1, trial.rows)]
        singles = [slice(row, row + 1) for row in range(1, trial.rows)]
        for part in prefixes + singles:
            same = _same_bits(case.run(part), whole[part])
            assert same, f"{name}: rows {part.start}:{part.stop} have other bits in a batch"


def check_highest_row_wins(trial: OpTrial) -> None:
    """Check which of the rows that name one slot is stored, in more rows than a tile has."""
    rows, slots = 70, 24
    cache, wide, loc = _store_inputs(trial, Kind.SWA, rows, slots)
    loc[-2:] = loc[0]
    key, value = _halves(wide)
    expected = cache.clone()
    for row, slot in enumerate(loc.tolist()):
        if slot not in loc[row + 1 :].tolist():
            expected[0, slot], expected[1, slot] = key[row], value[row]
    trial.ops.store_kv(cache, loc, loc.dtype, key, value)
    assert _same_bits(cache, expected), "a slot does not hold the highest row that names it"


def check_loc_is_reinterpreted(trial: OpTrial) -> None:
    """Check that an int64 loc under an int32 ABI puts row 0 right and row 1 into slot 0."""
    cache, wide, _ = _store_inputs(trial, Kind.SWA, rows=3, slots=12)
    key, value = _halves(wide)
    expected = cache.clone()
    for row, slot in enumerate([5, 0, 7]):
        expected[0, slot], expected[1, slot] = key[row], value[row]
    loc = torch.tensor([5, 7, 9], device=trial.device)
    trial.ops.store_kv(cache, loc, torch.int32, key, value)
    assert _same_bits(cache, expected), "an int64 loc was not read as pairs of int32"


def check_only_keys_are_loaded(trial: OpTrial) -> None:
    """Check that NaN in every slot that is not a key of a batch's rows changes no bit."""
    query, cache = _attention_inputs(trial, Kind.SWA, FEW_ROWS)
    parts = [slice(0, FEW_ROWS), *(slice(row, row + 1) for row in range(FEW_ROWS))]
    lists = key_lists(trial, FEW_ROWS)
    whole = lists.attend(trial, query, cache, parts[0])
    for part in parts:
        result = lists.attend(trial, query, _poisoned(cache, lists.taken()[part]), part)
        same = _same_bits(result, whole[part])
        assert same, "attention depends on a slot that is not a key"
        assert bool(result.isfinite().all()), "attention is not finite"


def check_likeliest(trial: OpTrial) -> None:
    """Check the likeliest place of rows of ties, and of NaN, against a list."""
    logits = trial.integers(5, trial.rows, trial.config.vocab).to(trial.dtype)
    logits[0] = torch.nan
    found, places = trial.ops.likeliest(logits)
    assert places[0] == 0 and bool(found[0].isnan())
    for row, values in enumerate(logits.tolist()[1:], 1):
        assert places[row] == values.index(max(values)), "another place is likelier"
    expected = torch.softmax(logits.double(), -1).gather(1, places)
    assert bool(((found - expected).abs()[1:] < ARITHMETIC_BOUND).all()), "a wrong probability"


def check_row_limit(trial: OpTrial) -> None:
    """Check that rows from the limit on keep their residual, whatever their gate is."""
    width, limit = trial.config.intermediate, trial.rows // 3
    gate_up = trial.random(trial.rows, 2 * width)
    gate_up[limit:] = torch.nan
    weight = trial.random(trial.config.hidden, width, seed=1)
    residual = trial.random(trial.rows, trial.config.hidden, seed=2)
    added = trial.ops.gated_linear_add(gate_up, weight, residual, trial.int32([limit]))
    assert _same_bits(added[limit:], residual[limit:]), "a row beyond the limit changed"
    changed = (added[:limit] != residual[:limit]).any(-1)
    assert bool(changed.all()), "a row before the limit did not change"


def check_states_follow_paths(trial: OpTrial) -> None:
    """Check that a row has the state it would have if its path were run alone, row by row.

    What no path begins with is NaN.
    """
    config, rows = trial.config, 12
    table = trial.random(config.vocab, config.hidden)
    ids = trial.integers(config.vocab, rows, seed=1)
    decay = trial.random(config.hidden, seed=2).float()
    states = torch.full((6, config.hidden), torch.nan, dtype=table.dtype, device=trial.device)
    states[[1, 4]] = trial.random(2, config.hidden, seed=3)
    follows = torch.tensor([0, 1, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1], device=trial.device).bool()
    sources = torch.tensor([-1, 5, 5, 5, 4, 5, 5, 1, 4, 5, 5, 5], device=trial.device)
    taken = states.clone()
    found = trial.ops.scan_states(states, sources, follows, 4, table, ids, decay)
    assert _same_bits(states, taken), "a scan wrote the pool"
    for row, continues in enumerate(follows.tolist()):
        pool, source = (states, sources[row : row + 1])
        if continues:
            pool, source = found, torch.tensor([row - 1], device=trial.device)
        begins = torch.zeros_like(source).bool()
        alone = trial.ops.scan_states(pool, source, begins, 1, table, ids[row : row + 1], decay)
        assert _same_bits(found[row : row + 1], alone), f"row {row} does not follow its path"
    assert bool(found.isfinite().all()), "a state that no path begins with was loaded"


Check = Callable[[OpTrial], None]
CHECKS: tuple[Check, ...] = (
    check_conformance,
    check_batch_invariance,
    check_highest_row_wins,
    check_loc_is_reinterpreted,
    check_only_keys_are_loaded,
    check_likeliest,
    check_row_limit,
    check_states_follow_paths,
)


Combination = tuple[Check, ModelConfig, torch.dtype]
ON_CPU: tuple[Combination, ...] = tuple(product(CHECKS, PRESETS.values(), DTYPES))
ON_CUDA = (*ON_CPU, *product(CHECKS, [RAGGED], DTYPES))
# The interpreter is slow. What runs past a tile shows at ragged widths.
FEW: tuple[Combination, ...] = (
    *((check, RAGGED, torch.float32) for check in CHECKS),
    (check_conformance, RAGGED, torch.bfloat16),
    (check_conformance, PRESETS["mimo"], torch.float32),
)


def run_checks(
    ops: Ops,
    device: str,
    combinations: tuple[Combination, ...],
    *,
    interpreted: bool = False,
) -> None:
    """Run checks on `ops`; an error says which one failed where."""
    for check, config, dtype in combinations:
        try:
            check(OpTrial(ops, device, config, dtype, interpreted))
        except AssertionError as error:
            where = f"in {check.__name__} at {config.name}, {dtype}"
            raise AssertionError(f"{error}\n{where}") from error


def _same_bits(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors are equal byte by byte, NaN and the sign of zero included."""
    one, other = (tensor.contiguous().view(torch.uint8) for tensor in (left, right))
    return left.dtype == right.dtype and torch.equal(one, other)


def main() -> None:
    """Check the CUDA ops on the CPU and print how many checks ran."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        sys.exit("set TRITON_INTERPRET=1: these checks are for Triton's interpreter")
    from paritybit.reference.cuda_ops import CudaOps  # noqa: PLC0415 - slow, and wanted here alone

    quicken()
    torch.set_num_threads(1)
    run_checks(CudaOps("cpu"), "cpu", FEW, interpreted=True)
    sys.stdout.write(f"{len(FEW)}\n")


if __name__ == "__main__":
    main()
