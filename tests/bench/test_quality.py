"""The benchmark of exactness: its arithmetic, its exact model beside transformers, and a run in miniature."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from torch.nn.functional import kl_div

from bench.checkpoints import cache_folder
from bench.divergence import Distances, distances, joined, summary
from bench.peers import python_of
from bench.quality import OF_BF16, OF_FILES, QualityResults, main, peer
from bench.quality_reference import ExactModel, write_bf16
from bench.quality_texts import windows
from bench.real_files import real_file
from engine.checkpoint.opening import open_checkpoint
from tests.engine.checkpoint.gguf.miniature import write_gguf
from tests.engine.checkpoints import oracle_logits, random_prompt, write_checkpoint

LLAMA_CPP = python_of("llama.cpp", cache_folder())


@pytest.fixture(autouse=True)
def threads_of_other_tests() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quality")
    directory = write_checkpoint(folder / "model", "llama", intermediate_size=128, vocab_size=512)
    return write_gguf(folder / "model.gguf", directory, type_of=lambda name: Type.Q8_0)


def test_divergences_are_torch_s() -> None:
    reference, candidate = torch.randn(5, 30, dtype=torch.float64), torch.randn(5, 30, dtype=torch.float64)
    terms = kl_div(candidate.log_softmax(-1), reference.log_softmax(-1), reduction="none", log_target=True)
    assert distances(reference, candidate).divergences == pytest.approx(terms.sum(-1).tolist())


def test_likeliest_tokens_are_compared_and_ties_are_found() -> None:
    reference = torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    candidate = torch.tensor([[0.0, 2.0, 2.0], [1.0, 2.0, 0.0]])
    found = distances(reference, candidate)
    assert found.same == [True, False]
    assert found.tied == [True, False]


def test_a_summary_is_that_of_all_positions() -> None:
    whole = summary(joined([Distances([1.0, 2.0], [True, True], [False, True]), Distances([6.0], [False], [False])]))
    assert (whole.positions, whole.mean, whole.median, whole.most) == (3, 3.0, 2.0, 6.0)
    assert whole.error == pytest.approx(math.sqrt(7 / 3))
    assert [whole.same_top, whole.ties] == pytest.approx([2 / 3, 1 / 3])


def test_the_exact_model_is_transformers_in_fp32(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", "qwen2")
    prompts = [random_prompt(20), random_prompt(20)[::-1]]
    exact = ExactModel(open_checkpoint(directory), np.array(prompts))
    for number, prompt in enumerate(prompts):
        assert torch.allclose(exact.logits(number, 0, 20), oracle_logits(directory, prompt), atol=1e-5)


def test_a_file_rounded_to_bf16_is_the_same_model(tmp_path: Path, file: Path) -> None:
    write_bf16(open_checkpoint(file), tmp_path)
    exact, rounded = (ExactModel(open_checkpoint(path), np.array([random_prompt(20)])) for path in (file, tmp_path))
    divergence = summary(distances(exact.logits(0, 0, 20), rounded.logits(0, 0, 20))).mean
    assert 0 < divergence < 1e-3


def test_windows_are_cut_from_four_kinds_of_text(file: Path) -> None:
    found = windows(file, 2, 50)
    assert [each.kind for each in found] == ["documents", "sources", "licence", "chats"]
    assert all(each.ids.shape == (2, 50) for each in found)
    assert len({each.digest for each in found}) == 4


def test_a_text_that_is_too_short_is_named(file: Path) -> None:
    with pytest.raises(ValueError, match=r"licence has .* too few for 100 windows of 1000; ask for fewer"):
        windows(file, 100, 1000)


def test_a_model_that_is_not_here_is_told_with_the_command_that_fetches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(argparse.ArgumentTypeError, match="roundhouse models pull smollm2-135m"):
        real_file("A")
    with pytest.raises(argparse.ArgumentTypeError, match="neither a file nor one of A, B, C"):
        real_file("D")


def test_a_run_in_miniature(tmp_path: Path, file: Path) -> None:
    main(
        [
            *("--files", str(file), "--bf16", str(file), "--quick", "--threads", "1"),
            *("--cache", str(tmp_path), "--output", str(tmp_path), "--name", "quality"),
        ]
    )
    results = msgspec.json.decode((tmp_path / "quality.json").read_bytes(), type=QualityResults)
    means = {row.candidate: row.whole.mean for row in results.rows}
    assert list(means) == [variant.name for variant in (*OF_FILES, *OF_BF16)]
    exact = means["Roundhouse, fp32 KV"]
    assert exact < 1e-6 and means["Roundhouse"] < 1e-5
    assert means["Roundhouse"] < means["Roundhouse, bf16 KV"] < means["Roundhouse, bf16 activations"] < 1e-3
    assert means["Roundhouse bf16"] < means["Roundhouse int4"] < 1
    assert all(row.whole.positions == 320 for row in results.rows)
    assert (tmp_path / "quality.md").read_text().count("| model.gguf") == len(means)


@pytest.mark.skipif(LLAMA_CPP is None, reason="llama.cpp is not set up (python -m bench.peers llama.cpp)")
def test_llama_cpp_computes_the_same_model(file: Path) -> None:
    assert LLAMA_CPP is not None
    ids = np.array([random_prompt(70), random_prompt(70)[::-1]])
    exact = ExactModel(open_checkpoint(file), ids)
    found = [
        distances(exact.logits(number, begin, begin + len(logits)), logits)
        for number, begin, logits in peer(LLAMA_CPP, file, ids, exact.vocabulary)
    ]
    assert summary(joined(found)).mean < 1e-3
