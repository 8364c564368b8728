"""Spans make up the text in every kind of tokenizer, and where tokens spell bytes, each span holds exactly these."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from pilekit.tokenize import Tokenizer, load_tokenizer
from pilekit.tokenize.probe import probe_texts
from tests.tokenize.making import SPECIAL, TRAINING_TEXTS, byte_level_bpe, hard_texts, saved

ADDED = ["<s>", "<mask>", "[UNK]", "    ", *SPECIAL]


def trimmed() -> Any:
    """As in RoBERTa and GPT-NeoX: a space is put before a text, NFC, spans without their spaces, a token that takes
    the spaces before it."""
    made = byte_level_bpe(nfc=True, added=("    ",))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.post_processor = processors.ByteLevel(trim_offsets=True)
    made.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return made


def byte_fallback() -> Any:
    """As in Llama 2: spaces are ▁, one more is put before the text, and unknown characters are bytes."""
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    of_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<s>", *of_bytes], show_progress=False)
    made.train_from_iterator(TRAINING_TEXTS[:2], trainer)
    return made


def wordpiece() -> Any:
    """As in BERT: capital letters, accents, control characters and spaces are dropped."""
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False)
    made.train_from_iterator(TRAINING_TEXTS, trainer)
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    return made


def unigram() -> Any:
    """Metaspace behind a normaliser that makes texts longer (NFKC) and shorter (the letter a is dropped)."""
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace("a", ""), normalizers.Strip()]
    )
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, unk_token="<unk>", special_tokens=["<unk>", "<s>"], show_progress=False
    )
    made.train_from_iterator(TRAINING_TEXTS, trainer)
    return made


MAKERS: dict[str, Callable[[], Any]] = {
    "byte-level": byte_level_bpe,
    "byte-level, trimmed": trimmed,
    "byte fallback": byte_fallback,
    "wordpiece": wordpiece,
    "unigram": unigram,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    return {name: saved(make(), folder / f"{place}.json") for place, (name, make) in enumerate(MAKERS.items())}


@pytest.fixture(params=[*MAKERS, "GPT-NeoX-20B"])
def file(files: dict[str, Path], request: pytest.FixtureRequest) -> Path:
    if request.param in files:
        return files[request.param]
    folder: Path = request.getfixturevalue("real_corpus")
    return folder / "20B_tokenizer.json"


def slices(tokenizer: Tokenizer, text: str) -> list[bytes]:
    """The bytes of each token, after checking that they are the text, and that the ids are those of a batch."""
    data = text.encode()
    ids, spans = tokenizer.encode_with_spans(text)
    assert ids == tokenizer.encode_batch([text])[0].tolist()
    assert len(ids) == len(spans)
    found = [data[begin:end] for begin, end in spans]
    assert sum(end - begin for begin, end in spans) == (len(data) if ids else 0)
    assert b"".join(found) == (data if ids else b"")
    return found


def check_characters(tokenizer: Tokenizer, text: str, found: list[bytes]) -> None:
    """Tokens that share no character have theirs, and those behind them that no token has; groups have theirs."""
    spans = list(tokenizer._untrimmed.encode(text, add_special_tokens=False).offsets)
    ends = [0, *accumulate((end for _, end in spans), max)]
    places = [place for place, (begin, _) in enumerate(spans) if ends[place] <= begin]
    for first, after in pairwise([*places, len(spans)]):
        begin = spans[first][0] if first else 0
        end = spans[after][0] if after < len(spans) else len(text)
        assert b"".join(found[first:after]) == text[begin:end].encode()


def test_spans_make_up_the_text(file: Path) -> None:
    """Special tokens in the text are read both as text and as tokens."""
    by_kind = [load_tokenizer(file), load_tokenizer(file, special_tokens="parse")]

    @given(hard_texts(ADDED))
    def check(text: str) -> None:
        for tokenizer in by_kind:
            check_characters(tokenizer, text, slices(tokenizer, text))

    check()
    for text in probe_texts(ADDED)[::5]:
        for tokenizer in by_kind:
            slices(tokenizer, text)


def byte_alphabet() -> dict[str, int]:
    """The byte that each character of byte-level tokens stands for: printable ones themselves, the others from 256."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


ALPHABET = byte_alphabet()


def spelt(token: str, kind: str) -> bytes:
    """The bytes that a token of the vocabulary stands for."""
    if kind == "byte fallback":
        is_byte = token.startswith("<0x")
        return bytes([int(token[3:5], 16)]) if is_byte else token.replace("▁", " ").encode()
    return token.encode() if token in ADDED or not token.strip(" ") else bytes(ALPHABET[one] for one in token)


@pytest.mark.parametrize("kind", ["byte-level", "byte-level, trimmed", "byte fallback", "GPT-NeoX-20B"])
def test_tokens_that_spell_bytes_have_exactly_these(
    files: dict[str, Path], kind: str, request: pytest.FixtureRequest
) -> None:
    """Unless a normaliser changed the text. A space that the tokenizer puts before it is no byte of it.

    The byte-level one puts it before each piece between added tokens, unless the piece begins with a space.
    """
    path = files.get(kind) or request.getfixturevalue("real_corpus") / "20B_tokenizer.json"
    tokenizer = load_tokenizer(path)

    def without_put_spaces(tokens: list[bytes], data: bytes) -> list[bytes]:
        if kind == "byte fallback" and tokens:
            return [tokens[0].removeprefix(b" "), *tokens[1:]]
        own = []
        for token in tokens:
            put = kind == "byte-level, trimmed" and not data.startswith(token)
            own.append(token.removeprefix(b" ") if put else token)
            data = data.removeprefix(own[-1])
        return own

    @given(st.one_of(hard_texts(["<|endoftext|>"]), st.lists(st.sampled_from("a b😀ü日x "), max_size=12).map("".join)))
    def check(text: str) -> None:
        text = unicodedata.normalize("NFC", text).replace("▁", "").replace("<mask>", "")
        found = slices(tokenizer, text)
        ids = tokenizer.encode_batch([text])[0].tolist()
        wanted = [spelt(tokenizer._reference.id_to_token(token_id), kind) for token_id in ids]
        assert found == without_put_spaces(wanted, text.encode())

    check()


def test_by_hand(files: dict[str, Path]) -> None:
    """Spaces, halves of an emoji, letters that become several, characters that are dropped, texts without a token."""
    of = {name: load_tokenizer(path) for name, path in files.items()}
    assert slices(of["byte-level, trimmed"], "a b") == [b"a", b" ", b"b"]
    assert slices(of["byte-level"], " 😀") == [b" \xf0\x9f", b"\x98", b"\x80"]
    assert slices(of["byte fallback"], "日") == [b"", "日".encode()[:1], "日".encode()[1:2], "日".encode()[2:]]
    assert slices(of["wordpiece"], "  é  \u0301日 \x07") == [b"  \xc3\xa9  \xcc\x81", "日 \x07".encode()]
    assert slices(of["unigram"], "½ahx") == [b"", b"\xc2", b"", b"\xbda", b"h", b"x"]
    for name, text in (("wordpiece", " \u0301\x07"), ("unigram", "aa"), ("byte-level", "")):
        assert slices(of[name], text) == []


def test_a_document_of_many_letters_of_one_byte(file: Path) -> None:
    tokenizer = load_tokenizer(file)
    found = slices(tokenizer, "x y z " * 5000)
    assert max(map(len, found)) <= 4


def test_real_text_with_the_tokenizer_of_gpt_neox(real_corpus: Path) -> None:
    tokenizer = load_tokenizer(real_corpus / "20B_tokenizer.json")
    assert tokenizer.encode_with_spans("the cat sat")[1] == [(0, 3), (3, 7), (7, 11)]
    from pilekit import read

    texts = [text for batch in read(real_corpus / "val.jsonl.zst") for text in batch.texts[::10]]
    for text in texts:
        check_characters(tokenizer, text, slices(tokenizer, text))
