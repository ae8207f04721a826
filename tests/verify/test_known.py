"""Numbers of fake tensors that are known are computed along; others stay unknown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl

from estimator.verify.known import know, know_all, numbers, numbers_asked, picks
from estimator.verify.live import Live
from estimator.verify.step import usual_numbers


@pytest.fixture
def live() -> Iterator[Live]:
    counting = Live()
    with FakeTensorMode(allow_non_fake_inputs=True), usual_numbers(), numbers_asked(counting), counting:
        yield counting


def grid(*rows: list[int]) -> torch.Tensor:
    made = torch.zeros(len(rows), 3, dtype=torch.int64)
    know(made, rows)
    return made


def test_what_is_computed_of_known_numbers_is_known(live: Live) -> None:
    sizes = grid([1, 4, 6], [1, 2, 2])
    assert sizes.prod(-1).tolist() == [24, 4]
    assert torch.repeat_interleave(sizes[:, 1], sizes[:, 2]).tolist() == [4] * 6 + [2] * 2
    assert bool(sizes[0, 1] > sizes[1, 1])
    assert not bool(sizes[0, 1] < sizes[1, 1])


def test_numbers_that_are_written_in_place_are_known(live: Live) -> None:
    sizes = grid([1, 4, 6])
    sizes[0, 1] += 3
    assert sizes.tolist() == [[1, 7, 6]]


def test_what_is_mixed_with_unknown_numbers_is_unknown(live: Live) -> None:
    mixed = grid([1, 4, 6]) * torch.rand(1, 3)
    assert numbers(mixed) is None


def test_without_numbers_none_are_made_up() -> None:
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        torch.rand(3).tolist()


def test_a_mask_says_how_many_places_it_picks(live: Live) -> None:
    pixels = torch.rand(2, 3, 4)
    know_all(pixels, 1)
    assert picks((pixels == 0.0).sum((-1, -2)) != 12) == 2
    assert picks(torch.rand(2) > 0) is None


def test_the_order_of_windows_lies_on_the_host_and_their_lengths_on_the_gpu(live: Live) -> None:
    before, get_window_index = live.bytes, vars(modeling_qwen2_5_vl)["get_vision_window_index"]
    order, lengths = get_window_index(grid([1, 12, 20]), 2, 112, 14)
    assert lengths.tolist() == [0, 64, 128, 160, 192, 224, 240]
    assert order.shape == (60,)
    assert live.bytes - before == 512  # lengths alone; the grid is gone again
