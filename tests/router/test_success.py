"""The learnt model: fitted on made-up requests whose truth is known, applied, written and read."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save
from sklearn.neighbors import NearestNeighbors

from router.features import Features, PromptMessage, extract
from router.fit import Examples, fit
from router.success import (
    COUNTS,
    FORMAT,
    SHARES,
    Basis,
    FeatureModel,
    Metadata,
    SuccessModel,
    neighbours,
    shipped,
    unit,
    vector,
    write,
)

WIDTH = 12


def examples(size: int, seed: int) -> tuple[Examples, np.ndarray]:
    """Requests whose difficulty shows in their length and in one direction of their embedding; and the truth."""
    generator = np.random.default_rng(seed)
    words = generator.integers(1, 60, size)
    embeddings = unit(generator.normal(size=(size, WIDTH)).astype(np.float32) * np.linspace(2, 0.5, WIDTH))
    rows = []
    for count, lines in zip(words, generator.integers(1, 6, size), strict=True):
        noise = {name: int(generator.integers(0, 4)) for name in ("questions", "terms", "parts", "numbers")}
        rows.append(vector(Features(words=int(count), lines=int(lines), digits=generator.random() / 5, **noise)))
    ease = 1.5 - 0.06 * words + 3 * embeddings[:, 0]
    truth = 1 / (1 + np.exp(-(ease[:, None] + np.array([-0.5, 0.0, 1.0]))))
    outcomes = (generator.random((size, 3)) < truth).astype(np.float32)
    return Examples(np.stack(rows), embeddings, outcomes), truth


@pytest.fixture(scope="module")
def content() -> bytes:
    return fit(examples(3000, 0)[0], trained_on="made up", embedding="none")


@pytest.fixture(scope="module")
def model(content: bytes) -> SuccessModel:
    return SuccessModel.read(content)


def test_probabilities_are_near_the_truth_and_nearer_with_an_embedding(model: SuccessModel) -> None:
    others, truth = examples(2000, 1)
    errors = []
    for embeddings in (others.embeddings, None):
        believed, _, _ = model.estimate(others.vectors, model.project(embeddings))
        errors.append(np.sqrt(((believed - truth) ** 2).mean()))
        assert (np.diff(believed, axis=1) >= 0).all()
        assert np.abs(believed.mean(axis=0) - truth.mean(axis=0)).max() < 0.04
    assert errors[0] < errors[1] < truth.std()


def test_what_was_learnt_from_is_familiar_and_something_else_is_not(model: SuccessModel) -> None:
    others, _ = examples(500, 2)
    assert (
        np.mean([each.probabilities is not None for each in model.predict_all(others.vectors, others.embeddings)]) > 0.9
    )
    odd = Features(words=9000, lines=700, digits=0.9, numbers=5000)
    prediction = model.predict(odd)
    assert (prediction.probabilities, prediction.basis) == (None, Basis.FEATURES)
    assert prediction.strangeness > 1


def test_one_request_is_predicted_as_among_many(model: SuccessModel) -> None:
    others, _ = examples(5, 3)
    together = model.predict_all(others.vectors, others.embeddings)
    alone = [model.predict_all(others.vectors[i : i + 1], others.embeddings[i : i + 1])[0] for i in range(5)]
    for one, all in zip(alone, together, strict=True):
        assert one.probabilities == pytest.approx(all.probabilities, abs=1e-5)


counts = st.integers(0, 100_000) | st.integers(0, 40)
lengths = st.floats(0, 1e4)
shares = st.floats(0, 1)
kinds = dict.fromkeys(COUNTS, counts) | dict.fromkeys(SHARES, shares)
kinds |= {"asks": st.booleans(), "middle_line": lengths, "word_length": lengths}
anything = st.fixed_dictionaries(kinds).map(lambda values: Features(**values))


@given(anything)
def test_without_an_embedding_a_request_alone_is_predicted_as_among_many(features: Features) -> None:
    """Whatever it is like, by the model of this release."""
    probabilities, strangeness, _ = shipped().estimate(vector(features)[None], None)
    alone = FeatureModel(shipped().arrays).judge(features)
    assert alone[0] == pytest.approx(probabilities[0], abs=1e-4)
    assert alone[1] == pytest.approx(strangeness[0], rel=1e-3, abs=1e-3)
    predicted = shipped().predict(features)
    assert predicted.strangeness == alone[1]
    assert predicted.probabilities == (alone[0] if alone[1] <= 1 else None)


def test_neighbours_are_those_of_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    points, queries = (unit(generator.normal(size=(n, 8)).astype(np.float32)) for n in (400, 20))
    outcomes = (generator.random((400, 3)) < 0.5).astype(np.float32)
    distance, rows = NearestNeighbors(n_neighbors=100, metric="cosine").fit(points).kneighbors(queries)
    weight = np.exp(-(distance - distance[:, :1]) / 0.2)
    expected = (weight[:, :, None] * outcomes[rows]).sum(axis=1) / weight.sum(axis=1, keepdims=True)
    mean, near = neighbours(points, outcomes, queries)
    assert mean == pytest.approx(expected, abs=1e-5)
    assert near == pytest.approx(1 - distance[:, :10].mean(axis=1), abs=1e-5)


def test_the_same_examples_make_the_same_file(content: bytes) -> None:
    assert fit(examples(3000, 0)[0], trained_on="made up", embedding="none") == content


def test_a_file_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="no router model"):
        SuccessModel.read(b"PK\x03\x04 something else")
    with pytest.raises(ValueError, match="no router model"):
        SuccessModel.read(content[:-100])
    with pytest.raises(ValueError, match="no router model"):
        SuccessModel.read(save({"a": np.zeros(1)}))
    older = write(load(content), Metadata(format="roundhouse-router-0", trained_on="", requests=1, embedding=""))
    with pytest.raises(ValueError, match=f"'roundhouse-router-0'; this release reads '{FORMAT}'"):
        SuccessModel.read(older)


def test_the_model_of_this_release_knows_exam_questions_and_leaves_chat_alone() -> None:
    exam = (
        "A gas expands at a constant pressure of 2 atm from 3 L to 9 L. What is the work done by it?\n"
        "1216 J\n600 J\n12 J\n1800 J\n304 J\n2432 J\n152 J\n900 J\n1000 J\n450 J"
    )
    known = shipped().predict(extract([PromptMessage("user", exam)]))
    assert known.probabilities is not None
    small, medium, large = known.probabilities
    assert 0 < small <= medium <= large < 1
    for text in ("hello", "How do I reset my password?", "Write a poem about the sea."):
        assert shipped().predict(extract([PromptMessage("user", text)])).probabilities is None


def test_a_prediction_survives_serialisation(model: SuccessModel) -> None:
    prediction = model.predict(Features(words=10, lines=2))
    assert msgspec.json.decode(msgspec.json.encode(prediction), type=type(prediction)) == prediction
