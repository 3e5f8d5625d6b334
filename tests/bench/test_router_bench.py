"""The evaluation of the router from end to end on made-up questions, and its model file made anew."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import questions, router, router_model, spending
from router.success import MODEL, Basis, Prediction, SuccessModel
from router.tier import TIERS, Outlook, Terms, ValueSource, choose

shares = st.floats(0, 1)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """360 questions of three categories, of which the long ones are hard; embeddings made up, for they take a model."""
    generator = np.random.default_rng(0)
    with gzip.open(tmp_path / questions.FILE, "wt") as lines:
        for number in range(360):
            words = int(generator.integers(3, 40))
            right = np.sort(generator.random(3) * words / 20)[::-1] < 0.5
            row = {
                "id": number,
                "category": ("law", "maths", "history")[number % 3],
                "question": "why " * words + "?",
                "options": [str(generator.integers(0, 99)) for _ in range(4)],
                "correct": dict(zip(questions.TIERS, map(bool, right), strict=True)),
                "output_chars": dict.fromkeys(questions.TIERS, 200),
            }
            lines.write(json.dumps(row) + "\n")
    monkeypatch.setenv("ROUNDHOUSE_BENCH_DATA", str(tmp_path))
    monkeypatch.setattr(questions, "embed", lambda texts: generator.normal(size=(len(texts), 384)).astype(np.float32))
    return tmp_path


@pytest.mark.deep
def test_every_method_is_judged_in_both_splits(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    router.main(["--resamples", "20", "--output", str(data)])
    text = (data / "router.md").read_text()
    assert text in capsys.readouterr().out
    record = msgspec.json.decode((data / "router.json").read_bytes())
    for split in ("by question", "by category"):
        lines = {line["method"]: msgspec.convert(line, router.RouterLine) for line in record[split]}
        assert lines.keys() == {*router.METHODS, "random", "oracle"}
        assert lines["oracle"].area.value > lines["ours"].area.value
        # What shows in the words is learnt, what does not is not.
        assert lines["ours, no embedding"].area.value > lines["static mixture"].area.value
        assert lines["random"].area.value == pytest.approx(0.5)
        assert (data / f"router-{split.replace(' ', '-')}.png").read_bytes().startswith(b"\x89PNG")
    spent = msgspec.convert(record["budgets"], list[spending.Spent])
    assert len(spent) == 2 * len(spending.BUDGETS)
    turned = msgspec.convert(record["knob"], list[spending.Position])
    assert [each.quality for each in turned] == list(spending.POSITIONS)
    # At no price of quality the dearest tier answers, unless another one is believed to be as good.
    assert turned[0].tiers == (1, 0, 0) and 0.9 < turned[-1].spent.value <= 1
    assert all(each.realised.low <= each.realised.high and 0 < each.quality.value < 1 for each in spent)


@given(st.tuples(shares, shares, shares), st.floats(0, 10))
def test_a_stream_takes_what_the_router_takes(probabilities: tuple[float, float, float], price: float) -> None:
    outlook = Outlook(ValueSource.LEARNT, 0.0, Prediction(probabilities, Basis.EMBEDDING, 0.0))
    choice = choose(outlook, Terms(price, 0.1, spending.COSTS))
    assert TIERS[spending.cheapest_best(probabilities, price)] == choice.tier


def test_the_model_file_is_made_with_its_suite(data: Path) -> None:
    router_model.main(["--output", str(data)])
    model = SuccessModel.read((data / MODEL.name).read_bytes())
    kept = questions.read(data / questions.FILE).frozen
    assert model.metadata.requests == len(kept) - kept.sum()
    assert (data / "suite.safetensors").is_file()


def test_without_data_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROUNDHOUSE_BENCH_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="ROUNDHOUSE_BENCH_DATA"):
        router.main([])
