"""Which features make wording matter, and what models without them are worth."""

from __future__ import annotations

import numpy as np
import pytest

from bench import wording_features
from bench.data import json_lines
from bench.router_wordings import WORDINGS, RewordedQuestion
from bench.wording_features import FEATURES, Reworded, blame, trade_off
from gateway.pipeline.routing.calibration import RELEASED, read_model
from router.crossfit import features, vectors
from router.fit import Examples


def test_a_question_mark_is_what_differs_most_between_wordings() -> None:
    texts = [each.wordings for each in json_lines(WORDINGS, RewordedQuestion)]
    wordings = vectors(features([text for each in texts for text in each])).reshape(len(texts), len(texts[0]), -1)
    found = blame(read_model(str(RELEASED)), wordings)
    assert found[0].name == "questions" and len(found) == len(FEATURES)
    assert next(each for each in found if each.name == "numbers").differs == pytest.approx(0, abs=0.05)


def test_without_a_feature_its_changes_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up questions, whose outcomes hang on a feature in which their wordings differ."""
    monkeypatch.setattr(wording_features, "BOUNDS", (np.inf, 0.5))
    monkeypatch.setattr(wording_features, "RESAMPLES", 20)
    rng, asked = np.random.default_rng(0), FEATURES.index("questions")
    seen = rng.normal(size=(120, len(FEATURES))).astype(np.float32)
    large = rng.random(120) < 1 / (1 + np.exp(-3 * seen[:, asked]))
    outcomes = np.stack([rng.random(120) < 0.2, rng.random(120) < 0.2, large], axis=1).astype(np.float32)
    rows = np.arange(0, 40)
    wordings = np.repeat(seen[rows][:, None], 3, axis=1)
    wordings[:, :, asked] += np.array([-2.0, 0.0, 2.0], np.float32)
    embeddings = rng.normal(size=(120, 8)).astype(np.float32)
    data = Reworded(
        Examples(seen, embeddings, outcomes),
        np.arange(120) % 2,
        rows,
        wordings,
        np.repeat(embeddings[rows][:, None], 3, axis=1),
    )
    every, with_all, without, _ = trade_off(data)
    assert (every.basis, with_all.basis) == ("features", "with an embedding")
    assert every.median > 0.2 and without.median == pytest.approx(0, abs=1e-6) and without.within == 1.0
    assert without.less.high < 0 < without.brier.value
