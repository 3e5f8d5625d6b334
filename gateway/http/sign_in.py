"""`/auth/`: signing in and out in a browser. What happens here is in `gateway.access.sign_in`.

Pages that people come to by an address answer errors as a page; `methods` and `sign_out`, which scripts call, as JSON.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable
from importlib import resources

import jinja2
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from gateway.access.directory.change import Note
from gateway.access.identity import Principal, browser
from gateway.access.identity.authenticate import TOKENS
from gateway.access.identity.browser_sessions import digest_of
from gateway.access.identity.code_flow import CALLBACK, LIFETIME, SignInProvider
from gateway.access.identity.principal import LINK
from gateway.access.sign_in_links import COMMAND, PATH
from gateway.errors import ApiError, Forbidden, InvalidRequest
from gateway.http.exchange import JsonResponse
from gateway.http.page import CONTENT_SECURITY_POLICY, FILES, HEADERS
from gateway.services import Gateway, gateway_of

log = logging.getLogger("roundhouse.identity")

_PAGE = "/auth/sign-in"
_HEADERS = {
    **HEADERS,
    # The page's only form signs out; without a referrer, browsers would send it with no origin.
    "content-security-policy": CONTENT_SECURITY_POLICY.replace("form-action 'none'", "form-action 'self'"),
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
_OWN_PATH = re.compile(r"/(?!/)[\x21-\x5b\x5d-\x7e]{0,500}")

Handler = Callable[[Request], Awaitable[Response]]


class SignInMethods(Struct, frozen=True):
    """How people can sign in."""

    key: bool
    """With an API key, which the page sends with each request."""
    providers: list[SignInProvider]
    link: str
    """Command that prints a one-time address for operators, on the machine of the gateway."""


class SignInSession(Struct, frozen=True):
    """How somebody has signed in."""

    method: str
    """`link`, or the name of a provider."""
    expires_at: float
    """When the session ends in any case, in seconds since 1970."""


def sign_in_methods(gateway: Gateway) -> SignInMethods:
    """Return how people can sign in at this gateway."""
    return SignInMethods(True, gateway.sign_in.code_flow.providers, COMMAND)


def session_of(principal: Principal) -> SignInSession | None:
    """Return how a caller has signed in; None for one who sends a key or token."""
    if principal.session is None or principal.expires_at is None:
        return None
    return SignInSession("link" if principal.key == LINK else principal.key.removeprefix(TOKENS), principal.expires_at)


async def methods(request: Request) -> Response:
    """`GET /auth/methods`: how people can sign in here, and who has."""
    ways = sign_in_methods(gateway_of(request))
    session: dict[str, object] | None = None
    principal = await gateway_of(request).signed_in(request)
    if principal is not None and (how := session_of(principal)) is not None:
        session = {
            "method": how.method,
            "tenant": principal.tenant or None,
            "user": principal.user,
            "operator": principal.operator,
            "scopes": sorted(principal.scopes),
            "expires_at": how.expires_at,
        }
    body = {"key": ways.key, "providers": ways.providers, "link": ways.link, "session": session}
    return JsonResponse(body, headers={"cache-control": "no-store"})


def _as_page(handler: Handler) -> Handler:
    """Have a handler's errors answered by a page."""

    @functools.wraps(handler)
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except ApiError as error:
            return _page("Nobody has signed in", [error.message], status=error.status, headers=error.headers, back=True)

    return answer


async def page(request: Request) -> Response:
    """`GET /auth/sign-in`: who has signed in, or how to."""
    principal = await gateway_of(request).signed_in(request)
    if principal is not None:
        who = principal.user or ("the operator of this server" if principal.operator else principal.tenant)
        return _page("Signed in", [f"You are signed in as {who}."], signed_in=True)
    providers = sign_in_methods(gateway_of(request)).providers
    sentences = ["Choose where you have an account."] if providers else ["No identity provider is configured here."]
    sentences.append(f"Operators can sign in on the machine of the gateway by the address that this prints: {COMMAND}")
    return _page("Sign in", sentences, providers=providers)


@_as_page
async def begin(request: Request) -> Response:
    """`GET /auth/sign-in/{name}?next=...`: send the browser to an identity provider."""
    # Only for the sentence: a proxy that is not trusted may say here how it was reached.
    secure = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
    if not (secure or browser.on_this_machine(request)):
        raise InvalidRequest("Signing in needs HTTPS. Open this server by its https:// address.")
    flow, wanted = gateway_of(request).sign_in.code_flow, request.query_params.get("next", "")
    back = wanted if _OWN_PATH.fullmatch(wanted) else ""
    address, kept = await flow.begin(request.path_params["name"], browser.origin(request), back)
    answer = RedirectResponse(address, 303, headers=_HEADERS)
    browser.set_cookie(answer, request, "sign-in", kept, LIFETIME)
    return answer


@_as_page
async def callback(request: Request) -> Response:
    """`GET /auth/callback`: the browser comes back from an identity provider."""
    gateway = gateway_of(request)
    kept = browser.cookie(request, "sign-in")
    finish = functools.partial(gateway.sign_in.code_flow.finish, request.query_params, kept)
    claims, back = await gateway.identity.slowed(request, finish)
    answer = await _entered(request, await gateway.identity.of_token(claims), back)
    browser.delete_cookie(answer, request, "sign-in")
    return answer


@_as_page
async def link(request: Request) -> Response:
    """`GET /auth/link?secret=...`: sign in as operator by a one-time address, on the gateway's own machine."""
    if request.method == "HEAD" or "prefetch" in request.headers.get("sec-purpose", ""):
        return Response(status_code=204)  # nobody has opened it yet
    if not _from_this_machine(request):
        raise Forbidden(
            "This address works in a browser on the machine of the gateway only, without a proxy. Elsewhere sign in "
            "with an API key or at an identity provider."
        )
    gateway = gateway_of(request)
    redeem = functools.partial(gateway.sign_in.links.redeem, request.query_params.get("secret", ""), _tenant(gateway))
    return await _entered(request, await gateway.identity.slowed(request, redeem), "")


async def sign_out(request: Request) -> Response:
    """`POST /auth/sign-out`: end the browser's session, and with it its WebSockets."""
    if not browser.own_page(request):
        raise Forbidden("only this server's own pages may sign out", code="origin_not_allowed")
    sessions = gateway_of(request).sign_in.sessions
    if (id := browser.cookie(request, "session")) is not None:
        principal = await sessions.read(digest_of(id))
        await sessions.end(digest_of(id))
        if principal is not None:
            with contextlib.suppress(ApiError):  # who wants to go is not held back by a broken audit log
                await _note(request, "session.end", principal)
    by_form = "text/html" in request.headers.get("accept", "")
    answer = RedirectResponse(_PAGE, 303) if by_form else Response(status_code=204)
    browser.delete_cookie(answer, request, "session")
    return answer


async def _entered(request: Request, principal: Principal, back: str) -> Response:
    """Begin a session, and end the one that the browser has had."""
    sessions = gateway_of(request).sign_in.sessions
    await _note(request, "session.begin", principal)
    if (id := browser.cookie(request, "session")) is not None:
        await sessions.end(digest_of(id))
    id, seconds = await sessions.begin(principal)
    log.info("signed in", extra={"tenant": principal.tenant, "key": principal.key, "user": principal.user})
    home = "/admin/" if "admin:read" in principal.scopes else "/"
    answer = RedirectResponse(back or home, 303, headers=_HEADERS)
    browser.set_cookie(answer, request, "session", id, seconds)
    return answer


async def _note(request: Request, action: str, principal: Principal) -> None:
    """Write into the audit log that somebody signs in or out."""
    noted = Note(action, principal.actor, principal.tenant or None)
    await gateway_of(request).directory.apply([noted], actor=principal.actor)


def _from_this_machine(request: Request) -> bool:
    forwarded = {"forwarded", "x-forwarded-for"} & {*request.headers.keys()}
    if forwarded or request.client is None or not browser.on_this_machine(request):
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _tenant(gateway: Gateway) -> str:
    """Return the tenant on whose behalf an operator of this machine chats: the first of the configuration, or the only
    one of the directory; empty: none."""
    if gateway.settings.tenants:
        return gateway.settings.tenants[0].name
    names = list(gateway.view.tenants())
    return names[0] if len(names) == 1 else ""


@functools.cache
def _template() -> jinja2.Template:
    source = resources.files("gateway.http").joinpath("sign_in.html.jinja").read_text("utf-8")
    return jinja2.Environment(autoescape=True).from_string(source)


def _page(
    title: str, sentences: list[str], status: int = 200, headers: dict[str, str] | None = None, **more: object
) -> Response:
    html = _template().render(title=title, sentences=sentences, **more)
    return HTMLResponse(html, status, headers={**(headers or {}), **_HEADERS})


routes: list[BaseRoute] = [
    Route("/auth/methods", methods),
    Route(_PAGE, page),
    Route(_PAGE + "/{name}", begin),
    Route(CALLBACK, callback),
    Route(PATH, link),
    Route("/auth/sign-out", sign_out, methods=["POST"]),
    Mount("/auth/static", FILES),
]
