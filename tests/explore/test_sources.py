"""What the page is told equals what a plain loop over the corpus finds."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pilekit.dedup.run import dedup_corpus
from pilekit.errors import PilekitError, visible, visible_lines
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.explore.sources import Sources
from pilekit.tokenize import load_tokenizer
from tests.cli.running import run
from tests.explore.making import LABELS, NAME, generations, texts
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
    sources: Sources, every: Every, seconds: float
) -> None:
    for text, subset in [("zebra", None), ("WORD1", LABELS[1]), ("<script>", None), (".*", None), ("日本", None)]:
        found: list[int] = []
        place: int | None = 0
        while place is not None:
            answer = sources.search(text, place, subset, seconds=seconds)
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
    for pair in pairs["pairs"]:
        parts = sources.pair(pair["key"], pair["number"])["parts"]
        assert "".join(part[1] for part in parts) == visible(text[pair["kept_number"]])
        assert "".join(part[2] for part in parts) == visible(text[pair["number"]])
    labels = {row["subset"] for row in removed}
    assert sum(sources.pairs(label)["of"] for label in labels) == len(removed)


def test_a_document_has_its_duplicates_and_its_cluster(sources: Sources, given: Path, every: Every) -> None:
    removed = pq.read_table(given / "dedup" / "removed.parquet").to_pylist()
    own = {row["number"]: row for row in removed}
    sizes = set()
    for number, _, _ in every:
        found = sources.document(NAME.removesuffix(".zst"), number)["duplicates"]
        kept = own[number]["kept_number"] if number in own else number
        cluster = sorted((row for row in removed if row["kept_number"] == kept), key=lambda row: -row["similarity"])
        assert (found["removed"] is not None) == (number in own)
        if number in own:
            assert found["removed"]["similarity"] == own[number]["similarity"]
        assert found["of"] == len(cluster)
        assert [one["similarity"] for one in found["cluster"]] == [row["similarity"] for row in cluster]
        assert {one["number"] for one in found["cluster"]} == {row["number"] for row in cluster}
        assert all(one["here"] == one["kept_here"] == NAME.removesuffix(".zst") for one in found["cluster"])
        sizes.add(len(cluster))
    assert len(sizes) > 1


def test_clusters_are_those_of_the_same_file_and_of_the_same_run(tmp_path: Path) -> None:
    """A corpus browsed from a folder above, a shard that was not deduplicated, and kept documents of an earlier run."""
    long = [" ".join(f"{letter}{place}" for place in range(60)) for letter in "abcdefgh"]
    write_shard(tmp_path / "first" / "00.jsonl", long)
    write_shard(tmp_path / "all" / "second" / "00.jsonl", [f"{long[0]} x", "other words", long[1], "other words"])
    write_shard(tmp_path / "all" / "third" / "00.jsonl", long)
    dedup_corpus(tmp_path / "first", out=tmp_path / "one", write=False, jobs=1)
    dedup_corpus(tmp_path / "all" / "second", against=tmp_path / "one", out=tmp_path / "two", write=False, jobs=1)
    sources = Sources(tmp_path / "all", dedup=tmp_path / "two")
    assert sources.document("third/00.jsonl", 0)["duplicates"] is None
    removed = sources.document("second/00.jsonl", 0)["duplicates"]
    assert (removed["removed"]["kept_corpus"], removed["removed"]["kept_here"], removed["of"]) == ("against", None, 1)
    assert removed["removed"]["here"] == "second/00.jsonl"
    kept = sources.document("second/00.jsonl", 1)["duplicates"]
    assert (kept["removed"], [one["number"] for one in kept["cluster"]]) == (None, [3])
    assert sources.pair("00.jsonl", 2)["kept_number"] == 1
    with pytest.raises(PilekitError, match=r"00\.jsonl 1: was not removed"):
        sources.pair("00.jsonl", 1)


@pytest.mark.parametrize(("folder", "table"), [(0, "dec/hits.parquet"), (1, "sub/repeats.parquet")])
def test_cuts_are_the_rows_of_the_table_with_both_texts(
    sources: Sources, given: Path, every: Every, folder: int, table: str
) -> None:
    rows = pq.read_table(given / table).to_pylist()
    text = {number: of for number, of, _ in every}
    assert len(rows) > 3
    listed = sources.cuts(folder, 0)
    assert listed["of"] == len(rows)
    assert [cut["number"] for cut in listed["cuts"]] == [row["number"] for row in rows[:50]]
    for label in {row["subset"] for row in rows}:
        numbers = [row["number"] for row in rows if row["subset"] == label]
        assert [one["number"] for one in sources.cuts(folder, 0, label)["cuts"]] == numbers[:50]
        assert sources.cut(folder, len(numbers) - 1, label)["number"] == numbers[-1]
        assert sources.cuts(folder, 1, label)["cuts"] == sources.cuts(folder, 0, label)["cuts"][1:]
    for place, row in enumerate(rows):
        cut = sources.cut(folder, place)
        passage = text[row["number"]][row["start"] : row["end"]]
        assert "".join(part[2] for part in cut["parts"][1:-1]) == visible_lines(passage)
        around = [cut["parts"][at][2] for at in (0, -1)]
        whole = visible_lines(text[row["number"]])
        assert around[0] + visible_lines(passage) + around[1] in whole
        assert cut["parts"][0][0] == cut["parts"][-1][0] == "around"
        alike = sum(len(part[2]) for part in cut["parts"] if part[0] in ("alike", "folded"))
        assert alike >= 0.9 * (len(passage) if folder == 0 else 100)  # a cut of several parts names one place
    with pytest.raises(PilekitError, match="there is no such cut"):
        sources.cut(folder, len(rows))
    name = NAME.removesuffix(".zst")
    for number in text:
        found = sources.document(name, number)["cuts"][folder]
        of_document = [row for row in rows if row["number"] == number]
        assert len(found["cuts"]) == len(of_document)
        for place, row in enumerate(of_document):
            same = sources.cut(folder, place, shard=found["key"], number=number)
            assert same == sources.cut(folder, rows.index(row))


def test_no_answer_holds_a_control_character(sources: Sources) -> None:
    answers = [sources.corpus()["shown"], sources.documents(100), sources.pairs(), sources.scored(0)]
    answers += [sources.cuts(folder, 0) for folder in (0, 1)]
    answers += [sources.cut(folder, place) for folder in (0, 1) for place in range(sources.cuts(folder, 0)["of"])]
    answers += [sources.document(NAME.removesuffix(".zst"), number) for number in range(118, 126)]
    answers += [sources.texts(0, 0), *(sources.text(0, number) for number in range(len(generations())))]
    answers += [sources.passage(0, 1, place) for place in range(3)]
    for answer in answers:
        for value in _values(answer):
            assert value in LABELS or value == visible(value)


def _values(answer: object) -> list[str]:
    if isinstance(answer, dict):
        return [text for value in answer.values() for text in _values(value)]
    if isinstance(answer, list):
        return [text for value in answer for text in _values(value)]
    return [answer] if isinstance(answer, str) else []


def test_a_long_text_is_cut_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x" * 1000, "meta": {"a\u202e": "\x07"}}) + "\n")
    shown = Sources(tmp_path / "a.jsonl").document("a.jsonl", 0, most_shown=100)
    assert (shown["text"], shown["characters"], shown["shown"]) == ("x" * 100, 1000, 100)
    assert shown["meta"] == {"a\\u202e": "\\x07"}


def test_the_command_says_where_it_writes_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilekit.explore.server.serve", lambda sources, announce: announce("http://127.0.0.1/"))
    for folder in ("mine", "other"):
        for name in ("00.jsonl", "01.jsonl"):
            write_shard(tmp_path / folder / name, [f"{folder} {name} text {number}" for number in range(3)])
    dedup_corpus(tmp_path / "other", out=tmp_path / "dedup", write=False, jobs=1)
    done = run("explore", tmp_path / "mine", "--dedup", tmp_path / "dedup", exit_code=0)
    assert f"index written: {tmp_path / 'mine' / '00.jsonl.index.parquet'} and 1 other\n" in done.stderr
    assert f"index written for a result: {tmp_path / 'other' / '00.jsonl.index.parquet'} and 1 other\n" in done.stderr
    assert done.stdout == "http://127.0.0.1/\nCtrl-C ends it\n"
    assert "index written" not in run("explore", tmp_path / "mine", exit_code=0).stderr


def test_results_beside_a_corpus_are_sorted_out_by_their_headers(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another corpus, the folder of a job is its shards."""
    served: list[Sources] = []
    monkeypatch.setattr("pilekit.explore.server.serve", lambda sources, announce: served.append(sources))
    write_shard(tmp_path / "mine" / "00.jsonl", ["one text", "one text", "another text"])
    mine, unique = tmp_path / "mine", tmp_path / "unique"
    dedup_corpus(mine, out=unique, jobs=1)
    run("explore", unique, mine, exit_code=0)
    assert (served[-1].pairs()["of"], len(served[-1].documents(0)["documents"])) == (1, 3)
    run("explore", unique, exit_code=0)
    assert len(served[-1].documents(0)["documents"]) == 2
    run("explore", given / "corpus", given / "scores", exit_code=0)
    assert served[-1].scored(0)["documents"]
    shutil.copytree(unique, tmp_path / "again")
    told = run("explore", mine, unique, tmp_path / "again", exit_code=0).stderr
    assert f"several folders of dedup: {unique} is listed by document; --dedup names another\n" in told
    assert "several" not in run("explore", mine, unique, "--dedup", tmp_path / "again", exit_code=0).stderr


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
    with pytest.raises(PilekitError, match='holds a "dedup"; name a folder that `pilekit decontaminate`'):
        Sources(corpus, cuts=[given / "dedup"])
    with pytest.raises(PilekitError, match="is no shard of this corpus"):
        Sources(corpus).document("../../etc/passwd", 0)
    with pytest.raises(PilekitError, match="has no document"):
        Sources(corpus).document(NAME.removesuffix(".zst"), 10**9)
    assert "not standard input" in run("explore", "-", exit_code=2).output
