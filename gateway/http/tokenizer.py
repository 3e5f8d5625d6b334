"""`POST /tokenize`, `/detokenize` and `GET /tokenizer_info`, in vLLM's form: evaluation harnesses count with them.

Each counts as a request, and starts no turn. Token ids are those of one tokenizer: a name that may lead to models with
different ones is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from engine.client.conversation import ChatPrompt
from gateway.access.identity import Principal
from gateway.engines.pool import Pool
from gateway.errors import invalid_value
from gateway.http.exchange import JsonResponse, read_parameters, while_connected
from gateway.protocol.requests import TurnRequest, converted
from gateway.protocol.tokenize import DetokenizeCreate, TokenizeCreate, parse_tokenize
from gateway.services import Gateway, gateway_of


async def tokenize(request: Request) -> Response:
    """`POST /tokenize`: the tokens that a text or conversation has as a prompt."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    asked, spelled = parse_tokenize(await read_parameters(request, principal, TokenizeCreate))

    async def tokenized() -> Response:
        pool, ids = await _prompt(gateway, principal, asked)
        spelling = {"token_strs": await asyncio.to_thread(pool.text.spelled, ids)} if spelled else {}
        return JsonResponse({"count": len(ids), "max_model_len": pool.context, "tokens": ids, **spelling})

    return await while_connected(request.receive, tokenized())


async def detokenize(request: Request) -> Response:
    """`POST /detokenize`: the text of tokens, control tokens included."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    create = converted(await read_parameters(request, principal, DetokenizeCreate), DetokenizeCreate)

    async def detokenized() -> Response:
        pool, _ = await _prompt(gateway, principal, _nothing(create.model))
        try:
            await asyncio.to_thread(pool.text.spelled, sorted(set(create.tokens)))
        except ValueError as error:
            raise invalid_value("tokens", f"{error} of {pool.name}") from None
        return JsonResponse({"prompt": await asyncio.to_thread(pool.text.decode, create.tokens, skip_special=False)})

    return await while_connected(request.receive, detokenized())


async def info(request: Request) -> Response:
    """`GET /tokenizer_info`: the control tokens and the chat template of `?model=`, as in `tokenizer_config.json`."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    pool, _ = await _prompt(gateway, principal, _nothing(request.query_params.get("model")))
    return JsonResponse({**pool.text.info, "model_max_length": pool.context})


routes: list[BaseRoute] = [
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
    Route("/tokenizer_info", info, methods=["GET"]),
]


def _nothing(model: str | None) -> TurnRequest:
    """Return an empty prompt for a model, of which nothing but the model matters."""
    return TurnRequest(model=model or "auto", prompt="", add_special_tokens=False)


async def _prompt(gateway: Gateway, principal: Principal, asked: TurnRequest) -> tuple[Pool, Sequence[int]]:
    """Return a prompt's tokens, and a pool of the model that they belong to.

    Raises:
        ApiError: a turn would be refused, or models with different tokenizers may answer, or one whose server keeps it
            to itself.
    """
    prompts = await gateway.turns.count(asked, principal)
    pools = [gateway.engines.pool(name) for name in prompts]
    if len({pool.vocabulary for pool in pools}) > 1:
        names = ", ".join(prompts)
        raise invalid_value("model", f"{asked.model} may mean models with different tokenizers; name one of {names}")
    prompt = prompts[pools[0].name]
    if isinstance(prompt, ChatPrompt):
        raise invalid_value("model", f"the tokenizer of {pools[0].name} is its server's; name another model")
    return pools[0], prompt
