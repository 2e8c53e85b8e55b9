"""What sglang's sampler uses for each row, over stand-ins of a batch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from paritybit.connectors.sglang.rows import roots
from paritybit.connectors.sglang.sampling import Placed, rows
from paritybit.watch.checks import wrong_row
from paritybit.watch.observations import RowsGiven
from properties.connectors import parts
from properties.connectors.parts import Part

VOCABULARY, EVERY, ADDED = 8, 1 << 30, "acc_additive_penalties"


def request(name: str, output: list[int], **asked: Any) -> Part:
    """Return a request of the scheduler, whose prompt ends with token 1."""
    plain = {
        "temperature": 1.0, "top_k": EVERY, "top_p": 1.0, "min_p": 0.0,
        "sampling_seed": None,
        "logit_bias": None, "frequency_penalty": 0.0, "presence_penalty": 0.0,
        "repetition_penalty": 1.0, "min_new_tokens": 0,
    }  # fmt: skip
    return Part(
        rid=name,
        origin_input_ids=[0, 1],
        output_ids=output,
        retraction_count=0,
        sampling_params=Part(**{**plain, **asked}),
    )


def a_batch() -> tuple[Part, list[Part]]:
    """Return a right SamplingBatchInfo of three requests that decode, and the requests."""
    requests = [
        request("a", [2, 2, 3, 4], temperature=0.5, top_p=0.5, frequency_penalty=0.5),
        request("b", [5], top_k=1, logit_bias={"6": 2.0}, repetition_penalty=2.0),
        request("c", [], temperature=0.9, min_p=0.25, presence_penalty=1.0, min_new_tokens=1,
                sampling_seed=7),
    ]  # fmt: skip
    added, scaled = torch.zeros(3, VOCABULARY), torch.ones(3, VOCABULARY)
    added[0, [2, 3, 4]] = torch.tensor([-1.0, -0.5, -0.5])
    scaled[1, 5] = 2.0
    added[2, 7] = -torch.inf  # A token that ends the request.
    bias = torch.zeros(3, VOCABULARY)
    bias[1, 6] = 2.0
    info = Part(
        temperatures=torch.tensor([[0.5], [1.0], [0.9]]),
        top_ks=torch.tensor([EVERY, 1, EVERY], dtype=torch.int32),
        top_ps=torch.tensor([0.5, 1.0, 1.0]),
        min_ps=torch.tensor([0.0, 0.0, 0.25]),
        sampling_seed=torch.tensor([42, 42, 7]),
        is_all_greedy=False,
        need_top_k_sampling=True,
        need_top_p_sampling=True,
        need_min_p_sampling=True,
        logit_bias=bias,
        acc_additive_penalties=added,
        acc_scaling_penalties=scaled,
        vocab_size=VOCABULARY,
        from_schedule_batch=print,
        filter_batch=print,
        merge_batch=print,
        update_penalties=print,
    )
    return info, requests


def wrong(info: Part, requests: list[Part]) -> dict[str, str]:
    """Return the request of each wrong value, by name."""
    asked = [one.sampling_params for one in requests]
    values = list(rows(info, requests, asked, "decode"))
    found = wrong_row.judge(RowsGiven(1, "decode", "sampler", values))
    return {one.key.split(" | ")[-1]: str((one.reader or {})["request"]) for one in found}


@pytest.mark.parametrize(
    ("broken", "name", "request_"),
    [
        (lambda info: info.temperatures[2].fill_(0.5), "temperatures", "c"),
        (lambda info: setattr(info, "is_all_greedy", True), "temperatures", "a"),
        (lambda info: info.top_ks[0].fill_(1), "top_ks", "a"),
        (lambda info: info.top_ps[1].fill_(0.5), "top_ps", "b"),
        (lambda info: setattr(info, "need_top_p_sampling", False), "top_ps", "a"),
        (lambda info: setattr(info, "need_min_p_sampling", False), "min_ps", "c"),
        (lambda info: info.sampling_seed[0].fill_(7), "sampling_seed", "a"),
        (lambda info: setattr(info, "logit_bias", None), "logit_bias", "b"),
        (lambda info: info.logit_bias[0, 6].fill_(2.0), "logit_bias", "a"),
        (lambda info: info.acc_additive_penalties[1, 2].fill_(-1.0), ADDED, "b"),
        (lambda info: info.acc_additive_penalties[0, 2].fill_(-1.25), ADDED, "a"),
        (lambda info: info.acc_additive_penalties[0].zero_(), ADDED, "a"),
        (lambda info: info.acc_additive_penalties[0, 7].fill_(-torch.inf),
         ADDED, "a"),
        (lambda info: info.acc_scaling_penalties[0, 5].fill_(2.0), "acc_scaling_penalties", "a"),
        (lambda info: info.acc_scaling_penalties[1, 5].fill_(1.5), "acc_scaling_penalties", "b"),
    ],
)  # fmt: skip
def test_a_row_with_another_value_is_found(
    broken: Callable[[Any], object], name: str, request_: str
) -> None:
    info, requests = a_batch()
    assert wrong(info, requests) == {}
    broken(info)
    found = wrong(info, requests)
    assert found.pop(name) == request_
    assert set(found) <= {"top_ks"}  # A batch that is taken for greedy takes the likeliest token.


def test_a_request_keeps_the_parameters_of_its_first_batch() -> None:
    placed, (part, *_) = Placed(), a_batch()[1]
    one: Any = type("Request", (), vars(part))()
    for _ in range(2):
        assert placed.asked(one).temperature == 0.5
        one.sampling_params.temperature = 1.0  # As if retraction reset it.


def test_a_token_may_be_counted_late_and_the_end_of_a_prompt_with_them() -> None:
    info, requests = a_batch()
    info.acc_additive_penalties[0, [1, 4]] = torch.tensor([-0.5, 0.0])
    info.acc_scaling_penalties[1, [1, 5]] = torch.tensor([2.0, 1.0])
    assert wrong(info, requests) == {}
    requests[0].retraction_count = 1  # Earlier tokens are then no longer counted.
    info.acc_additive_penalties[0].zero_()
    assert wrong(info, requests) == {}


@pytest.mark.parametrize(
    ("ids", "wrong"), [([7, 1, 9, 2], []), ([9, 1, 7, 2], [0, 1]), ([7, 1, 8, 2], [1])]
)
def test_drafts_begin_with_the_last_token_of_their_request(
    ids: list[int], wrong: list[int]
) -> None:
    asked = [("a", [5, 6], [7]), ("b", [8], [9]), ("c", [4], [])]
    requests = [parts.request(name, 1, prompt, output) for name, prompt, output in asked]
    batch = parts.decode([1, 2, 3], [2, 1, 1], [*ids, 3, 3], [1, 2, 3])
    batch.spec_info = type("EagleVerifyInput", (Part,), {})(draft_token_num=2)
    given, late = roots(batch, requests)  # The host does not know the last one of the third yet.
    assert wrong_row.differing(given).nonzero().flatten().tolist() == wrong
    assert late.requests == ["c"]
    assert late.untried == "the host does not know the last token yet"
    batch.spec_info.ragged_verify_layout = object()
    (of_ragged,) = roots(batch, requests)
    batch.spec_info = Part(draft_token_num=2)  # Drafts of another kind may begin otherwise.
    (of_others,) = roots(batch, requests)
    assert of_ragged.untried == of_others.untried == "the kind of drafts is not known"
