"""The probe set: hard strings on which two encoders must agree id for id before the fast one is used.

Two byte-level BPE programs can differ in Unicode normalisation (NFC composes accents and Hangul jamo, and replaces the
ohm and angstrom signs), in the pre-tokenizer's classes (letters, digits, marks, white space), in its look-ahead at the
end of a run of spaces, and in added and special tokens. The probe set has examples of each difference, the tokenizer's
own added tokens in several contexts, and a thousand seeded random mixtures.

`check_growth` tries the steps of a normaliser one by one, because tokenizers ends the whole process when a few crafted
steps, each of which makes a text some thousand times as long, ask for more memory than there is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import orjson
import tokenizers

MOST_GROWTH = 1000
"""How many times as long a normaliser may make the probe's characters; Unicode's own forms need 18."""

_ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz",
    "ABCXYZ",
    "0123456789",
    " ",
    " \t\n\r\x0b\x0c\x1c\x85\xa0\u1680\u2003\u2009\u2028\u2029\u202f\u205f\u3000",
    "\x00\x01\x07\x08\x1b\x1f\x7f\x80\x9f\xad\ufeff\u200b\u2060\ufffd\uffff",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "\xe9\xe8\xfc\xf1\xe7\xdf\xf8\u0142\u0130\u0131\u017f",
    "e\u0301a\u0308n\u0303o\u0323\u0302q\u0307\u0323\u0344\u0340\u0341\u0343",
    "\u212b\u2126\u212a\uf900\ufa0e\ufb01\u1e9b\u0323\u0958\u2adc",
    "\u1112\u1161\u11ab\u1100\u1173\u11af\uac00\ud55c\uae00",
    "\u4e2d\u6587\u5b57\u8a9e\U00020000\u3042\u30a2\u30fc\u3099\uff21\uff10",
    "\u0645\u0631\u062d\u0628\u0627\u064b\u0661\u05e9\u05b8\u05c1\u0939\u093f\u0928\u094d\u0926\u0e01\u0e33\u0f40\u0f71\u0f72",
    "\u0416\u0439\u0451\u03a9\u03c9\u0390\u03c2\u1f80",
    "\U0001f600\U0001f468\u200d\U0001f469\U0001f3fd\ufe0f\u20e3\U0001f1e9\U0001f1ea\u2764",
    "\xb2\xbd\u2167\u2460\u0bf0\u3007\U0001d7d8",
    "\u20ac\xa3\u2192\u2211\xa9\u2026\u2014\u201c\u201d\u2019",
]

_STRINGS = [
    "",
    " ",
    "\n",
    "The quick brown fox jumps over the lazy dog.",
    "don't we'll I'VE THEY'RE it's 'tis ''s 's'd",
    "x = 1234567890 * 3.14159e-10 + 0xDEADBEEF",
    "def f(x):\n    if x:\n\t\treturn  x\n\n\n\n        pass   \n",
    "caf\xe9 cafe\u0301 \u212b A\u030a \u2126 \u1112\u1161\u11ab \uf900 \u0344 q\u0307\u0323",
    "\u0301 starts with a mark, ends with one \u0301",
    "line\r\nline\rline\x85line\u2028line\u2029",
    "a" * 3000,
    "=" * 700 + "-" * 700 + "\n" + "_ " * 300,
    "https://example.org/a/b?c=d&e=%20#f user@example.org C:\\path\\file.txt",
    "\\begin{equation} \\frac{\\partial u}{\\partial t} = \\alpha \\nabla^2 u \\end{equation}",
    '<html><body class="a">&nbsp;&lt;</body></html>',
    "Straße ŁÓDŹ İstanbul ΑΒΓ ς σ Привет мир ﬁ ǆ ǅ",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea 1\ufe0f\u20e3 \U0001f44d\U0001f3fd",
    *(" " * n for n in range(2, 60)),
    *("x" + " " * n + "y" for n in range(1, 60)),
    *("\n" * n + " " * n for n in range(1, 12)),
    *("\t" * n + "x" for n in range(1, 12)),
    " " * 5000,
    "\n" * 1500,
]


def probe_texts(added_tokens: Sequence[str]) -> list[str]:
    """The probe set for a tokenizer with these added tokens (special or not); the same list on every call."""
    texts = list(_STRINGS)
    for token in added_tokens:
        texts += [token, f"a{token}b", f" {token} {token}{token}\n", token[:-1], token[1:], token[:-1] + token]
    rng = random.Random(0)
    pools = [*_ALPHABETS, *([list(added_tokens)] if added_tokens else [])]
    for _ in range(1000):
        chosen = rng.sample(pools, k=rng.randint(1, 4))
        texts.append("".join(map(rng.choice, rng.choices(chosen, k=rng.randint(1, 60)))))
    return texts


def check_growth(normalizer: Any) -> None:
    """Raise `ValueError` if the normaliser of a tokenizer.json makes the probe's characters far longer."""
    text = "".join(_ALPHABETS)
    most = MOST_GROWTH * len(text)
    steps = [normalizer]
    while steps:
        step = steps.pop(0)
        if isinstance(step, dict) and isinstance(inner := step.get("normalizers"), list):
            steps = inner + steps
            continue
        if step is None:
            continue
        plain = {"model": {"type": "BPE", "vocab": {}, "merges": []}, "normalizer": step}
        text = tokenizers.Tokenizer.from_str(orjson.dumps(plain).decode()).normalizer.normalize_str(text)
        if len(text) > most:
            raise ValueError(f"its normalizer makes a text over {MOST_GROWTH:,} times as long")
