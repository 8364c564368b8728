"""Small tokenizers for the tests, and hard text for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "<|padding|>"]

# GPT-4, Llama 3 and Qwen split text with forms of this pattern.
GPT4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TRAINING_TEXTS = [
    "The quick brown fox jumps over the lazy dog; don't we all? 12345 + 67890 = 80235.\n",
    "def area(radius):\n    return 3.14159 * radius ** 2\n\n",
    "Ein Märchen für Übermütige: Straße, Größe, Äpfel.\n",
    "Привет, мир! Как дела?  Всё хорошо.\n",
    "日本語の文章と中文的句子。한국어 문장도 있습니다.\n",
    "\tA table\twith\ttabs\r\nand  double  spaces    and more        here\n",
    "Emoji 😀👍🏽 and signs € → ∑ ½ ² © …\n",
] * 20


def byte_level_bpe(
    vocab_size: int = 700, split: str | None = None, nfc: bool = False, added: tuple[str, ...] = ()
) -> Any:
    """A fresh byte-level BPE tokenizer, trained on a few lines of many scripts, as an object of `tokenizers`."""
    made = Tokenizer(models.BPE())
    if nfc:
        made.normalizer = normalizers.NFC()
    if split:
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(split), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        TRAINING_TEXTS,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=SPECIAL,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    made.add_tokens([AddedToken(text, normalized=True) for text in added])
    return made


def saved(made: Any, path: Path, **changes: Any) -> Path:
    """Write the tokenizer's JSON to `path`, with top-level fields replaced by `changes`."""
    content = orjson.loads(made.to_str())
    content.update(changes)
    path.write_bytes(orjson.dumps(content))
    return path


def hard_texts(added_tokens: list[str]) -> st.SearchStrategy[str]:
    """Text with many of the characters that are hard for tokenizers, between all kinds of other characters."""
    pieces = st.one_of(
        st.text(st.characters(codec="utf-8"), max_size=8),
        st.text("abcXYZ'", max_size=12),
        st.text("0123456789.,", max_size=8),
        st.integers(1, 40).map(lambda n: " " * n),
        st.text(" \t\n\r\x0b\x0c\x85\xa0\u2003\u2028\u3000", max_size=8),
        st.text("eaoE\u0301\u0308\u0323\u0344\u212b\u2126\uf900\ufb01\u0958", max_size=8),
        st.text("\u1112\u1161\u11ab\u1100\uac00\ud55c", max_size=8),
        st.text("\u4e2d\u6587\U00020000\u3042\u3099\uff21", max_size=8),
        st.text("\U0001f468\u200d\U0001f469\U0001f3fd\ufe0f\u20e3\U0001f1e9", max_size=8),
        st.text("\x00\x01\x1b\x7f\x80\ufeff\u200b\u202e\uffff", max_size=6),
        st.text("<|>endoftxpaig_", max_size=16),
        st.sampled_from(added_tokens or ["<|endoftext|>"]),
    )
    return st.lists(pieces, max_size=8).map("".join)
