"""Reads the hand-written corpus: intents, their phrasings, and the split between training and exam.

An intent is one canonical answer with many phrasings. Phrasings are patterns in which `[a|b]` means "a or b".
Whole patterns are held back for the exam, so the exam asks in sentence structures the models never saw.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORPUS_DIR = HERE / "corpus"
HANDBOOK_FILE = HERE / "adapters" / "handbook.toml"

#: The split is part of the exam: changing this seed makes old accuracy figures incomparable.
SPLIT_SEED = 20
HELD_BACK_PATTERNS = 2
HELD_BACK_FOLLOWUP_PATTERNS = 1
#: Expansions of trained patterns that are kept out of training too: the easier exam.
EASY_EXPANSIONS = 2

_GROUP = re.compile(r"\[([^\[\]]*)\]")
_SPACES = re.compile(r"\s+")
_PUNCTUATION = re.compile(r"[^\w\s]")


class CorpusError(ValueError):
    """The corpus breaks one of its own rules; the message names the file or the intent."""


@dataclass(frozen=True)
class CorpusTurn:
    """One answer and the patterns that ask for it."""

    id: str
    ask: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class Intent(CorpusTurn):
    """A turn that can open a conversation, with the follow-ups that only make sense after it."""

    topic: str
    followups: tuple[CorpusTurn, ...]


@dataclass(frozen=True)
class SplitTurn:
    """A turn with its phrasings divided into training, easy exam and held-back exam.

    `train` keeps one tuple of expansions per pattern, because sampling is uniform over patterns: otherwise a
    pattern with forty expansions would drown one with two.
    """

    turn: CorpusTurn
    train: tuple[tuple[str, ...], ...]
    easy: tuple[str, ...]
    held_back: tuple[str, ...]


@dataclass(frozen=True)
class SplitIntent:
    intent: Intent
    opening: SplitTurn
    followups: tuple[SplitTurn, ...]


def stable_hash(*parts: object) -> int:
    """A 64-bit number that depends on nothing but its arguments (unlike `hash`, which is salted per process)."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def expand(pattern: str) -> list[str]:
    """All strings a pattern stands for, in order, without duplicates, with single spaces.

    Raises CorpusError on a bracket or bar that belongs to no group.
    """
    pieces = _GROUP.split(pattern)
    literals, groups = pieces[0::2], pieces[1::2]
    if any(mark in literal for literal in literals for mark in "[]|"):
        raise CorpusError(f"unbalanced brackets in pattern {pattern!r}")
    choices = [[literals[0]]]
    for group, literal in zip(groups, literals[1:], strict=True):
        choices.append(group.split("|"))
        choices.append([literal])
    strings = (_SPACES.sub(" ", "".join(parts)).strip() for parts in itertools.product(*choices))
    return list(dict.fromkeys(text for text in strings if text))


def normalise(text: str) -> str:
    """Lower case, no punctuation, single spaces: what counts as the same question."""
    return _SPACES.sub(" ", _PUNCTUATION.sub(" ", text.lower())).strip()


def load_intents(folder: Path = CORPUS_DIR) -> list[Intent]:
    """All intents of all TOML files in a folder, in file order."""
    return [intent for path in sorted(folder.glob("*.toml")) for intent in load_file(path)]


def load_file(path: Path) -> list[Intent]:
    """The intents of one file. Raises CorpusError naming the file when a field is missing or malformed."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise CorpusError(f"{path.name}: {error}") from error
    return [_intent(entry, path) for entry in data.get("intent", [])]


def _intent(entry: dict[str, object], path: Path) -> Intent:
    identity = str(entry.get("id", ""))
    raw = entry.get("followup", [])
    if not identity or not isinstance(raw, list):
        raise CorpusError(f"{path.name}: an intent without id, or with a malformed followup")
    followups = tuple(_turn(item, f"{identity}/{number}", path) for number, item in enumerate(raw, start=1))
    opening = _turn(entry, identity, path)
    return Intent(identity, opening.ask, opening.answer, path.stem, followups)


def _turn(entry: dict[str, object], identity: str, path: Path) -> CorpusTurn:
    ask, answer = entry.get("ask"), entry.get("answer")
    if not isinstance(ask, list) or not ask or not all(isinstance(item, str) for item in ask):
        raise CorpusError(f"{path.name}: {identity} needs a list of patterns in `ask`")
    if not isinstance(answer, str) or not answer.strip():
        raise CorpusError(f"{path.name}: {identity} needs an `answer`")
    return CorpusTurn(identity, tuple(ask), answer.strip())


def check(intents: Iterable[Intent]) -> list[str]:
    """Every breach of the corpus rules, in words: double ids, and questions that two intents claim."""
    problems: list[str] = []
    seen: set[str] = set()
    owner: dict[str, str] = {}
    for intent in intents:
        if intent.id in seen:
            problems.append(f"id {intent.id} is used twice")
        seen.add(intent.id)
        for question in all_questions(intent):
            other = owner.setdefault(normalise(question), intent.id)
            if other != intent.id:
                problems.append(f"{other} and {intent.id} both ask {question!r}")
    return problems


def all_questions(turn: CorpusTurn) -> Iterator[str]:
    for pattern in turn.ask:
        yield from expand(pattern)


def split_turn(turn: CorpusTurn, held_patterns: int, easy_count: int) -> SplitTurn:
    """Divides the phrasings of one turn. What is held back never stays in training, even through another pattern."""
    order = sorted(turn.ask, key=lambda pattern: stable_hash(SPLIT_SEED, turn.id, pattern))
    held_set = set(order[:held_patterns])
    held = list(dict.fromkeys(text for pattern in order[:held_patterns] for text in expand(pattern)))
    forbidden = {normalise(text) for text in held}
    pools = [
        [text for text in expand(pattern) if normalise(text) not in forbidden]
        for pattern in turn.ask
        if pattern not in held_set
    ]
    # Only rich patterns give up an expansion, so that every trained pattern stays represented.
    candidates = [text for pool in pools if len(pool) >= 4 for text in pool]
    candidates.sort(key=lambda text: stable_hash(SPLIT_SEED, turn.id, "easy", text))
    easy = list(dict.fromkeys(candidates))[:easy_count]
    forbidden.update(normalise(text) for text in easy)
    train = [tuple(text for text in pool if normalise(text) not in forbidden) for pool in pools]
    return SplitTurn(turn, tuple(pool for pool in train if pool), tuple(easy), tuple(held))


def split_intent(intent: Intent) -> SplitIntent:
    return SplitIntent(
        intent,
        split_turn(intent, HELD_BACK_PATTERNS, EASY_EXPANSIONS),
        tuple(split_turn(turn, HELD_BACK_FOLLOWUP_PATTERNS, 1) for turn in intent.followups),
    )


def split_corpus(intents: Iterable[Intent]) -> list[SplitIntent]:
    """The split of a whole corpus; also removes from training what any *other* intent holds back."""
    splits = [split_intent(intent) for intent in intents]
    reserved = {normalise(text) for item in splits for text in (*item.opening.held_back, *item.opening.easy)}

    def clean(part: SplitTurn) -> SplitTurn:
        pools = (tuple(text for text in pool if normalise(text) not in reserved) for pool in part.train)
        return SplitTurn(part.turn, tuple(pool for pool in pools if pool), part.easy, part.held_back)

    return [SplitIntent(item.intent, clean(item.opening), item.followups) for item in splits]
