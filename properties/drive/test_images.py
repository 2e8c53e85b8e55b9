"""Images of requests: what stands for them in a prompt, and their positions."""

from itertools import islice

import pytest
import torch

from paritybit.drive.models import IMAGE
from paritybit.drive.operating.embeddings import embedding, positions
from paritybit.drive.operating.images import grid, hash_of, image, images_of, with_images
from paritybit.drive.requests import waves
from paritybit.drive.script import Part, Planned, Wave
from paritybit.drive.sglang.settings import SglangServed
from paritybit.drive.vllm.settings import VllmServed
from properties.drive.toy import LIMITS

PROMPT = (Part("a", 2), image("b", 4), image("c", 3), Part("d", 1))


def test_an_image_has_its_own_content_and_the_hash_that_it_is_given() -> None:
    one, same, other = (Part(text, 4, image="hash") for text in "aab")
    assert one.tokens() == (IMAGE,) * 4
    assert torch.equal(embedding(one, 8), embedding(same, 8))
    assert not torch.equal(embedding(one, 8), embedding(other, 8))
    assert hash_of(one) == hash_of(other) is not None
    assert hash_of(image("a", 4)) is None


def test_tokens_of_images_have_a_row_and_a_column() -> None:
    assert [(at, part.text) for at, part in images_of(PROMPT)] == [(2, "b"), (6, "c")]
    assert [grid(part) for _, part in images_of(PROMPT)] == [[1, 4, 4], [1, 2, 6]]
    time, row, column = positions(PROMPT).tolist()
    assert time == [0, 1, *[2] * 4, *[4] * 3, 7]
    assert row == [0, 1, 2, 2, 3, 3, *[4] * 3, 7]
    assert column == [0, 1, 2, 3, 2, 3, 4, 5, 6, 7]


def test_half_of_the_single_turns_have_images_and_some_share_them() -> None:
    given = list(islice(with_images(3, waves(3, LIMITS)), 12))
    assert given == list(islice(with_images(3, waves(3, LIMITS)), 12))
    prompts = [one.prompt for wave in given for one in wave.requests]
    pictured = [[part for _, part in images_of(prompt)] for prompt in prompts]
    assert 1 / 3 < sum(map(bool, pictured)) / len(prompts) < 2 / 3
    assert max(map(len, pictured)) == 2
    assert len({part for parts in pictured for part in parts}) == 10
    turns = {one.name for wave in given for one in wave.requests if one.follows is not None}
    assert turns
    assert not any(
        [*images_of(one.prompt)] for wave in given for one in wave.requests if one.name in turns
    )


@pytest.mark.parametrize("named", [SglangServed, VllmServed])
def test_images_may_end_prompts_in_vllm_alone(named: type[SglangServed | VllmServed]) -> None:
    served = named(model="qwen2_vl", images=True)
    prompts = [one.prompt for wave in islice(served.requests(), 12) for one in wave.requests]
    ends = [prompt[-1].image is not None for prompt in prompts if [*images_of(prompt)]]
    assert any(ends) is (named is VllmServed)
    assert not all(ends)


def test_some_come_again_with_other_images_of_the_same_lengths() -> None:
    (wave,) = with_images(3, [Wave(tuple(Planned(f"{n}", PROMPT[:1], 1) for n in range(40)))])
    named = {one.name: one for one in wave.requests}
    again = [name for name in named if name.startswith("other ")]
    assert 2 < len(again) < len([one for one in named.values() if one.prompt != PROMPT[:1]]) / 2
    for name in again:
        one, other = named[name.removeprefix("other ")], named[name]
        assert other.arrives > one.arrives
        assert one.ids() == other.ids()
        pairs = zip(images_of(one.prompt), images_of(other.prompt), strict=True)
        assert all(part != twin for (_, part), (_, twin) in pairs)
