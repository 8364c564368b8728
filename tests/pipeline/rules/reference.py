"""All rules in plain Python, straight from the papers' definitions; slow, and shares no code with pilekit."""

from __future__ import annotations

import re
import string
from collections import Counter

STOP = {"the", "be", "to", "of", "and", "that", "have", "with"}
POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")


def ascii_lower(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def gopher_quality(text: str) -> dict[str, bool]:
    words, lines = text.split(), lines_of(text)
    real = [word for word in words if any(map(str.isalnum, word))]
    mean = sum(map(len, real)) / len(real) if real else 5
    marks = string.punctuation + "“”‘’"
    met = {word.lower().strip(marks) for word in words} & STOP
    all_words, all_lines = len(words) or 1e9, len(lines) or 1e9
    return {
        "words": not 50 <= len(real) <= 100_000,
        "word_length": not 3 <= mean <= 10,
        "hashes": text.count("#") / all_words > 0.1,
        "ellipses": (text.count("...") + text.count("…")) / all_words > 0.1,
        "bullets": sum(line[0] in "•-*" for line in lines) / all_lines > 0.9,
        "end_ellipses": sum(line.endswith(("...", "…")) for line in lines) / all_lines > 0.3,
        "letters": bool(words) and sum(any(map(str.isalpha, word)) for word in words) / len(words) < 0.8,
        "stop_words": bool(words) and len(met) < 2,
    }


def repeated(pieces: list[str]) -> list[str]:
    seen: set[str] = set()
    return [piece for piece in pieces if piece in seen or seen.add(piece)]  # type: ignore[func-returns-value]


def top(words: list[str], n: int) -> int:
    grams = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    (gram, count), *_ = grams.most_common(1) or [((), 0)]
    return count * len(" ".join(gram)) if count >= 2 else 0


def walk(words: list[str], n: int) -> int:
    met: set[tuple[str, ...]] = set()
    at = letters = 0
    while at + n <= len(words):
        gram = tuple(words[at : at + n])
        if gram in met:
            letters += len("".join(gram))
            at += n
        else:
            met.add(gram)
            at += 1
    return letters


def gopher_repetition(text: str) -> dict[str, bool]:
    words, lines = text.split(), lines_of(text)
    paragraphs = re.split(r"\n{2,}", text.strip())
    chars = len(text) or 1
    found = {}
    for name, pieces in (("line", lines), ("paragraph", paragraphs)):
        found[f"dup_{name}s"] = len(repeated(pieces)) / (len(pieces) or 1) > 0.30
        found[f"dup_{name}_chars"] = sum(map(len, repeated(pieces))) / chars > 0.20
    for n, limit in zip((2, 3, 4), (0.20, 0.18, 0.16), strict=True):
        found[f"top_{n}gram"] = top(words, n) / chars > limit
    letters = 1
    for n, limit in zip(range(5, 11), (0.15, 0.14, 0.13, 0.12, 0.11, 0.10), strict=True):
        letters = letters and walk(words, n)  # A repeated n-gram holds shorter ones that are repeated too.
        found[f"dup_{n}grams"] = letters / chars > limit
    return found


def c4_lines(text: str, end_mark: bool = True, few_words: int = 5) -> list[str]:
    kept = []
    for piece in text.split("\n"):
        line = re.sub(r"\[\d*\]|\[edit\]|\[citation needed\]", "", piece.strip()).strip()
        words, lower = line.split(), ascii_lower(line)
        if (
            not any(len(word) > 1000 for word in words)
            and (not end_mark or (line.endswith((".", "?", "!", '"')) and not line.endswith("...")))
            and len(words) >= few_words
            and "javascript" not in lower
            and not any(policy in lower for policy in POLICY)
        ):
            kept.append(line)
    return kept


def c4(text: str, end_mark: bool = True, few_words: int = 5, sentences: int = 3) -> dict[str, bool]:
    ends = [len(re.findall(r"""[.?!]+["'”’)\]]*(?=\s|$)""", line)) for line in c4_lines(text, end_mark, few_words)]
    return {
        "lorem_ipsum": "lorem ipsum" in ascii_lower(text),
        "curly_bracket": "{" in text,
        "sentences": sum(max(1, end) for end in ends) < sentences,
    }


def fineweb(text: str, dup: float = 0.10, newlines: bool = False) -> dict[str, bool]:
    lines, words = lines_of(text), text.split()
    chars = len(text.replace("\n", ""))
    found = {
        "line_punctuation": not lines or sum(line[-1] in ".!?。！？।" for line in lines) / len(lines) <= 0.12,
        "dup_line_chars": bool(chars) and sum(map(len, repeated(lines))) / chars >= dup,
        "short_lines": bool(lines) and sum(len(line) <= 30 for line in lines) / len(lines) >= 0.67,
    }
    if newlines:
        found["newlines"] = bool(words) and text.count("\n") / len(words) > 0.3
    return found
