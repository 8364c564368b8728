"""Planted near-duplicates: documents of made-up words, each with an edited copy whose similarity is known exactly.

The edits are those of people and crawlers: words inserted, appended, put before, cut off or replaced, and another
header before the same text. They also expose sketches that sample by position. The amount of editing is drawn so that
similarities spread evenly over 0.5 to 0.99. Copies have other separators and other case, so no copy is exact, and only
the words can match.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.dedup import reference
from tests.dedup.checking import write_corpus
from tests.shards import making

LEAST, MOST = 0.5, 0.99
NGRAM = 5

Words = list[str]


@dataclass(frozen=True)
class Pair:
    """Places of a document and its edited copy in `Planted.texts`; the edit, and the similarity it left."""

    original: int
    copy: int
    edit: str
    similarity: float


@dataclass(frozen=True)
class Planted:
    """Documents in a random order, and the pairs among them; other documents share hardly a shingle."""

    texts: list[str]
    pairs: list[Pair]


def planted(pairs: int, seed: int = 0, *, alone: int = 0, words: tuple[int, int] = (60, 500)) -> Planted:
    """`pairs` pairs, with all edits in turn, and `alone` documents without a copy; documents have `words` words."""
    random = Random(seed)
    vocabulary = [
        "".join(random.choices("abcdefghijklmnopqrstuvwxyzäß", k=random.randint(2, 11))) for _ in range(20_000)
    ]
    edits = list(EDITS)
    documents: list[tuple[str, int]] = []
    found: list[tuple[str, float]] = []
    for number in range(pairs):
        original = random.choices(vocabulary, k=random.randint(*words))
        edit = edits[number % len(edits)]
        copy = EDITS[edit](original, random.uniform(LEAST, MOST), random, vocabulary)
        one, other = (spelt(text, random) for text in (original, copy))
        documents += [(one, 2 * number), (other, 2 * number + 1)]
        found.append((edit, reference.jaccard(reference.shingles(one, NGRAM), reference.shingles(other, NGRAM))))
    for number in range(alone):
        text = spelt(random.choices(vocabulary, k=random.randint(*words)), random)
        documents.append((text, 2 * pairs + number))
    random.shuffle(documents)
    place = {number: place for place, (_, number) in enumerate(documents)}
    return Planted(
        [text for text, _ in documents],
        [Pair(place[2 * i], place[2 * i + 1], edit, similarity) for i, (edit, similarity) in enumerate(found)],
    )


def planted_corpus(folder: Path, pairs: int, seed: int) -> Path:
    """Pairs of near-duplicates of similarities from 0.5 on, some exact copies, empty and short ones, over 3 shards."""
    found = planted(pairs, seed, alone=pairs // 4, words=(5, 200))
    random = Random(seed)
    texts = found.texts + random.choices(found.texts, k=pairs // 5)
    texts += ["", "", " ", "\n", "one", "One!", "one two", "…"]
    random.shuffle(texts)
    labels = ["Github", "ArXiv", "Pile-CC"]
    lines = [making.record(text, labels[number % 3]) for number, text in enumerate(texts)]
    third = len(lines) // 3
    shards = {"train/00": lines[:third], "train/01": lines[third : 2 * third], "web": lines[2 * third :]}
    return write_corpus(folder, shards)


def spelt(words: Words, random: Random) -> str:
    """A text of these words."""
    cases: tuple[Callable[[str], str], ...] = (str, str, str, ascii_upper)
    return "".join(random.choice(cases)(word) + random.choice((" ", " ", " ", ", ", ".\n")) for word in words)


def ascii_upper(word: str) -> str:
    """Only ASCII letters have a case to dedup."""
    return word.encode().upper().decode()


# Each edit takes the words, the wanted similarity, and the vocabulary for new words. With S shingles of n words, an
# edit of k words in one place leaves k + n - 1 of them at most, which is solved for k.


def _insert(words: Words, similarity: float, random: Random, vocabulary: Words) -> Words:
    """Single words at scattered places: each takes n - 1 shingles and gives n."""
    shingles = len(words) - NGRAM + 1
    count = round(shingles * (1 - similarity) / (NGRAM - 1 + NGRAM * similarity))
    edited = list(words)
    for _ in range(max(1, count)):
        edited.insert(random.randrange(len(edited) + 1), random.choice(vocabulary))
    return edited


def _added(words: Words, similarity: float) -> int:
    """How many words to add at one end."""
    return max(1, round((len(words) - NGRAM + 1) * (1 / similarity - 1)))


def _substitute(words: Words, similarity: float, random: Random, vocabulary: Words) -> Words:
    """Words replaced, one by one or in passages: up to 8 % of single words, 2 to 25 % in passages of 20.

    A shingle stays if no passage begins in it, or so shortly before it that it reaches into it.
    """
    length = random.choice((1, 1, 5, 20))
    stay = 2 * similarity / (1 + similarity)  # the share of shingles
    share = 1 - stay ** (1 / (length + NGRAM - 1))
    edited = list(words)
    begins = [place for place in range(len(words)) if random.random() < share] or [random.randrange(len(words))]
    for begin in begins:
        for place in range(begin, min(begin + length, len(words))):
            edited[place] = random.choice(vocabulary)
    return edited


def _header(words: Words, similarity: float, random: Random, vocabulary: Words) -> Words:
    """Other words in the place of the first ones."""
    count = max(1, round((len(words) - NGRAM + 1) * (1 - similarity) / (1 + similarity)))
    return random.choices(vocabulary, k=count) + words[count:]


EDITS: dict[str, Callable[[Words, float, Random, Words], Words]] = {
    "insert": _insert,
    "append": lambda words, similarity, random, more: words + random.choices(more, k=_added(words, similarity)),
    "prepend": lambda words, similarity, random, more: random.choices(more, k=_added(words, similarity)) + words,
    "truncate": lambda words, similarity, *_: words[: -max(1, round((len(words) - NGRAM + 1) * (1 - similarity)))],
    "substitute": _substitute,
    "header": _header,
}
