"""The usage ledger as a gateway keeps it: every turn that ended, once, however long Redis is away.

An entry goes to the journal on disk when its turn ends, and from there to Redis twice a second, so that no turn
waits for Redis. A process that is killed loses no turn that had ended: another gateway with the same folder of journals
writes it, at once or when it starts, and charges the limits what they had not been charged yet. Of the turns that were
running it finds their last checkpoint, `usage.flush_interval` old at most, enters them as `lost`, and charges their
limits the same. Where the disk is gone together with the machine, what had not reached Redis is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from time import monotonic

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.background import Periodic
from gateway.billing.entry import LedgerEntry
from gateway.billing.journal import Journal
from gateway.billing.store import LedgerStore, Numbered
from gateway.config.settings import UsageSettings
from gateway.records.quota import Charge
from gateway.storage.replicas import Replicas

log = logging.getLogger("roundhouse.billing")

MAX_IN_MEMORY = 10_000
"""Entries that wait in memory while the journal cannot be written."""
_BATCH = 200
CONFIRMATION = 10.0
"""Seconds after which entries that Redis has taken are forgotten here although too few of its replicas have them."""
SEARCH = 60.0
"""Seconds between two searches for dead writers' journals, if no gateway dies meanwhile."""
UPKEEP = 600.0
"""Seconds between two searches for what is old enough to be deleted."""


Snapshot = Callable[[], LedgerEntry | None]
Charges = Callable[[], Sequence[Charge]]
ChargeLost = Callable[[str, Charge], Awaitable[None]]
"""Charges a tenant's limits for a gateway that has died. Doing it again changes nothing. Raises OSError."""


class Checkpoint(Struct, frozen=True):
    """The running turns, and the number of the last entry before them."""

    number: int
    running: list[LedgerEntry]
    charges: dict[str, Sequence[Charge]] = {}
    """By turn; journals of older versions have none."""


_encoder = msgspec.json.Encoder()
_lines = msgspec.json.Decoder(Numbered)
_checkpoints = msgspec.json.Decoder(Checkpoint)


class Ledger:
    """Appends this gateway's entries to a local journal and flushes them to Redis. No turn waits for that, and nothing
    of it raises in a turn."""

    def __init__(
        self,
        redis: Redis,
        settings: UsageSettings,
        folder: Path,
        replicas: Replicas = Replicas(),  # noqa: B008  it is frozen
        charge_lost: ChargeLost | None = None,
    ) -> None:
        """Args: folder: of the journals, unless the settings name another; replicas: that must have what is written,
        before it is forgotten here; charge_lost: None: nothing is limited."""
        folder = Path(settings.journals) if settings.journals else folder
        self._store = LedgerStore(redis, settings, replicas)
        self._unconfirmed: float | None = None
        """Time since which replicas have not had what was written."""
        self._settings = settings
        self._folder = folder
        self._journal: Journal | None = None
        try:
            self._journal = Journal.create(folder, limit=settings.journal_bytes)
        except OSError as error:
            log.error("no usage journal: what is not in Redis yet dies with this process", extra={"error": str(error)})
        self._writer = self._journal.writer if self._journal else secrets.token_hex(8)
        self._number = 0
        self._memory: deque[Numbered] = deque()
        self._flushing = asyncio.Lock()
        self._charge_lost = charge_lost
        self._running: dict[str, tuple[Snapshot, Charges]] = {}
        self._checkpointed = False
        self._away = False
        self._written = monotonic()
        self._searched = self._pruned = float("-inf")
        self._writing = Periodic("usage ledger", self._tick, settings.flush_interval, at_end=self.flush)
        self.dropped = 0
        """Entries lost because neither Redis nor the journal could take them."""

    @property
    def waiting(self) -> bool:
        """Whether something has not reached Redis yet."""
        return bool(self._memory) or not (self._journal is None or self._journal.empty)

    @property
    def lag(self) -> float:
        """Seconds since Redis last took everything, if something waits for it; else 0."""
        return monotonic() - self._written if self.waiting else 0.0

    def open(self, turn: str, snapshot: Snapshot, charges: Charges = tuple) -> None:
        """Record that a turn has begun; `snapshot` gives its entry as it would be if it were lost now, and `charges`
        what its limits would be charged."""
        self._running[turn] = snapshot, charges

    def close(self, turn: str, entry: LedgerEntry | None, charges: Sequence[Charge] = ()) -> None:
        """Record that a turn has ended; without an entry if it was refused. `charges` are about to be settled."""
        self._running.pop(turn, None)
        if entry is None:
            return
        self._number += 1
        if len(self._memory) < MAX_IN_MEMORY:
            # Numbers reach Redis in order: while some wait in memory, later ones wait behind them.
            self._memory.append(Numbered(self._number, entry, tuple(charges)))
            self._save()
            return
        self.dropped += 1
        if self.dropped == 1 or self.dropped % 1000 == 0:
            log.error("usage entries were lost: make room on the disk", extra={"entries": self.dropped})

    def _save(self) -> None:
        """Move what waits in memory to the journal, as far as the disk takes it."""
        while self._memory and self._journal is not None:
            try:
                self._journal.append(_encoder.encode(self._memory[0]))
            except OSError as error:
                if len(self._memory) == 1:
                    log.error("usage journal: not written", extra={"error": str(error)})
                return
            self._memory.popleft()

    def search(self) -> None:
        """Search for dead writers' journals with the next flush."""
        self._searched = float("-inf")

    async def start(self) -> None:
        """Start flushing to Redis, twice a second."""
        await self._writing.start()

    async def aclose(self) -> None:
        """Flush what has ended, if Redis is there, and leave the rest to the next gateway."""
        await self._writing.aclose()
        self._leave()

    async def _tick(self) -> None:
        await self.flush()
        if self._away:
            return
        if monotonic() - self._searched > SEARCH:
            self._searched = monotonic()
            await self.adopt()
        if monotonic() - self._pruned > UPKEEP:
            self._pruned = monotonic()
            with contextlib.suppress(RedisError, OSError):  # next time
                await self._store.prune(datetime.now(UTC))

    async def flush(self) -> bool:
        """Write what has ended to Redis and checkpoint what runs. Return whether Redis has taken everything."""
        async with self._flushing:  # two at once would forget the same entries twice
            self._save()
            done = await self._write()
            if self._journal is not None:
                await self._keep(self._journal, done)
        return not self._away

    async def _write(self) -> list[int]:
        """Write what has ended to Redis; return the segments that are in it as a whole."""
        done: list[int] = []
        try:
            for segment in self._journal.sealed() if self._journal else ():
                assert self._journal is not None
                confirmed = True
                for lines in self._journal.lines(segment):
                    confirmed &= await self._send(self._writer, _parse(lines))
                if not confirmed:  # a fail-over may lose it: it is sent again, before what comes after it
                    self._journal.rewind(segment)
                    break
                done.append(segment)
            while self._memory and (self._journal is None or not self._journal.growing):
                batch = list(islice(self._memory, _BATCH))
                if not await self._send(self._writer, batch):
                    break
                # A turn that ended meanwhile may have moved some to the journal; Redis does not count them twice.
                while self._memory and self._memory[0].number <= batch[-1].number:
                    self._memory.popleft()
            self._answered(None)
        except (RedisError, OSError) as error:
            self._answered(error)
        return done

    async def _send(self, writer: str, entries: list[Numbered]) -> bool:
        """Write entries to Redis; return whether they may be forgotten here: replicas have them, or none has had
        anything for so long that there may be none.

        Raises:
            RedisError, OSError: as `LedgerStore.write`.
        """
        given_up = self._unconfirmed is not None and monotonic() - self._unconfirmed > CONFIRMATION
        confirmed = await self._store.write(writer, entries, patience=0.01 if given_up else None)
        if confirmed:
            self._unconfirmed = None
        elif self._unconfirmed is None:
            self._unconfirmed = monotonic()
            log.warning("usage is in Redis, but too few of its replicas have it")
        return confirmed or given_up

    async def adopt(self) -> None:
        """Write to Redis what dead writers have left in the same folder."""
        for journal in Journal.orphans(self._folder):
            try:
                await self._finish(journal)
                journal.remove()
            except (RedisError, OSError, msgspec.MsgspecError) as error:  # the others need not wait for it
                log.warning("usage journal of another process not finished yet", extra={"error": str(error)})
            finally:
                journal.close()

    async def _finish(self, journal: Journal) -> None:
        left = journal.running()
        checkpoint = _checkpoints.decode(left) if left else Checkpoint(0, [])
        running = {entry.turn: entry for entry in checkpoint.running}
        last = checkpoint.number
        segments = journal.sealed()
        confirmed = True
        for segment in segments:
            for lines in journal.lines(segment):
                entries = _parse(lines)
                confirmed &= await self._send(journal.writer, entries)
                for numbered in entries:
                    await self._charge(numbered.entry.tenant, numbered.charges)
                    running.pop(numbered.entry.turn, None)
                    last = max(last, numbered.number)
        if running:
            log.warning("turns of a gateway that died", extra={"turns": len(running)})
            lost = [Numbered(last + index, entry) for index, entry in enumerate(running.values(), 1)]
            confirmed &= await self._send(journal.writer, lost)
        if not confirmed:
            raise RedisError("too few replicas have it")
        for entry in running.values():
            await self._charge(entry.tenant, checkpoint.charges.get(entry.turn, ()))
        # Only now: whoever has to begin again must find the same turns under the same numbers.
        journal.checkpoint(b"")
        for segment in segments:
            journal.delete(segment)

    async def _charge(self, tenant: str, charges: Iterable[Charge]) -> None:
        if self._charge_lost is not None:
            for charge in charges:
                await self._charge_lost(tenant, charge)

    async def _keep(self, journal: Journal, done: Iterable[int]) -> None:
        """Bring the files on disk up to date."""
        try:
            # Before segments go: a turn that has ended must not be found in the last checkpoint only.
            running: list[LedgerEntry] = []
            charges: dict[str, Sequence[Charge]] = {}
            for snapshot, charged in self._running.values():
                if (entry := snapshot()) is not None:
                    running.append(entry)
                    if owed := charged():
                        charges[entry.turn] = owed
            if running or self._checkpointed:
                journal.checkpoint(_encoder.encode(Checkpoint(self._number, running, charges)) if running else b"")
                self._checkpointed = bool(running)
            for segment in done:
                journal.delete(segment)
            if not journal.empty and self._away:
                await asyncio.to_thread(journal.sync)
        except OSError as error:
            log.error("usage journal: not kept", extra={"error": str(error)})

    def _answered(self, error: Exception | None) -> None:
        if error is not None and not self._away:
            log.warning("usage is not written to Redis for now", extra={"error": type(error).__name__})
        elif error is None and self._away:
            log.info("usage is written to Redis again")
        self._away = error is not None
        if error is None:
            self._written = monotonic()

    def _leave(self) -> None:
        if self._journal is None:
            return
        if self._journal.empty and not self._running:
            self._journal.remove()
        else:
            self._journal.close()


def _parse(lines: list[bytes]) -> list[Numbered]:
    entries = []
    for line in lines:
        try:
            entries.append(_lines.decode(line))
        except msgspec.MsgspecError:
            log.error("usage journal: a line cannot be read", extra={"bytes": len(line)})
    return entries
