"""Compares checkpoints with their manifests in threads of its own, while others load them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.manifest import Chunk, listed_chunks, manifest_path, read_manifest, remedy


class Verification:
    """Reads all chunks of some checkpoints. Those without a manifest have none, and pass.

    Files are read in the order in which they are loaded, so that disks give each byte once and the page cache the rest.
    """

    def __init__(self, checkpoints: Iterable[Path], *, threads: int | None = None) -> None:
        """Begin.

        Args:
            threads: most chunks that are read at the same time; some more than there are CPUs unless given.

        Raises:
            CheckpointError: a manifest cannot be read, or lists other files or sizes than its checkpoint has.
        """
        manifests = [(path, manifest) for path in checkpoints if (manifest := read_manifest(path)) is not None]
        self._pool = ThreadPoolExecutor(threads, "checkpoint verification")
        self._checks: list[Future[None]] = [
            self._pool.submit(_check, path, chunk, digest)
            for path, manifest in manifests
            for chunk, digest in listed_chunks(path, manifest)
        ]

    def wait(self) -> None:
        """Wait until all chunks have been read.

        Raises:
            CheckpointError: one is not what the manifest says; the message names file, bytes and remedy.
            CancelledError: `close` was called.
        """
        for check in as_completed(self._checks):
            check.result()

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Have damage of the checkpoints, if there is any, be the reason why what runs inside fails."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException:  # libraries in Rust raise panics, which are no Exception
            try:
                self.wait()
            finally:
                self.close()
            raise

    def close(self) -> None:
        """Read no more than the chunks that are being read. Idempotent."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def verify(checkpoint: Path) -> None:
    """Read all of a checkpoint that has a manifest.

    Raises:
        CheckpointError: it is not what the manifest says; the message names file, bytes and remedy.
    """
    verification = Verification([checkpoint])
    try:
        verification.wait()
    finally:
        verification.close()


def _check(checkpoint: Path, chunk: Chunk, digest: str) -> None:
    try:
        if chunk.digest() == digest:
            return
        problem = f"is damaged or exchanged: bytes {chunk.begin:,} to {chunk.end - 1:,} are not those"
    except OSError as error:
        problem = f"cannot be read ({error.strerror}): bytes {chunk.begin:,} to {chunk.end - 1:,} may not be those"
    raise CheckpointError(f"{chunk.file} {problem} of {manifest_path(checkpoint).name}; {remedy(checkpoint)}")
