"""What the page is told equals what a plain loop over the corpus finds."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pilekit.errors import PilekitError, visible, visible_lines
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.explore import sources as module
from pilekit.explore.sources import Sources
from pilekit.tokenize import load_tokenizer
from tests.cli.running import run
from tests.explore.making import LABELS, NAME, texts
from tests.pipeline.making import write_shard
from tests.shards.making import slow_documents, unzstd
from tests.tiny.models import tiny_model_dir
from tests.tokenize.making import saved
from tests.tokenize.test_spans import MAKERS

Every = list[tuple[int, str, str]]


@pytest.fixture(scope="module")
def every(given: Path) -> Every:
    """(number, text, label) of all documents."""
    return slow_documents(unzstd(given / "corpus" / NAME))


def test_subsets_and_pages_are_those_of_a_plain_loop(sources: Sources, every: Every) -> None:
    said = sources.corpus()
    assert said["documents"] == len(every) == len(texts())
    assert {one["label"]: one["documents"] for one in said["subsets"]} == {
        label: sum(of == label for _, _, of in every) for label in LABELS
    }
    for subset in (None, *LABELS):
        wanted = [number for number, _, label in every if subset in (None, label)]
        listed: list[int] = []
        while True:
            page = sources.documents(len(listed), subset)
            assert page["of"] == len(wanted)
            listed += [one["number"] for one in page["documents"]]
            if not page["documents"]:
                break
        assert listed == wanted
    assert sources.documents(10**12)["documents"] == []


@pytest.mark.parametrize("seconds", [1.0, 0.0])
def test_a_search_finds_what_a_plain_loop_finds_however_often_it_pauses(
    sources: Sources, every: Every, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEARCH_SECONDS", seconds)
    for text, subset in [("zebra", None), ("WORD1", LABELS[1]), ("<script>", None), (".*", None), ("日本", None)]:
        found: list[int] = []
        place: int | None = 0
        while place is not None:
            answer = sources.search(text, place, subset)
            found += [one["number"] for one in answer["documents"]]
            place = answer["next"]
        assert found == [
            number for number, of, label in every if subset in (None, label) and text.lower() in of.lower()
        ]


def test_tokens_spell_the_text_and_have_the_bits_of_the_file(sources: Sources, given: Path, every: Every) -> None:
    rows = pq.read_table(given / "scores" / "tokens.parquet").to_pylist()
    tokenizer = load_tokenizer(given / "model")
    scored = {row["number"] for row in rows}
    for number, text, _ in every:
        answer = sources.document(NAME.removesuffix(".zst"), number)
        tokens = answer["tokens"]
        assert "".join(token[0] for token in tokens) == visible(text)
        assert [token[1] for token in tokens] == tokenizer.encode_batch([text])[0].tolist()
        assert sum(token[2] for token in tokens) == len(text.encode())
        bits = {row["index"]: row["bits"] for row in rows if row["number"] == number}
        assert {place: token[3] for place, token in enumerate(tokens) if token[3] is not None} == bits
        assert bool(bits) == (number in scored)


def test_scored_documents_come_the_most_expensive_first(sources: Sources, given: Path, every: Every) -> None:
    rows = pq.read_table(given / "scores" / "tokens.parquet").to_pylist()
    size = {number: len(text.encode()) for number, text, _ in every}
    said = sources.scored(0)["documents"]
    assert len(said) == sources.scored(0)["of"] == len({row["number"] for row in rows})
    for one in said:
        bits = math.fsum(row["bits"] for row in rows if row["number"] == one["number"])
        assert one["rate"] == pytest.approx(bits / size[one["number"]], rel=1e-9)
    assert [one["rate"] for one in said] == sorted((one["rate"] for one in said), reverse=True)


@pytest.mark.parametrize("kind", MAKERS)
def test_the_figure_of_a_document_is_that_of_the_list_and_of_its_tokens(tmp_path: Path, kind: str) -> None:
    """With every kind of tokenizer: one-letter words, an emoji in halves, texts of one byte, of no token, of none."""
    tiny_model_dir(tmp_path / "model", vocab_size=720)
    saved(MAKERS[kind](), tmp_path / "model" / "tokenizer.json")
    texts = ["a b c d e f g", " 😀\u0301 ﬁ ½", "x", " ", "", "aa", "\u0301\x07", "  an ordinary  text\n\n with ends  "]
    write_shard(tmp_path / "texts.jsonl.zst", texts)
    scores = tmp_path / "scores"
    bits_per_byte(tmp_path / "model", tmp_path / "texts.jsonl.zst", out=scores, per_token=True, prefix="0")
    sources = Sources(tmp_path / "texts.jsonl.zst", bpb=scores)
    listed = {one["number"]: one for one in sources.scored(0)["documents"]}
    assert len(listed) == len(texts)
    for number, text in enumerate(texts):
        found = sources.document("texts.jsonl", number)
        size, tokens = len(text.encode()), found["tokens"]
        assert found["bytes"] == listed[number]["bytes"] == size
        assert found["rate"] == listed[number]["rate"]
        assert sum(token[2] for token in tokens) == (size if tokens else 0)
        assert math.fsum(token[3] for token in tokens) / max(1, size) == pytest.approx(found["rate"], rel=1e-12)
        assert "".join(token[0] for token in tokens) + found["text"] == visible_lines(text)


def test_pairs_are_the_removed_documents_with_both_texts(sources: Sources, given: Path, every: Every) -> None:
    removed = pq.read_table(given / "dedup" / "removed.parquet").to_pylist()
    text = {number: of for number, of, _ in every}
    pairs = sources.pairs()
    assert pairs["of"] == len(removed) == len(pairs["pairs"]) >= 6
    for place, pair in enumerate(pairs["pairs"]):
        parts = sources.pair(place)["parts"]
        assert "".join(part[1] for part in parts) == visible(text[pair["kept_number"]])
        assert "".join(part[2] for part in parts) == visible(text[pair["number"]])
    labels = {row["subset"] for row in removed}
    assert sum(sources.pairs(label)["of"] for label in labels) == len(removed)


def test_no_answer_holds_a_control_character(sources: Sources) -> None:
    answers = [sources.corpus()["shown"], sources.documents(100), sources.pairs(), sources.scored(0)]
    answers += [sources.document(NAME.removesuffix(".zst"), number) for number in range(118, 126)]
    for answer in answers:
        for value in _values(answer):
            assert value in LABELS or value == visible(value)


def _values(answer: object) -> list[str]:
    if isinstance(answer, dict):
        return [text for value in answer.values() for text in _values(value)]
    if isinstance(answer, list):
        return [text for value in answer for text in _values(value)]
    return [answer] if isinstance(answer, str) else []


def test_a_long_text_is_cut_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SHOWN", 100)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x" * 1000, "meta": {"a\u202e": "\x07"}}) + "\n")
    shown = Sources(tmp_path / "a.jsonl").document("a.jsonl", 0)
    assert (shown["text"], shown["characters"], shown["shown"]) == ("x" * 100, 1000, 100)
    assert shown["meta"] == {"a\\u202e": "\\x07"}


def test_what_does_not_fit_is_one_clear_line(given: Path, tmp_path: Path) -> None:
    corpus = given / "corpus"
    shutil.copytree(given / "scores", tmp_path / "scores")
    (tmp_path / "scores" / "tokens.parquet").unlink()
    with pytest.raises(PilekitError, match="with --per-token"):
        Sources(corpus, bpb=tmp_path / "scores")
    shutil.copytree(given / "scores", tmp_path / "later")
    bits_per_byte(given / "model", corpus, out=tmp_path / "later", limit=2)
    with pytest.raises(PilekitError, match="later: its last run had no --per-token; run `pilekit bpb` with it"):
        Sources(corpus, bpb=tmp_path / "later")
    tokenizer = json.loads((given / "model" / "tokenizer.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps(tokenizer, indent=1))
    with pytest.raises(PilekitError, match="not the tokenizer that the result was made with"):
        Sources(corpus, bpb=given / "scores", tokenizer=str(tmp_path / "other.json"))
    with pytest.raises(PilekitError):
        Sources(corpus, dedup=tmp_path)
    with pytest.raises(PilekitError, match="is no shard of this corpus"):
        Sources(corpus).document("../../etc/passwd", 0)
    with pytest.raises(PilekitError, match="has no document"):
        Sources(corpus).document(NAME.removesuffix(".zst"), 10**9)
    assert "not standard input" in run("explore", "-", exit_code=2).output
