"""What requests ask of their sampling, and the logits that this gives.

An engine keeps parameters by row. The logits are computed here again for a row's own request.
"""

import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.hooking import place_of
from paritybit.watch.bits import sums_of
from paritybit.watch.facts import Row, RowValues
from paritybit.watch.stacks import Stack

MOST = 2**22
"""The most logits of a batch that are computed again."""

ROUNDING = 1e-4
"""The largest difference by rounding, relative to the largest logit."""

HIDDEN, LOGITS = "hidden states scored", "logits sampled"
"""What is handed on row by row, to the logits head and to the sampler."""

ALIKE = "another row of the forward has the same values"
UNSEEN = "it is not seen what the forward computed"
"""Why it is not judged which row is handed on."""

EMBEDDINGS = "embeddings of images"
"""What a model gets in place of the tokens that stand for images."""

OTHERS = "they are not known as the model gets them"
"""Why embeddings of an image are not judged."""

Image = tuple[int, int, Tensor | None]
"""The first position of an image in a prompt, its length, and its embeddings, if known."""

RETURNED = "hidden states recorded"
"""The hidden states of a request's tokens, which it asked for."""

MADE = "token recorded"
"""A token of a request, which was sampled for it."""

CHOSEN, LIKELY = "token sampled", "log-likelihood recorded"
"""A token that the logits and the parameters of its row allow, and its log-likelihood there."""

PROBABLE = 1e-3
"""The largest difference of probabilities by rounding."""

MOST_MADE = 4096
"""The most requests whose sampled tokens are awaited."""

DREW, DRAWN = "state of the random stream", "random numbers drawn"
"""Where a request with a seed goes on to draw, and how many numbers it draws for a token."""

USUAL = "a request with as many drafts draws the other number"

MOST_DRAWN = 2**15
"""The most numbers that a generator on a CPU is seen to draw at once."""

UNTOLD = "logits after the request's sampling parameters"


@dataclass(frozen=True)
class AskedSampling:
    """What a request asks of its sampling. `top_k` is 0 for all tokens. `stops` end the request."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)
    allowed: Collection[int] | None = None
    forbidden: Sequence[Sequence[int]] = ()
    least: int = 0
    stops: Collection[int] = ()
    seed: int | None = None

    @property
    def penalised(self) -> bool:
        """Whether tokens are penalised that the request has."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (
            1.0,
            0.0,
            0.0,
        )

    @property
    def drops(self) -> bool:
        """Whether unlikely tokens are dropped."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def counts(self) -> bool:
        """Whether the logits depend on which tokens the request has."""
        return self.penalised or bool(self.forbidden)


NOTHING = AskedSampling()


@dataclass(frozen=True)
class Sampled:
    """One row of logits: its request, what that asks, and its tokens so far.

    - `tokens`: the first `prompt` are the prompt. A token is None if it is not known.
    - `used`: whether a token is sampled from the row, and not only from a chunk of a prompt.
    """

    request: str
    asked: AskedSampling
    prompt: int
    tokens: Sequence[int | None]
    used: bool = True

    @property
    def known(self) -> bool:
        """Whether all that the logits depend on is known."""
        depends = self.asked.counts or self.asked.least > 0
        return self.used and not (depends and None in self.tokens)

    def logits(self, raw: Tensor, heated: bool) -> Tensor:
        """Return logits after the parameters of the request, float32 [vocabulary].

        `raw` are those of the model. `heated` also applies the temperature. Tokens without a logit
        are left out: on a GPU, such an index would end the engine.
        """
        asked, found, all_tokens = self.asked, raw.float().clone(), range(raw.shape[-1])
        output = [one for one in self.tokens[self.prompt :] if one is not None]
        if asked.allowed is not None:
            allowed = sorted(one for one in asked.allowed if one in all_tokens)
            kept = torch.tensor(allowed, dtype=torch.int64, device=raw.device)
            found = torch.full_like(found, -torch.inf).index_copy(0, kept, found[kept])
        for token, bias in asked.bias.items():
            if token in all_tokens:
                found[token] += bias
        if len(output) < asked.least:
            found[[one for one in asked.stops if one in all_tokens]] = -torch.inf
        if asked.penalised:
            counts = Counter(one for one in output if one in all_tokens)
            prompt = {
                one for one in self.tokens[: self.prompt] if one is not None and one in all_tokens
            }
            seen = sorted(prompt | counts.keys())
            mine, factor = found[seen], asked.repetition_penalty
            found[seen] = torch.where(mine > 0, mine / factor, mine * factor)
            for token, count in counts.items():
                found[token] -= asked.frequency_penalty * count + asked.presence_penalty
        for *before, last in asked.forbidden:
            if last in all_tokens and output[len(output) - len(before) :] == before:
                found[last] = -torch.inf
        if heated and asked.temperature:
            found = found / asked.temperature
        return found


def logits_of(
    rows: Sequence[Sampled],
    raw: Tensor,
    held: Tensor,
    heated: bool = False,
    source: str | None = None,
) -> Iterator[RowValues]:
    """Yield the logits [rows, vocabulary] of an engine before and after sampling parameters.

    `raw` are those before. If they are `heated`, the engine has also applied temperatures and
    dropped unlikely tokens. `source` is the line that changes them.
    """
    most = max(1, MOST // max(1, raw.shape[-1]))
    places = [at for at, row in enumerate(rows) if row.known and at < len(held)][:most]
    mine = [rows[at] for at in places]
    if not places:
        return
    right = torch.stack([row.logits(raw[at], heated) for row, at in zip(mine, places, strict=True)])
    given = held[places].float()
    for at, row in enumerate(mine):
        if heated and row.asked.drops:
            right[at] = without_unlikely(right[at], given[at])

    def explain(at: int) -> str | None:
        return explained(mine, at, raw[places[at]], given[at], heated)

    names = [row.request for row in mine]
    yield RowValues(UNTOLD, names, given, right, ROUNDING, source, explain=explain)


def without_unlikely(right: Tensor, held: Tensor) -> Tensor:
    """Return logits without tokens that `held` lacks, unless it has one that is less likely."""
    lacking = held == -torch.inf
    largest = right.abs().masked_fill(right.isinf(), 0).max().clamp(min=1)
    least = right.masked_fill(lacking, torch.inf).min() + ROUNDING * largest
    return right.masked_fill(lacking & (right <= least), -torch.inf)


def explained(
    rows: Sequence[Sampled], at: int, raw: Tensor, held: Tensor, heated: bool
) -> str | None:
    """Return whose parameters or tokens explain the logits of a row, as text, or None."""

    def right(asked: AskedSampling = NOTHING, **more: Any) -> bool:
        found = replace(rows[at], asked=asked, **more).logits(raw, heated)
        if heated and rows[at].asked.drops:
            found = without_unlikely(found, held)
        close = (found - held).abs() <= ROUNDING * found.abs().masked_fill(found.isinf(), 0).max()
        return bool((close | (found == held)).all())

    if right():
        return "it has what it would have without parameters"
    mine = rows[at].asked
    for other in rows:
        if right(other.asked):
            return f"it has the parameters of request {other.request}"
        if mine.penalised and right(mine, prompt=other.prompt, tokens=other.tokens):
            return f"it has the penalties for the tokens of request {other.request}"
    return None


def moves(
    before: Mapping[str, int], now: Mapping[str, int], owner: Any, joined: str, moved: str
) -> dict[str, tuple[Stack, str]]:
    """Return how requests came into the rows that they had not `before`.

    `joined` and `moved` are the methods of `owner` that add and move rows.
    """
    found, owners = dict[str, tuple[Stack, str]](), {row: name for name, row in before.items()}
    for name, row in now.items():
        if (old := before.get(name)) != row:
            line = place_of(getattr(owner, joined if old is None else moved, None))
            text = f"it was added as row {row}" if old is None else f"it had row {old} before"
            if row in owners:
                text += f", and request {owners[row]} had row {row}"
            found[name] = Stack(() if line is None else (line,)), text
    return found


def row_sums(rows: Tensor) -> Tensor:
    """Return the checksum of each row, int32 [rows]. It is the same for other floating dtypes."""
    parts = rows.flatten(1).split(max(1, MOST // max(1, rows[:1].numel())))
    return torch.cat([sums_of(one.float()) for one in parts])


def handed_on(
    name: str,
    requests: Sequence[str],
    given: Tensor,
    places: Sequence[int],
    known: Tensor | None,
    whose: Sequence[str],
) -> Iterator[RowValues]:
    """Yield which of the rows that were computed each row that is given is, by its bits.

    `given` [n] and `known` [rows] have the checksums of `row_sums`. `places` are the right rows,
    which belong to `requests`. `whose` says whose each computed row is.
    """
    if known is None:
        yield from untried(name, requests, UNSEEN)
        return
    sums, all_sums = given.tolist(), known.tolist()
    if len(sums) != len(places):
        yield RowValues(name, requests, given, torch.tensor(places))
        return
    counts = Counter(all_sums)
    first = {one: at for at, one in reversed([*enumerate(all_sums)])}
    pairs = zip(sums, places, strict=True)
    held = [at if all_sums[at] == one else first.get(one, -1) for one, at in pairs]
    sure = [row for row, at in enumerate(places) if held[row] != at or counts[sums[row]] == 1]

    def explain(row: int) -> str:
        at = held[sure[row]]
        return f"it is that of {whose[at]}" if at >= 0 else "no row of the forward has it"

    mine, (found, right) = [requests[row] for row in sure], torch.tensor([held, places])[:, sure]
    yield RowValues(name, mine, found, right, explain=explain)
    yield from untried(name, [requests[row] for row in {*range(len(sums))} - {*sure}], ALIKE)


def embedded(
    embeddings: Tensor, rows: Iterable[Row], images: Mapping[str, Sequence[Image]]
) -> Iterator[RowValues]:
    """Yield which embedding of which image a model gets for each token that stands for one.

    `embeddings` [tokens, width] are those of all tokens of a forward. `images` are those of each
    request.
    """
    names, places, right, start = list[str](), list[int](), list[int](), 0
    known, whose, unknown = list[Tensor](), list[str](), list[str]()
    for row in rows:
        for first, count, given in images.get(row.request, ()):
            mine = range(max(first, row.cached), min(first + count, row.cached + row.computed))
            alike = given is not None and given.shape == (count, embeddings.shape[1])
            if mine and not alike:
                unknown.append(row.request)
            elif mine and given is not None:
                names += [row.request] * len(mine)
                places += [start + at - row.cached for at in mine]
                right += [len(whose) + at - first for at in mine]
                image = f"the image at position {first} of request {row.request}"
                whose += [f"token {token} of {image}" for token in range(count)]
                known.append(row_sums(given.to(embeddings.dtype)).to(embeddings.device))
        start += row.computed
    if known:
        held = row_sums(embeddings[places])
        yield from handed_on(EMBEDDINGS, names, held, right, torch.cat(known), whose)
    yield from untried(EMBEDDINGS, unknown, OTHERS)


@dataclass(frozen=True)
class Made:
    """A token that was sampled: in a batch of requests with their tokens, and how likely it was."""

    token: int
    batch: Mapping[str, Sequence[int]]
    likely: float | None = None


class Recording:
    """The tokens that were sampled for requests, by position, until the engine records them.

    A position may be sampled again, for example if a retracted request ran ahead.
    """

    def __init__(self) -> None:
        self.made: dict[str, dict[int, list[Made]]] = {}

    def sampled(
        self,
        names: Sequence[str],
        firsts: Sequence[int | None],
        tokens: Sequence[Sequence[int]],
        likely: Sequence[Sequence[float | None]] | None = None,
    ) -> None:
        """Note the tokens that a forward's sampler returns for each row, from a position on.

        The position is None where the engine does not use the tokens. `likely` has the
        log-likelihood of each token, if it is known.
        """
        batch = dict(zip(names, tokens, strict=True))
        for row, (name, first) in enumerate(zip(names, firsts, strict=True)):
            if first is None:
                continue
            places = self.made.setdefault(name, {})
            for at, token in enumerate(batch[name]):
                value = None if likely is None else likely[row][at]
                places.setdefault(first + at, []).append(Made(token, batch, value))
        while len(self.made) > MOST_MADE:
            del self.made[next(iter(self.made))]

    def unseen(self, names: Iterable[str]) -> None:
        """Note that it was not seen what was sampled for these requests."""
        for name in names:
            self.made.pop(name, None)

    def recorded(
        self,
        known: Mapping[str, tuple[int, Sequence[int]]],
        likely: Mapping[str, Mapping[int, float]] = {},
    ) -> Iterator[RowValues]:
        """Yield what the engine has recorded since, and what was sampled.

        `known` has all tokens of each request from a position on, before which is its prompt, and
        `likely` the log-likelihoods that the engine has for tokens of requests, by position.
        """
        names, held, right = list[str](), list[int](), list[Made]()
        listed, given, likelihoods = list[str](), list[float](), list[float]()
        for name, (first, tokens) in known.items():
            places = self.made.get(name, {})
            for place in [one for one in places if one < first + len(tokens)]:
                made = places.pop(place)
                if place < first:
                    continue
                mine, value = tokens[place - first], likely.get(name, {}).get(place)
                alike = [one for one in made if one.token == mine]
                names.append(name)
                held.append(mine)
                right.append((alike or made)[-1])
                values = [one.likely for one in alike if one.likely is not None]
                if value is not None and values:
                    listed.append(name)
                    given.append(value)
                    apart = [abs(one - value) for one in values]
                    likelihoods.append(values[apart.index(min(apart))])
            if not places:
                self.made.pop(name, None)

        def explain(row: int) -> str | None:
            others = [one for one, made in right[row].batch.items() if held[row] in made]
            others = [one for one in others if one != names[row]]
            return f"it was sampled for request {' or '.join(others)}" if others else None

        if names:
            tokens_made = torch.tensor([one.token for one in right])
            yield RowValues(MADE, names, torch.tensor(held), tokens_made, explain=explain)
        if listed:
            yield RowValues(
                LIKELY, listed, torch.tensor(given), torch.tensor(likelihoods), PROBABLE
            )


def chosen(
    names: Sequence[str], asked: Sequence[AskedSampling], logits: Tensor, tokens: Sequence[int]
) -> Iterator[RowValues]:
    """Yield the tokens that were sampled, and one that is allowed.

    `logits` [rows, vocabulary] are those after the parameters of each row, without its temperature.
    A greedy request gets the likeliest token, and another one none that its parameters drop. They
    are looked at one by one, so that their order does not matter.
    """
    right = [
        token if may_be(token, one, row) else int(row.argmax())
        for token, one, row in zip(tokens, asked, logits.float(), strict=True)
    ]
    if names:
        yield RowValues(CHOSEN, names, torch.tensor(tokens), torch.tensor(right))


def may_be(token: int, asked: AskedSampling, logits: Tensor) -> bool:
    """Return whether a request may get a token, by its logits [vocabulary]."""
    if not bool(logits.isfinite().any()):
        return True  # Nothing says what an engine has to choose then.
    if not 0 <= token < len(logits):
        return False
    size = logits.masked_fill(logits.isinf(), 0).abs().max().clamp(min=1)
    likelier = logits > logits[token] + ROUNDING * size
    if asked.temperature == 0 or asked.top_k == 1:
        return not bool(likelier.any())
    parts = (logits / asked.temperature).softmax(0)
    return bool(
        logits[token] > -torch.inf
        and not (0 < asked.top_k <= int(likelier.sum()))
        and (asked.top_p >= 1 or parts[likelier].sum() < asked.top_p + PROBABLE)
        and parts[token] >= asked.min_p * parts.max() * (1 - PROBABLE)
    )


def likely_of(logits: Tensor, tokens: Sequence[int]) -> list[float]:
    """Return the log-likelihood of a token in each row of logits [rows, vocabulary].

    On a GPU, an index out of bounds would end the engine.
    """
    ids = torch.tensor(tokens, device=logits.device).clamp(0, logits.shape[-1] - 1)[:, None]
    found: list[float] = logits.float().log_softmax(-1).gather(1, ids)[:, 0].tolist()
    return found


class Streams:
    """The random numbers of requests with a seed, each of which has a generator.

    A request goes on to draw where it stopped, even if it has left the batch since. How many
    numbers it draws depends on its own drafts alone.
    """

    def __init__(self) -> None:
        self.states: dict[str, Tensor | None] = {}
        """The state in which each request stopped, or None if it was not seen."""
        self.usual: dict[int, int] = {}
        """How many numbers a request draws, by its number of drafts."""

    def learn(self, vocabulary: int) -> None:
        """Learn how many numbers a request without drafts draws on a CPU, one for each token."""
        if 0 not in self.usual:
            generator = torch.Generator()
            before = generator.get_state()
            torch.empty(vocabulary).exponential_(generator=generator)
            count = drawn(generator.device, before, generator.get_state())
            if count is not None:
                self.usual[0] = count

    def unseen(self, names: Iterable[str]) -> None:
        """Forget where these requests stopped, which are all that the engine has."""
        self.states = dict.fromkeys(names)

    def begin(
        self, names: Collection[str], given: Mapping[str, torch.Generator]
    ) -> Iterator[RowValues]:
        """Yield the states from which generators of requests go on. `names` are all requests."""
        known = {name: one for name, one in self.states.items() if name in names}
        fresh = {name: begun(one) for name, one in given.items()}
        now = {name: one.get_state() for name, one in given.items()}
        self.states = {**known, **now}
        pairs = {name: (now[name], known.get(name, one)) for name, one in fresh.items()}
        sure = {name: (held, right) for name, (held, right) in pairs.items() if right is not None}
        mine = [*sure]

        def explain(row: int) -> str | None:
            again = torch.equal(now[mine[row]], fresh[mine[row]])
            return "it draws from the start of its stream again" if again else None

        if mine:
            sums = [[zlib.crc32(one.numpy().tobytes()) for one in pair] for pair in sure.values()]
            held, right = torch.tensor(sums).T
            yield RowValues(DREW, mine, held, right, explain=explain)

    def end(
        self, given: Mapping[str, torch.Generator], drafts: Mapping[str, int], used: Collection[str]
    ) -> Iterator[RowValues]:
        """Yield how many numbers were drawn for requests since `begin`.

        An engine takes them back if the request is not one of those that `used` a token.
        """
        names, held, right = list[str](), list[int](), list[int]()
        for name, one in given.items():
            before, after = self.states[name], one.get_state()
            self.states[name] = after if name in used else before
            count = None if before is None else drawn(one.device, before, after)
            if count is not None:
                names.append(name)
                held.append(count)
                right.append(self.usual.setdefault(drafts[name], count))
        if names:
            counts = torch.tensor(held), torch.tensor(right)
            yield RowValues(DRAWN, names, *counts, explain=lambda row: USUAL)


def begun(one: torch.Generator) -> Tensor:
    """Return the state of a generator when it began."""
    return torch.Generator(one.device).manual_seed(one.initial_seed()).get_state()


def drawn(device: torch.device, before: Tensor, after: Tensor) -> int | None:
    """Return how many numbers a generator has drawn between two states, or None if not known."""
    if device.type != "cpu":  # A state is the seed and the offset.
        first, last = before.view(torch.int64), after.view(torch.int64)
        return int(last[-1] - first[-1]) if len(first) == 2 else None
    counts = MOST_DRAWN, 4
    ahead, then = (
        torch.empty(count, dtype=torch.int32).random_(generator=torch.Generator().set_state(state))
        for count, state in zip(counts, (before, after), strict=True)
    )
    places = (ahead == then[0]).nonzero().flatten().tolist()
    return next((at for at in places if torch.equal(ahead[at : at + len(then)], then)), None)


def untried(name: str, requests: Sequence[str], why: str) -> Iterator[RowValues]:
    """Yield a value that is not judged in rows of these requests, if there are any."""
    if requests:
        none = torch.empty(0)
        yield RowValues(name, requests, none, none, untried=why)


def rows_of(
    name: str,
    requests: Sequence[str],
    held: Any,
    right: Sequence[float],
    source: str | None = None,
    filled: Tensor | None = None,
) -> RowValues:
    """Return one number per row: what the engine uses, and what is right."""
    given = torch.as_tensor(held).detach().flatten().cpu()
    expected = torch.tensor(list(right), dtype=given.dtype)
    return RowValues(name, requests, given, expected, source=source, filled=filled)
