"""Which rows of a batch share one call of the attention in plain torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.attention import groups as attention_groups
from kernels.attention.groups import Fresh, Groups, Paged, group_rows


def plan(rows: list[tuple[int, int]], window: int | None = None, block_bytes: int = 64) -> Groups:
    starts, counts = np.array(rows).T
    width = -(-int((starts + counts).max()) // 16)
    tables = np.arange(len(rows) * width).reshape(len(rows), width)
    keys = torch.empty(1, 16, 1, block_bytes // 32, dtype=torch.uint8)
    return group_rows(starts, counts, tables, window, keys, torch.float32)


def kinds(rows: list[tuple[int, int]]) -> list[tuple[type, int]]:
    return [(type(group), group.rows) for group in plan(rows)]


def test_decodes_of_similar_length_share_a_call() -> None:
    assert kinds([(100, 1), (90, 1), (60, 1)]) == [(Paged, 3)]


def test_a_long_decode_does_not_pad_the_short_ones() -> None:
    groups = plan([(4000, 1), (90, 1), (60, 1)])
    assert [group.rows for group in groups] == [1, 2]
    assert [len(group.blocks) for group in groups if isinstance(group, Paged)] == [251, 12]


def test_fresh_prompts_of_one_length_share_a_call() -> None:
    assert kinds([(0, 128), (0, 128), (0, 64)]) == [(Fresh, 2), (Fresh, 1)]


def test_a_chunk_behind_a_prefix_is_paged() -> None:
    assert kinds([(0, 64), (64, 64)]) == [(Fresh, 1), (Paged, 1)]


def test_drafts_of_one_length_share_a_call_and_long_chunks_do_not() -> None:
    assert kinds([(100, 1), (90, 5), (60, 5), (64, 40), (64, 40)]) == [(Paged, 1), (Paged, 2), (Paged, 1), (Paged, 1)]


def test_a_draft_does_not_share_a_call_with_a_fresh_prompt_of_its_length() -> None:
    assert kinds([(90, 5), (0, 5), (0, 5)]) == [(Paged, 1), (Fresh, 2)]


def test_a_prompt_of_one_token_joins_the_decodes() -> None:
    assert kinds([(3, 1), (0, 1)]) == [(Paged, 2)]


def test_groups_cover_the_batch_in_order() -> None:
    groups = plan([(9, 1), (0, 1), (16, 5), (0, 7), (0, 7)])
    assert [(group.begin, group.end) for group in groups] == [(0, 2), (2, 7), (7, 21)]


def test_a_call_gathers_no_more_than_stays_in_the_cache() -> None:
    """Five rows of seven blocks of 150 KB: 2 MB hold thirteen blocks."""
    groups = plan([(100, 1)] * 5, block_bytes=150 * 1024)
    assert [group.rows for group in groups] == [1, 1, 1, 1, 1]
    groups = plan([(90, 1)] * 5, block_bytes=150 * 1024)
    assert [group.rows for group in groups] == [2, 2, 1]


def test_a_long_chunk_behind_a_long_prefix_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_groups, "_MASK_ELEMENTS", 6000)
    groups = plan([(50, 1), (200, 60), (0, 100)])
    assert [(type(group), group.begin, group.end) for group in groups] == [
        (Paged, 0, 1),
        (Paged, 1, 21),
        (Paged, 21, 41),
        (Paged, 41, 61),
        (Fresh, 61, 161),
    ]
    assert all(group.mask is None or group.mask.numel() < 7000 for group in groups)


def test_a_window_gathers_only_the_blocks_that_it_reaches() -> None:
    (group,) = plan([(1000, 1)], window=20)
    assert isinstance(group, Paged)
    assert group.blocks.tolist() == [61, 62]


def test_a_row_that_fills_its_blocks_needs_no_mask() -> None:
    (group,) = plan([(31, 1), (31, 1)])
    assert group.mask is None
