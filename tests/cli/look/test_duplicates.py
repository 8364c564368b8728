"""`pilekit duplicates`: which removals it shows, and that they are safe to look at."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from rich.cells import cell_len

from pilekit.cutting.decontaminate import decontaminate_corpus
from pilekit.cutting.substrings import substrings_corpus
from pilekit.dedup.previous_runs import finished_run
from pilekit.dedup.run import dedup_corpus
from pilekit.dedup.show.removed_pairs import pair_texts, spread_pairs
from pilekit.errors import PilekitError, visible
from tests.cli import running
from tests.dedup import reference
from tests.dedup.planted import planted
from tests.pipeline.making import write_shard

PLANTED = planted(60, seed=5, words=(40, 150)).texts
HOSTILE = [" ".join(f"word{number}" for number in range(60)) + end for end in ("", " \x1b[31mred\x07 \u202e[bold]")]
LABELS = ["ArXiv", "PubMed Central", "\x1b[2Jevil"]


def run(*arguments: object, width: int = 100, **options: Any) -> Result:
    return running.run("duplicates", *arguments, COLUMNS=str(width), **options)


def shard(path: Path, texts: list[str]) -> Path:
    return write_shard(path, texts, [LABELS[number % 3] for number in range(len(texts))])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    shard(folder / "00.jsonl.zst", [*PLANTED[:70], *HOSTILE])
    shard(folder / "01.jsonl.zst", [*PLANTED[70:], *PLANTED[:9]])
    return folder


@pytest.fixture(scope="module")
def dedup(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "dedup"
    dedup_corpus(corpus, out=out, write=False, jobs=1)
    return out


def removed(dedup: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(dedup / "removed.parquet").to_pylist()
    return rows


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["reason"] == "exact", row["similarity"], row["shard"], row["number"]))


def test_json_holds_the_rows_of_removed_parquet(dedup: Path) -> None:
    everything = json.loads(run(dedup, "-n", 1000, "--json").stdout)
    assert everything == {"removed": len(removed(dedup)), "pairs": in_order(removed(dedup))}
    assert {row["reason"] for row in everything["pairs"]} == {"near", "exact"}
    few = json.loads(run(dedup, "-n", 5, "--json").stdout)
    assert (few["removed"], len(few["pairs"])) == (everything["removed"], 5)


def test_a_subset_in_any_spelling_and_a_least_similarity(dedup: Path) -> None:
    for typed, subset in (("PMC", LABELS[1]), (LABELS[2], LABELS[2])):
        shown = running.run_json("duplicates", dedup, "--subset", typed, "-n", 1000)
        assert shown["pairs"] == in_order([row for row in removed(dedup) if row["subset"] == subset]) != []
    shown = running.run_json("duplicates", dedup, "--min-similarity", 0.9, "-n", 1000)
    assert shown["pairs"] == in_order([row for row in removed(dedup) if row["similarity"] >= 0.9]) != []
    for name in ("Arxive", "GitHub"):
        listed = r"removed ones are of \\x1b\[2Jevil, ArXiv, PubMed Central$"
        message = rf'no document of subset "{name}" was removed; {listed}'
        running.refused(message, "duplicates", dedup, "--subset", name)


def test_pairs_are_shown_side_by_side(corpus: Path, dedup: Path) -> None:
    out = run(dedup, "-n", 1000, width=120).stdout
    rows = removed(dedup)
    for place, row in enumerate(in_order(rows), 1):
        how = "exact copy" if row["reason"] == "exact" else f"similarity {row['similarity']:.4f}"
        assert f"{place} of {len(rows)}: {how}\n" in out
    assert out.endswith(f"\n{len(rows)} of {len(rows)} removed documents\n")
    assert out.count("No word differs.") >= sum(row["reason"] == "exact" for row in rows)

    first = in_order(rows)[0]
    shown = re.split(r"^\d+ of \d+: .*\n", out, flags=re.MULTILINE)[1]
    sides = {"{+": (first["kept_shard"], first["kept_number"]), "[-": (first["shard"], first["number"])}
    texts = {"00.jsonl": [*PLANTED[:70], *HOSTILE], "01.jsonl": [*PLANTED[70:], *PLANTED[:9]]}
    words = {mark: set(reference.words(texts[name][number])) for mark, (name, number) in sides.items()}
    for mark, own in words.items():
        for word in re.findall(re.escape(mark) + r"(\w+)\W?[+-][}\]]", shown):
            assert word.lower().encode() in own
    assert any(mark in shown for mark in sides)


def test_it_fits_the_terminal_and_hostile_texts_do_not_reach_it(dedup: Path) -> None:
    for width in (40, 80):
        assert max(map(cell_len, run(dedup, "-n", 8, width=width).stdout.splitlines())) <= width
    out = run(dedup, "-n", 1000, width=150).stdout
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", out)
    assert re.search(r"\\x1b\[({\+|\[-)31m\W*red\\x07 \\u202e\[bold", out)
    assert "\\x1b[2Jevil" in out
    pairs, _ = spread_pairs(dedup / "removed.parquet", 4)
    texts = pair_texts(pairs, finished_run(dedup), most_held=100 * 2 * 4)  # only the beginnings of long texts
    assert max(len(text) for pair in texts for text in pair) == 100


def test_kept_documents_of_earlier_runs_are_read_there(dedup: Path, tmp_path: Path) -> None:
    """Earlier runs may have shards of one name. A kept document taken from another run would have another text."""
    new = [f"something new {number} " * 9 for number in range(70)]
    shard(tmp_path / "new" / "00.jsonl.zst", new)
    dedup_corpus(tmp_path / "new", against=dedup, out=tmp_path / "second", write=False, jobs=1)
    shard(tmp_path / "third" / "00.jsonl.zst", [*new[30:50], *PLANTED[30:50]])
    out = tmp_path / "out"
    dedup_corpus(tmp_path / "third", against=tmp_path / "second", out=out, write=False, jobs=1)
    rows = removed(out)
    assert {row["kept_corpus"] for row in rows} == {"against"}
    copies = [row for row in rows if row["reason"] == "exact" and row["kept_shard"] == "00.jsonl"]
    assert sum(row["number"] < 20 for row in copies) == 20
    assert len(copies) > 25
    shown = run(out, "-n", 1000, "--min-similarity", 1).stdout
    assert "(of an earlier run)" in shown
    assert shown.count("No word differs.") == len([row for row in rows if row["similarity"] == 1])


def test_a_shard_that_was_changed_is_an_error(tmp_path: Path) -> None:
    path = shard(tmp_path / "data" / "00.jsonl.zst", [*PLANTED[:30], PLANTED[3]])
    dedup_corpus(path, out=tmp_path / "dedup", write=False, jobs=1)
    shard(path, [*PLANTED[:31], PLANTED[3]])
    running.refused(r"00\.jsonl\.zst: has changed since ", "duplicates", tmp_path / "dedup")
    assert json.loads(run(tmp_path / "dedup", "--json").stdout)["pairs"], "which they are needs no shards"


def test_nothing_removed_is_said(tmp_path: Path) -> None:
    path = shard(tmp_path / "data" / "00.jsonl.zst", ["one text", "and another one", "third"])
    dedup_corpus(path, out=tmp_path / "dedup", write=False, jobs=1)
    assert run(tmp_path / "dedup").stdout == "no document was removed\n"
    assert run(tmp_path / "dedup", "--subset", "ArXiv").stdout == "no such document was removed\n"
    assert json.loads(run(tmp_path / "dedup", "--json").stdout) == {"removed": 0, "pairs": []}


def test_a_record_that_is_gone_or_damaged_is_an_error(dedup: Path, tmp_path: Path) -> None:
    path, whole = tmp_path / "removed.parquet", (dedup / "removed.parquet").read_bytes()
    pq.write_table(pa.table({"number": [1]}), tmp_path / "other.parquet")
    for content in (whole[:-40], (tmp_path / "other.parquet").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(PilekitError, match=r"removed\.parquet: is not a table of removed documents \("):
            spread_pairs(path, 3)
    path.unlink()
    with pytest.raises(PilekitError, match=r"removed\.parquet: is not there; run `pilekit dedup` again"):
        spread_pairs(path, 3)


def test_a_folder_of_another_command_is_told_with_what_to_name(tmp_path: Path) -> None:
    path = shard(tmp_path / "data" / "00.jsonl.zst", ["one text"])
    running.run("select", path, "--min-bytes", 1, "--out", tmp_path / "chosen", exit_code=0)
    message = 'chosen: holds a "selection", not a "dedup"; name a folder that `pilekit dedup` wrote'
    running.refused(message, "duplicates", tmp_path / "chosen")


QUESTION = "Why does the large grey heron stand so still and so long in the cold shallow river at dawn?"


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """`data/`, `quiz.jsonl`, `dec/` that cut the quiz out of the data, and `sub/` that cut a passage."""
    passage = " ".join(f"passage{number}" for number in range(40)) + " \x1b[31mred"
    texts = [f"{'before ' * 9}{passage} {'after ' * 9} {number}" for number in range(5)]
    texts += [f"{'around ' * 40}{QUESTION.upper()} \u202e[bold] {'behind ' * 40}", QUESTION]
    shard(tmp_path / "data" / "00.jsonl.zst", texts)
    records = [{"id": 7, "q": "short", "a": "x"}, {"id": 8, "q": f"Tell: {QUESTION}", "a": "It waits for fish."}]
    (tmp_path / "quiz.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    decontaminate_corpus(
        tmp_path / "data", against=tmp_path / "quiz.jsonl", fields=["q", "a"], out=tmp_path / "dec", jobs=1
    )
    substrings_corpus(tmp_path / "data", out=tmp_path / "sub", jobs=1)
    return tmp_path


def test_spans_of_evaluations_stand_beside_their_record(cut: Path) -> None:
    rows = pq.read_table(cut / "dec" / "hits.parquet").to_pylist()
    assert [row["number"] for row in rows] == [5, 6]
    assert json.loads(run(cut / "dec", "--json").stdout) == {"spans": 2, "cuts": rows}
    out = run(cut / "dec", width=160).stdout
    assert out.count("stays: quiz record 1, q") == 2
    assert f"cut: 00.jsonl 5, {visible(LABELS[2])} from {rows[0]['start']} to {rows[0]['end']}" in out
    assert "Why does the large grey heron" in out
    assert "WHY DOES THE LARGE GREY HERON" in out
    assert "…Tell:" in out
    assert out.endswith("2 of 2 spans; 200 characters on each side of a span went with it\n")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", out)
    assert "\\u202e[bold]" in out
    assert "1 of 1 span;" in run(cut / "dec", "--subset", "ArXiv").stdout
    running.refused("no document of subset", "duplicates", cut / "dec", "--subset", "Enron Emails")
    running.run("duplicates", cut / "dec", "--min-similarity", "0.5", exit_code=2)
    for width in (40, 80):
        assert max(map(cell_len, run(cut / "dec", width=width).stdout.splitlines()[:-1])) <= width
    with (cut / "quiz.jsonl").open("a") as file:
        file.write("\n")
    running.refused(r"quiz\.jsonl: has changed since .*dec was made from it", "duplicates", cut / "dec")
    header = cut / "dec" / "pilekit.json"
    header.write_text(header.read_text().replace("evaluation_paths", "unknown"))
    running.refused("does not tell where its files were, as an earlier pilekit wrote it", "duplicates", cut / "dec")


def test_repeated_passages_stand_beside_the_earlier_document(cut: Path) -> None:
    rows = pq.read_table(cut / "sub" / "repeats.parquet").to_pylist()
    assert [row["number"] for row in rows] == [1, 2, 3, 4]
    out = run(cut / "sub", width=160).stdout
    first = rows[0]
    assert out.startswith(f"1 of 1: 5 times, {first['bytes']} bytes\n")
    assert f"stays: 00.jsonl 0 from {first['first_start']}" in out
    assert f"cut: 00.jsonl 1, {LABELS[1]} from {first['start']} to {first['end']}" in out
    assert out.count("cut too: ") == 3
    assert "No word differs." in out
    arxiv = json.loads(run(cut / "sub", "--subset", "arxiv", "--json").stdout)
    assert [(one["count"], one["documents"]) for one in arxiv] == [(2, [row for row in rows if row["number"] == 3])]
