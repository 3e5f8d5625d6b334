"""The names under which the semantic cache lives in Redis; `docs/redis-keys.md` lists them.

Of one question there are two keys: the *phrasing* (its embedding and sealed profile), and what is known of the *answer*
that it leads to. The answer's text stays where the exact cache keeps it: whatever deletes or invalidates it there ends
its phrasings too.
"""

from __future__ import annotations

from typing import Final

from cache.keys import PREFIX

STREAM_KEY: Final = f"{PREFIX}:{{semantic}}:log"
"""STREAM: phrasings that were stored, for the indexes of all gateways."""
SEQUENCE_KEY: Final = f"{PREFIX}:{{semantic}}:sequence"
"""STRING: number of the last message in the stream."""


def embedding_key(tenant: str, digest: str) -> str:
    """STRING: an embedding, 16-bit floats."""
    return f"{PREFIX}:emb:{{{tenant}}}:{digest}"


def embeddings_key(tenant: str) -> str:
    """ZSET: digests of a tenant's embeddings by the time of their end, in milliseconds."""
    return f"{PREFIX}:emb-index:{{{tenant}}}"


def phrasing_key(tenant: str, partition: str, phrasing: str) -> str:
    """HASH: a question as the decision needs it."""
    return f"{PREFIX}:sem-q:{{{tenant}}}:{partition}:{phrasing}"


def answer_key(tenant: str, answer: str) -> str:
    """HASH: state and checks of a stored answer, which is named by its digest in the exact cache."""
    return f"{PREFIX}:sem-a:{{{tenant}}}:{answer}"


def partition_key(tenant: str, partition: str) -> str:
    """ZSET: phrasings of a partition by the time of their end, in milliseconds."""
    return f"{PREFIX}:sem-p:{{{tenant}}}:{partition}"


def index_key(tenant: str) -> str:
    """ZSET: `<partition>:<phrasing>` of a tenant by the time of their end, in milliseconds."""
    return f"{PREFIX}:sem-index:{{{tenant}}}"


def evidence_key(tenant: str) -> str:
    """HASH: comparisons of a tenant's stored answers with fresh ones."""
    return f"{PREFIX}:sem-evidence:{{{tenant}}}"


def given_key(tenant: str, response: str) -> str:
    """STRING: digest of the answer to a similar question that a response was answered with."""
    return f"{PREFIX}:sem-given:{{{tenant}}}:{response}"


def vectors_key(tenant: str, partition: str) -> str:
    """Vector set of a partition, where Redis has them: `<phrasing>:<answer>`."""
    return f"{PREFIX}:sem-v:{{{tenant}}}:{partition}"
