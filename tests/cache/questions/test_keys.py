"""Names of the semantic cache in Redis."""

from __future__ import annotations

from pathlib import Path

from cache.semantic import keys

NAMED = [
    keys.embedding_key("<tenant>", "<digest>"),
    keys.embeddings_key("<tenant>"),
    keys.phrasing_key("<tenant>", "<partition>", "<phrasing>"),
    keys.answer_key("<tenant>", "<digest>"),
    keys.partition_key("<tenant>", "<partition>"),
    keys.index_key("<tenant>"),
    keys.evidence_key("<tenant>"),
    keys.given_key("<tenant>", "<response>"),
    keys.vectors_key("<tenant>", "<partition>"),
]


def test_every_key_is_documented() -> None:
    documented = Path("docs/redis-keys.md").read_text("utf-8")
    for key in (*NAMED, keys.STREAM_KEY, keys.SEQUENCE_KEY):
        assert f"`{key}`" in documented


def test_the_keys_of_a_tenant_share_a_hash_slot() -> None:
    """One script touches them together, also in a cluster."""
    assert all("{<tenant>}" in key for key in NAMED)
