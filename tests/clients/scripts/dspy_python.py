"""DSPy: its language model over chat, text and responses, and its embedder."""

from typing import Any

import dspy
from checks import API, EMBEDDING_MODEL, KEY, MODEL, QUESTION, check, run

GIVEN: Any = {"api_base": API, "api_key": KEY, "max_tokens": 16, "cache": False, "num_retries": 0}


@check
def chat() -> None:
    assert dspy.LM(f"openai/{MODEL}", **GIVEN)(QUESTION)[0]


@check
def several_answers() -> None:
    assert len(dspy.LM(f"openai/{MODEL}", n=2, temperature=1.0, **GIVEN)(QUESTION)) == 2


@check
def text() -> None:
    assert dspy.LM(f"text-completion-openai/{MODEL}", model_type="text", **GIVEN)(QUESTION)[0]


@check
def responses() -> None:
    assert dspy.LM(f"openai/{MODEL}", model_type="responses", **GIVEN)(QUESTION)[0]


@check
async def asynchronous() -> None:
    assert (await dspy.LM(f"openai/{MODEL}", **GIVEN).acall(QUESTION))[0]


if EMBEDDING_MODEL:

    @check
    def embeddings() -> None:
        made = dspy.Embedder(f"openai/{EMBEDDING_MODEL}", api_base=API, api_key=KEY, caching=False)
        assert len(made(["one", "two"])) == 2


run()
