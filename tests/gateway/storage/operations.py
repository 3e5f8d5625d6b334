"""Everything that gateways ask of Redis, done once, where possible through the doors that clients use."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import httpx2
import openai
from redis.asyncio import Redis

from cache.inspection import holding
from cache.questions.hints import IndexedHints
from cache.questions.index import Hint
from cache.questions.store import SemanticStore
from cache.semantic.entry import Thresholds
from cache.semantic.profile import profile, seal
from gateway.access.directory.store import Directory
from gateway.access.identity import Principal
from gateway.billing import report
from gateway.pipeline.routing import canaries
from gateway.records.directory import Key, Route, Target, Tenant, User
from gateway.registration.job_state import RegistrationJob
from gateway.safety.hook import Finding
from gateway.safety.violations import Violation
from gateway.storage import presence
from gateway.turns.comments import Comment
from gateway.turns.forgetting import forget_texts
from tests.cache.questions.conftest import SEAL, answer, check, responses, vector
from tests.gateway.batches.use import begun, ended, line, results
from tests.gateway.conftest import Served, eventually, receive, send, text_of, until_end
from tests.gateway.people import key_of
from tests.gateway.sockets import create

PARTITION = ("demo", "p1")


async def everything(one: Served, other: Served) -> None:
    """`one` and `other` are gateways that share the Redis, with a small and a medium pool."""
    redis = one.gateway.redis
    await _turns(one, other)
    await _conversations(one.client)
    await _chats(one, other)
    await _prompts(one, other)
    await _batches(one)
    await _directory(one.gateway.directory)
    await _canaries(one)
    await _beside_turns(one, redis)
    await _semantic(redis, one)
    await _usage(one, redis)


async def _turns(one: Served, other: Served) -> None:
    """Stored, cached, continued, followed on the other gateway, and deleted."""
    client = one.client.with_options(default_headers={"Idempotency-Key": "once"})
    first = await client.responses.create(model="small", input="Hello", temperature=0, max_output_tokens=5)
    again = await one.client.responses.create(model="small", input="Hello", temperature=0, max_output_tokens=5)
    assert again.output_text == first.output_text
    await eventually(lambda: one.gateway.turns.shared["unstored"] == 0)
    assert (await other.client.responses.retrieve(first.id)).output_text == first.output_text
    await other.client.responses.create(model="small", input="And?", previous_response_id=first.id, max_output_tokens=5)
    async with one.connect() as socket, other.connect() as elsewhere:
        await create(socket, max_output_tokens=200, ignore_eos=True)
        id = (await receive(socket))["response"]["id"]
        await send(elsewhere, type="response.resume", response_id=id, starting_after=-1)
        own, followed = await asyncio.gather(until_end(lambda: receive(socket)), until_end(lambda: receive(elsewhere)))
        assert text_of(own) == text_of(followed)
    await one.client.responses.delete(first.id)


async def _conversations(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[{"type": "message", "role": "user", "content": "Hi"}])
    await client.responses.create(model="small", input="Again", conversation=made.id, max_output_tokens=5)
    assert [item async for item in client.conversations.items.list(made.id)]
    await client.conversations.update(made.id, metadata={"a": "b"})
    await client.conversations.delete(made.id)


async def _chats(one: Served, other: Served) -> None:
    """Kept, read, changed and found on the other gateway, shared, revoked, and deleted."""
    headers = {"authorization": f"Bearer {await key_of(one.gateway, 'ann')}"}
    here, there, new = f"{one.base_url}/chats", f"{other.base_url}/chats", {"if-none-match": "*"}
    chat = {"title": "A title", "updated_ms": 1, "turns": [{"id": "t1", "question": "why?", "text": "because"}]}
    async with httpx2.AsyncClient(headers=headers, timeout=20) as ann:
        for id in ("c1", "c2", "c3"):
            assert (await ann.post(f"{here}/{id}", json=chat, headers=new)).status_code == 200
        read = await ann.get(f"{there}/c1")
        changed = await ann.post(f"{there}/c1", json=chat, headers={"if-match": read.headers["etag"]})
        assert changed.json()["revision"] > read.json()["revision"]
        found = await ann.post(f"{there}/search", json={"query": "because"})
        assert len(found.json()["data"]) == len((await ann.get(here)).json()["data"]) == 3
        share = await ann.post(f"{one.base_url}/shares", json={"ciphertext": "aGVsbG8="})
        shared = f"{other.base_url}/shares/{share.json()['id']}"
        assert (await ann.get(shared)).json()["ciphertext"] == "aGVsbG8="
        assert (await ann.delete(shared)).status_code == 200 and (await ann.get(shared)).status_code == 410
        assert (await ann.get(f"{one.base_url}/shares")).json()["data"] == []
        for id in ("c1", "c2", "c3"):
            assert (await ann.delete(f"{there}/{id}")).status_code == 200
        assert (await ann.get(here)).json()["data"] == []


async def _prompts(one: Served, other: Served) -> None:
    """Made, read and changed on the other gateway, listed, and deleted; so are comments."""
    headers = {"authorization": f"Bearer {await key_of(one.gateway, 'adam', scopes=['chat', 'admin:write'])}"}
    here, there, prompt = f"{one.base_url}/prompts", f"{other.base_url}/prompts", {"name": "a", "text": "b"}
    async with httpx2.AsyncClient(headers=headers, timeout=20) as adam:
        made = (await adam.post(here, json=prompt)).json()["id"]
        read = await adam.get(f"{there}/{made}")
        changed = await adam.post(f"{there}/{made}", json=prompt, headers={"if-match": read.headers["etag"]})
        assert (await adam.get(here)).json()["data"] == [changed.json()]
        gone = await adam.delete(f"{here}/{made}", headers={"if-match": changed.headers["etag"]})
        assert gone.status_code == 200
    comment = Comment("resp_1", time.time_ns() // 1_000_000, "up", None, "Right.")
    await one.gateway.comments.write("demo", comment)
    assert await other.gateway.comments.of_tenant("demo") == [comment]
    await other.gateway.comments.remove("demo", "resp_1")
    assert await one.gateway.comments.find("demo", "resp_1") is None
    await forget_texts(other.gateway.redis, "demo")


async def _batches(served: Served) -> None:
    batch = await ended(served.client, await begun(served.client, [line("a"), line("b")]))
    assert batch.output_file_id
    assert (await results(served.client, batch.output_file_id)).keys() == {"a", "b"}
    await served.client.files.delete(batch.output_file_id)
    assert [each async for each in served.client.batches.list()]


async def _directory(directory: Directory) -> None:
    await directory.write(Tenant(name="acme"), actor="test")
    await directory.write(User(id="user_1", tenant="acme", subject="anna"), actor="test")
    await directory.write(Key(id="key_1", tenant="acme", digest="1" * 64, user="user_1"), actor="test")
    assert (await directory.page(Key, tenant="acme")).records and await directory.exists(Tenant, "acme")
    for kind, name in ((Key, "key_1"), (User, "user_1"), (Tenant, "acme")):
        await directory.delete(kind, name, actor="test")
    verifier, problem = await directory.audit.verify()
    assert problem is None and verifier.entries >= 6


async def _canaries(served: Served) -> None:
    targets = [Target(model="tiny-small", weight=50), Target(model="tiny-medium", weight=50)]
    route = await served.gateway.directory.write(Route(name="chat", targets=targets), actor="test")
    await eventually(lambda: served.gateway.view.route("chat") is not None)
    await served.client.responses.create(model="chat", input="Hello", max_output_tokens=3)
    await served.gateway.canaries.flush()
    assert sum(each.turns + each.stable_turns for each in (await canaries.read(served.gateway.redis, route)).standings)


async def _beside_turns(served: Served, redis: Redis) -> None:
    """Tickets, jobs, findings, decisions, feedback, statistics, heartbeats."""
    gateway = served.gateway
    [key] = gateway.settings.tenants[0].keys
    principal = Principal("demo", key.id)
    ticket = await gateway.tickets.issue(principal, None)
    assert await gateway.tickets.redeem(ticket, None) == principal
    job = RegistrationJob(id="job_1", kind="adapter.register", tenant="demo", adapter="a")
    await gateway.jobs.create(job)
    assert await gateway.jobs.get("job_1") and (await gateway.jobs.list(None, after="", limit=5)).jobs
    gateway.violations.add(Violation(Finding("email", "flag", "input", "d"), "demo", "demo", "resp_1"))
    await gateway.violations.flush()
    gateway.decisions.think("demo", "resp_1", "up")
    await gateway.decisions.flush()
    await gateway.statistics.flush()
    await gateway.response_cache.invalidate("demo", "tag")
    await holding(redis, "demo", limit=10)
    assert len(await presence.read(redis)) == 2


async def _semantic(redis: Redis, served: Served) -> None:
    secret = seal(profile("How high is Mont Blanc?"), b"secret")
    cache = responses(redis)
    store, hints = SemanticStore(redis, SEAL), IndexedHints(redis, redis)
    await answer(cache, "demo", "d1")
    assert await store.admit(PARTITION, "q1", "d1", secret, vector(1)) == 0
    await hints.prepare(PARTITION, len(vector(1)))
    await hints.added(PARTITION, "q1", "d1", vector(1))
    assert (await store.read(PARTITION, [Hint("q1", "d1", 0.99)])).candidates
    await store.record("demo", check(), sigma=1.0, thresholds=Thresholds())
    await hints.aclose()
    await cache.remove("demo", "d1")


async def _usage(served: Served, redis: Redis) -> None:
    ledger = served.gateway.ledger
    async with asyncio.timeout(20):
        while ledger.waiting:
            await ledger.flush()
    hour = report.current_hour()
    query = report.ReportQuery(by=("tenant",), since=hour - timedelta(hours=1), until=hour + timedelta(hours=1))
    assert report.total(await report.report(redis, query)).turns >= 5
    assert [day.problems async for day in report.verify(redis, query)] == [[]]
