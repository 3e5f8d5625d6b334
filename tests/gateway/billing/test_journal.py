"""The journal keeps lines on disk until they are deleted, whatever happens to its process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.billing.journal import Journal, JournalFull
from gateway.billing.ledger import Ledger
from gateway.config.settings import UsageSettings
from tests.gateway.billing.test_ledger import client, die, entered, entry


def create(folder: Path, limit: int = 10_000) -> Journal:
    return Journal.create(folder, limit=limit)


def contents(journal: Journal) -> list[bytes]:
    return [line for segment in journal.sealed() for lines in journal.lines(segment) for line in lines]


def test_lines_come_back_in_order_and_go_when_they_are_deleted(tmp_path: Path) -> None:
    journal = create(tmp_path)
    assert journal.empty and journal.sealed() == []
    for line in (b"one", b"two"):
        journal.append(line)
    (segment,) = journal.sealed()
    journal.append(b"three")
    assert [lines for lines in journal.lines(segment, most=4)] == [[b"one"], [b"two"]]
    journal.delete(segment)
    assert not journal.empty
    assert contents(journal) == [b"three"]
    journal.delete(*journal.sealed())
    assert journal.empty
    journal.remove()
    assert list(tmp_path.iterdir()) == []


def test_only_its_owner_reads_a_journal(tmp_path: Path) -> None:
    journal = create(tmp_path)
    journal.append(b"a")
    journal.checkpoint(b"b")
    files = list(tmp_path.iterdir())
    assert len(files) == 3 and all(file.stat().st_mode & 0o077 == 0 for file in files)


def test_what_was_read_is_not_read_again(tmp_path: Path) -> None:
    """Only what the consumer came back after."""
    journal = create(tmp_path)
    for number in range(4):
        journal.append(b"%d" % number)
    (segment,) = journal.sealed()
    reading = journal.lines(segment, most=2)
    assert next(reading) == [b"0"]
    assert next(reading) == [b"1"]  # what becomes of it is not known
    assert list(journal.lines(segment, most=2)) == [[b"1"], [b"2"], [b"3"]]


def test_a_line_longer_than_a_read_comes_whole(tmp_path: Path) -> None:
    journal = create(tmp_path)
    journal.append(b"x" * 5000)
    journal.append(b"y")
    assert [lines for lines in journal.lines(*journal.sealed(), most=100)] == [[b"x" * 5000], [b"y"]]


def test_a_living_writers_journal_is_not_taken_and_a_dead_ones_is(tmp_path: Path) -> None:
    """Closing its files is all that death does here."""
    journal = create(tmp_path)
    journal.append(b"left")
    journal.checkpoint(b"running")
    assert list(Journal.orphans(tmp_path)) == []
    journal.close()
    (orphan,) = Journal.orphans(tmp_path)
    assert orphan.writer == journal.writer
    assert list(Journal.orphans(tmp_path)) == []  # it has a new owner
    assert (contents(orphan), orphan.running()) == ([b"left"], b"running")


def test_a_line_that_was_not_written_whole_is_left_out(tmp_path: Path) -> None:
    journal = create(tmp_path)
    journal.append(b"whole")
    journal.close()
    (path,) = tmp_path.glob("*.journal")
    with path.open("ab") as file:
        file.write(b"hal")
    (orphan,) = Journal.orphans(tmp_path)
    assert contents(orphan) == [b"whole"]


def test_a_full_journal_says_so_and_stays_usable(tmp_path: Path) -> None:
    journal = create(tmp_path, limit=8)
    journal.append(b"123")
    journal.append(b"456")
    with pytest.raises(JournalFull):
        journal.append(b"7")
    assert contents(journal) == [b"123", b"456"]


def test_a_write_that_fails_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk takes what fits."""
    journal = create(tmp_path)
    journal.append(b"before")
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:2]))
    with pytest.raises(OSError, match="2 of 7 bytes"):
        journal.append(b"broken")
    monkeypatch.undo()
    journal.append(b"after")
    assert contents(journal) == [b"before", b"after"]


def test_a_folder_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        create(tmp_path / "file")


@pytest.mark.anyio
async def test_a_journal_that_cannot_be_finished_does_not_hold_up_others(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "00.lock").mkdir()
    (tmp_path / "01.lock").touch()
    (tmp_path / "01.running").write_text("{")
    async with client(redis_url) as redis:
        ledger = Ledger(redis, UsageSettings(), tmp_path)
        ledger.close("resp_1", entry(1))
        die(ledger)
        await Ledger(redis, UsageSettings(), tmp_path).adopt()
        assert [one.turn for one in await entered(redis)] == ["resp_1"]
        assert (tmp_path / "01.running").exists()
