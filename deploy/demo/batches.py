"""Cuts the stream of conversations into batches of about the same number of tokens, bucketed by length."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from deploy.demo.conversations import ConversationStream, Message
from deploy.demo.tokenizer import Encoder

#: Conversations per chunk. A chunk is the unit of resuming: its content depends on the seed and its number only.
CHUNK = 4096
#: How many questions a conversation has: mostly one; one conversation in LONG_EVERY has up to LONGEST, so that long
#: chats keep working.
TURNS = (1,) * 32 + (2, 2, 3)
LONG_EVERY, LONGEST = 128, 12
#: Share of single questions whose answer is cut after its first words. Those words decide which answer is given;
#: the rest of an answer is soon known by heart and only costs time.
CUT_SHARE = 0.88


@dataclass(frozen=True)
class TrainingBatch:
    """Token ids [rows, length], padded on the right; flat indices of the positions to learn from and their targets."""

    ids: Tensor
    positions: Tensor
    targets: Tensor


def chunk(
    make_stream: Callable[[int], ConversationStream],
    encoder: Encoder,
    number: int,
    seed: int,
    tokens: int,
    cut_share: float = CUT_SHARE,
    longest_cut: int = 12,
) -> list[TrainingBatch]:
    """The batches of one chunk, in random order."""
    rng = random.Random(f"{seed}-{number}")
    stream = make_stream(rng.getrandbits(32))
    rows = []
    for index in range(CHUNK):
        turns = rng.choice(TURNS) if index % LONG_EVERY else rng.randint(4, LONGEST)
        messages = stream.conversation(turns)
        if sum(message["role"] == "user" for message in messages) > 1 and turns == 1:
            messages = messages[: 2 + (messages[0]["role"] == "system")]
        rows.append(row(messages, encoder, rng, cut_share, longest_cut))
    # Random noise in the sort key, so that batches do not always hold the same lengths.
    rows.sort(key=lambda item: len(item[0]) + rng.random() * 4)
    batches, start = [], 0
    while start < len(rows):
        stop, longest = start, 0
        while stop < len(rows):
            longest = max(longest, len(rows[stop][0]))
            if stop > start and padded(longest) * (stop + 1 - start) > tokens:
                break
            stop += 1
        batches.append(collate(rows[start:stop], encoder.pad))
        start = stop
    rng.shuffle(batches)
    return batches


def row(
    messages: list[Message], encoder: Encoder, rng: random.Random, cut_share: float, longest_cut: int
) -> tuple[list[int], list[bool]]:
    """One conversation as ids and marks; see CUT_SHARE."""
    ids, learn = encoder.conversation(messages)
    single = sum(message["role"] == "user" for message in messages) == 1
    if single and "keep" not in messages[-1] and rng.random() < cut_share:
        stop = learn.index(True) + rng.randint(longest_cut // 3, longest_cut)
        ids, learn = ids[:stop], learn[:stop]
    return ids, learn


def padded(length: int) -> int:
    return -(-length // 8) * 8


def collate(rows: list[tuple[list[int], list[bool]]], pad: int) -> TrainingBatch:
    length = padded(max(len(ids) for ids, _ in rows))
    ids = torch.full((len(rows), length), pad)
    learn = torch.zeros((len(rows), length), dtype=torch.bool)
    for number, (tokens, marks) in enumerate(rows):
        ids[number, : len(tokens)] = torch.tensor(tokens)
        learn[number, : len(marks)] = torch.tensor(marks)
    # Position p predicts token p + 1.
    positions = learn[:, 1:].nonzero()
    flat = positions[:, 0] * length + positions[:, 1]
    return TrainingBatch(ids, flat, ids.flatten()[flat + 1])
