"""Who is calling, by API keys of the directory and of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.access.identity import Principal
from gateway.access.identity.authenticate import MAX_CREDENTIAL
from gateway.access.identity.last_used import LAST_USED_KEY, last_used
from gateway.errors import ApiError, Forbidden, RateLimited, Unauthorized, Unavailable
from gateway.records.api_keys import digest, new_key
from gateway.records.directory import Key, Tenant, User
from tests.conftest import redis_server
from tests.gateway.access.identity.conftest import FAILURES, NOW, SECRET, Installation, connection, make_installation

pytestmark = pytest.mark.anyio


async def commands(redis: Redis) -> int:
    """How many commands Redis has served, this one not among them."""
    return int((await redis.info("stats"))["total_commands_processed"])


async def test_a_key_of_the_directory_is_its_record(installation: Installation) -> None:
    await installation.write(User(id="ann", tenant="acme", subject="s"))
    key = await installation.key(id="ci", user="ann", scopes=["chat", "admin:read"], operator=True)
    scopes = frozenset({"chat", "admin:read"})
    assert await installation.ask(key) == Principal("acme", "ci", "ann", scopes, True, user_id="ann")


async def test_a_key_of_the_configuration_is_its_tenant(installation: Installation) -> None:
    assert await installation.ask("sesame") == Principal("filed", "file", scopes=frozenset({"models"}))


@pytest.mark.parametrize("header", ["bearer  sesame", "Bearer sesame"])
async def test_the_header_may_be_written_so(installation: Installation, header: str) -> None:
    assert (await installation.identity.authenticate(connection(None, header=header))).tenant == "filed"


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Bearer ",
        "Basic cm91bmQ=",
        "Bearer wrong",
        "Bearer a b",
        "Bearer sesame ",
        "Bearer \xff",
        "Bearer " + "x" * (MAX_CREDENTIAL + 1),
    ],
    ids=lambda header: header[:20].encode("unicode_escape").decode(),
)
async def test_anything_else_is_refused(installation: Installation, header: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        await installation.identity.authenticate(connection(None, header=header))
    assert caught.value.code == "invalid_api_key"
    assert not any(word in caught.value.message for word in ("wrong", "cm91bmQ", "sesame"))


@pytest.mark.parametrize("header", [None, ""])
async def test_no_key_is_told_apart_from_a_wrong_one(installation: Installation, header: str | None) -> None:
    with pytest.raises(Unauthorized) as caught:
        await installation.identity.authenticate(connection(None, header=header))
    assert caught.value.code == "missing_api_key"


async def test_a_key_under_another_secret_is_unknown(installation: Installation) -> None:
    text, stored = new_key(b"another secret")
    await installation.write(Key(id="k", tenant="acme", digest=stored))
    with pytest.raises(Unauthorized):
        await installation.ask(text)


async def test_a_digest_is_no_key(installation: Installation) -> None:
    """Whoever has read Redis, or the configuration, cannot call."""
    key = await installation.key()
    for stored in (digest(key, SECRET), "rh_" + digest(key, SECRET)):
        with pytest.raises(Unauthorized):
            await installation.ask(stored)


async def test_a_known_key_asks_redis_nothing(installation: Installation) -> None:
    key = await installation.key()
    await installation.ask(key)
    before = await commands(installation.redis)
    for _ in range(10):
        await installation.ask(key)
        await installation.ask("sesame")
    assert await commands(installation.redis) == before + 1  # the INFO before


async def test_a_malformed_key_asks_redis_nothing_and_an_unknown_one_once(installation: Installation) -> None:
    key, _ = new_key(SECRET)
    typo = key[:-1] + ("0" if key[-1] != "0" else "1")
    before = await commands(installation.redis)
    with pytest.raises(Unauthorized):
        await installation.ask(typo, "192.0.2.8")
    assert await commands(installation.redis) == before + 1
    for _ in range(3):
        with pytest.raises(Unauthorized):
            await installation.ask(key)
    assert await commands(installation.redis) == before + 3  # two times INFO, one look-up


async def test_an_unknown_key_writes_nothing(installation: Installation) -> None:
    before = {name async for name in installation.redis.scan_iter()}
    for _ in range(FAILURES):
        with pytest.raises(Unauthorized):
            await installation.ask(new_key(SECRET)[0])
    await installation.last_used.flush()
    assert {name async for name in installation.redis.scan_iter()} == before


async def test_an_expired_key_is_refused_from_that_second_on(installation: Installation) -> None:
    key = await installation.key(expires_at=int(NOW) + 10)
    installation.clock[0] = NOW + 9.9
    await installation.ask(key)
    installation.clock[0] = NOW + 10
    with pytest.raises(Unauthorized, match="expired"):
        await installation.ask(key)


async def test_while_keys_rotate_both_work_until_the_old_one_expires(installation: Installation) -> None:
    old = await installation.key(id="old")
    stored = await installation.directory.get(Key, "old")
    assert stored is not None
    new = await installation.key(id="new", replaces="old")
    text = digest(old, SECRET)
    await installation.write(Key(id="old", tenant="acme", digest=text, expires_at=int(NOW) + 3600))
    assert [(await installation.ask(key)).key for key in (old, new)] == ["old", "new"]
    installation.clock[0] += 3600
    assert (await installation.ask(new)).key == "new"
    with pytest.raises(Unauthorized):
        await installation.ask(old)


async def test_what_is_disabled_or_deleted_is_refused(installation: Installation) -> None:
    await installation.write(User(id="ann", tenant="acme", subject="s"))
    key = await installation.key(id="k", user="ann")
    stored = digest(key, SECRET)
    await installation.ask(key)

    await installation.write(Key(id="k", tenant="acme", user="ann", digest=stored, disabled=True))
    with pytest.raises(Unauthorized, match="disabled"):
        await installation.ask(key)
    await installation.write(Key(id="k", tenant="acme", user="ann", digest=stored))
    await installation.write(User(id="ann", tenant="acme", subject="s", disabled=True))
    with pytest.raises(Unauthorized, match="user"):
        await installation.ask(key)
    await installation.write(User(id="ann", tenant="acme", subject="s"), Tenant(name="acme", disabled=True))
    with pytest.raises(Forbidden) as caught:
        await installation.ask(key)
    assert caught.value.code == "tenant_disabled"
    await installation.write(Tenant(name="acme"))
    await installation.ask(key)
    await installation.directory.delete(Key, "k", actor="test")
    await installation.view.refresh()
    with pytest.raises(Unauthorized):
        await installation.ask(key)


async def test_a_tenant_as_new_as_its_key_is_found(installation: Installation) -> None:
    """The view has not looked since."""
    text, stored = new_key(SECRET)
    await installation.directory.write(Tenant(name="new"), actor="test")
    await installation.directory.write(Key(id="k", tenant="new", digest=stored), actor="test")
    assert (await installation.ask(text)).tenant == "new"


async def test_a_users_scopes_bound_those_of_its_keys(installation: Installation) -> None:
    await installation.write(User(id="ann", tenant="acme", subject="s", scopes=["models", "admin:read"]))
    assert (await installation.ask(await installation.key(user="ann"))).scopes == {"models"}


async def test_an_address_that_guesses_has_to_wait_and_others_do_not(installation: Installation) -> None:
    for number in range(FAILURES):
        with pytest.raises(Unauthorized):
            await installation.ask(f"guess-{number}", "2001:db8::1")
    with pytest.raises(RateLimited) as caught:
        await installation.ask("sesame", "2001:db8::ffff")
    assert caught.value.code == "too_many_failures"
    assert 1 <= int(caught.value.headers["retry-after"]) <= 60 / FAILURES
    await installation.ask("sesame", "2001:db8:0:1::1")
    installation.steady[0] += 60 / FAILURES
    await installation.ask("sesame", "2001:db8::ffff")


async def test_a_clock_that_is_set_back_lets_nobody_wait(installation: Installation) -> None:
    with pytest.raises(Unauthorized):
        await installation.ask("a typing mistake")
    installation.clock[0] -= 3600
    await installation.ask("sesame")


async def test_keys_that_cannot_be_guessed_work_from_a_slowed_address(installation: Installation) -> None:
    key = await installation.key()
    await installation.ask(key)
    for number in range(FAILURES):
        with pytest.raises(Unauthorized):
            await installation.ask(f"guess-{number}")
    before = await commands(installation.redis)
    await installation.ask(key)
    with pytest.raises(RateLimited):
        await installation.ask(new_key(SECRET)[0])
    assert await commands(installation.redis) == before + 1


async def test_clients_without_an_address_count_as_one(installation: Installation) -> None:
    for number in range(FAILURES):
        with pytest.raises(Unauthorized):
            await installation.ask(f"guess-{number}", None)
    with pytest.raises(RateLimited):
        await installation.ask("sesame", None)


async def test_a_missing_key_is_no_guess(installation: Installation) -> None:
    for _ in range(3 * FAILURES):
        with pytest.raises(Unauthorized):
            await installation.ask(None)
    await installation.ask("sesame")


async def test_a_long_connection_sees_what_happens_to_its_key(installation: Installation) -> None:
    key = await installation.key(id="k", scopes=["chat", "models"])
    principal = await installation.ask(key)
    assert await installation.identity.renew(principal) == principal
    await installation.write(Key(id="k", tenant="acme", digest=digest(key, SECRET), scopes=["models"]))
    assert (await installation.identity.renew(principal)).scopes == {"models"}
    await installation.directory.delete(Key, "k", actor="test")
    await installation.view.refresh()
    with pytest.raises(Unauthorized, match="deleted"):
        await installation.identity.renew(principal)
    filed = await installation.ask("sesame")
    assert await installation.identity.renew(filed) == filed


async def test_without_redis_known_keys_work_and_unknown_ones_are_told_to_wait() -> None:
    """Not refused: they may be right."""
    with redis_server() as url:
        async with Redis.from_url(url, socket_timeout=1) as redis:
            installation = await make_installation(redis)
            key, other = await installation.key(id="a"), await installation.key(id="b")
            await installation.ask(key)
            await redis.shutdown(nosave=True)
            await installation.ask(key)
            await installation.ask("sesame")
            for _ in range(FAILURES + 1):
                with pytest.raises(Unavailable):
                    await installation.ask(other)


async def test_the_last_use_is_stamped_once_a_minute(installation: Installation) -> None:
    key = await installation.key(id="k")
    await installation.key(id="unused")
    await installation.ask(key)
    await installation.last_used.flush()
    assert await last_used(installation.redis, "acme", ["k", "unused"]) == {"k": int(NOW)}
    installation.clock[0] += 59
    await installation.ask(key)
    await installation.last_used.flush()
    assert await last_used(installation.redis, "acme", ["k"]) == {"k": int(NOW)}
    installation.clock[0] += 2
    await installation.ask(key)
    await installation.last_used.flush()
    assert await last_used(installation.redis, "acme", ["k"]) == {"k": int(NOW) + 61}


async def test_a_refusal_names_no_secret(installation: Installation) -> None:
    key = await installation.key(id="k", disabled=True)
    with pytest.raises(ApiError) as caught:
        await installation.ask(key)
    assert key not in str(caught.value.body()) and digest(key, SECRET) not in str(caught.value.body())


def test_the_key_in_redis_is_documented() -> None:
    assert f"`{LAST_USED_KEY.format(tenant='<tenant>')}`" in Path("docs/redis-keys.md").read_text("utf-8")
