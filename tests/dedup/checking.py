"""Check a finished deduplication from outside: by its files, the input and the definition alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from tests.dedup import reference
from tests.shards import making


class Document(NamedTuple):
    text: str
    subset: str
    line: bytes


Identity = tuple[str, int]
"""Shard and number."""

_OF_A_DOCUMENT = ["shard", "number", "subset"]
REMOVED_COLUMNS = [*_OF_A_DOCUMENT, *(f"kept_{name}" for name in _OF_A_DOCUMENT), "similarity", "reason", "kept_corpus"]


def write_corpus(folder: Path, shards: dict[str, Sequence[bytes]]) -> Path:
    """Write shards (name -> lines) as .jsonl.zst in frames of some lines."""
    for name, lines in shards.items():
        path = folder / f"{name}.jsonl.zst"
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = [b"".join(line + b"\n" for line in lines[i : i + 50]) for i in range(0, len(lines), 50)]
        path.write_bytes(b"".join(making.zstd_frame(part) for part in parts or [b""]))
    return folder


def corpus_documents(folder: Path) -> dict[Identity, Document]:
    """All good documents, in corpus order, by the standard library alone."""
    found: dict[Identity, Document] = {}
    for path in sorted(folder.rglob("*.jsonl.zst"), key=lambda path: path.relative_to(folder).as_posix()):
        name = path.relative_to(folder).as_posix().removesuffix(".zst")
        data = making.unzstd(path)
        lines = data.split(b"\n")
        for number, text, label in making.slow_documents(data, bad=[]):
            found[name, number] = Document(text, label, lines[number])
    return found


def removed_rows(out: Path) -> list[dict[str, Any]]:
    table = pq.read_table(out / "removed.parquet")
    assert table.column_names == REMOVED_COLUMNS
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def mask_of(out: Path, shard: str) -> list[bool]:
    header, _, bits = (out / "masks" / f"{shard}.mask").read_bytes().partition(b"\n")
    lines = json.loads(header)["lines"]
    assert len(bits) == (lines + 7) // 8
    return [bool(bits[i // 8] >> i % 8 & 1) for i in range(lines)]


def check(
    out: Path,
    documents: dict[Identity, Document],
    *,
    threshold: float = 0.8,
    ngram: int = 5,
    keep: reference.Keep = "longest",
    subsets: Iterable[str] | None = None,
    only: bool = False,
    against: dict[Identity, Document] | None = None,
    clean: bool = True,
    skipped: int = 0,
    protected: Collection[str] = (),
) -> set[Identity]:
    """Check proofs, masks, clean shards and summary; returns the removed documents. `against`: the documents that the
    earlier run kept; `protected`: the held-out shards, of which nothing is removed."""
    compared = {name: document for name, document in documents.items() if subsets is None or document.subset in subsets}
    rows = removed_rows(out)
    removed = {(row["shard"], row["number"]) for row in rows}
    assert [(row["shard"], row["number"]) for row in rows] == sorted(removed)
    order = {name: place for place, name in enumerate(documents)}
    for row in rows:
        name, kept = (row["shard"], row["number"]), (row["kept_shard"], row["kept_number"])
        document = compared[name]
        if row["kept_corpus"] == "against":
            assert against is not None
            partner = against[kept]
        else:
            assert row["kept_corpus"] == ("held-out" if kept[0] in protected else "this")
            partner = compared[kept]
            assert kept not in removed
            ranks = [
                (one[0] not in protected, -len(compared[one].text.encode()) if keep == "longest" else 0, order[one])
                for one in (kept, name)
            ]
            assert ranks[0] < ranks[1]
        assert row["shard"] not in protected
        assert (row["subset"], row["kept_subset"]) == (document.subset, partner.subset)
        exactly = reference.jaccard(reference.shingles(document.text, ngram), reference.shingles(partner.text, ngram))
        assert row["similarity"] == exactly >= threshold
        assert row["reason"] == ("exact" if document.text == partner.text else "near")

    left_out = set(documents) - set(compared) if only else set()
    kept_names = [name for name in documents if name not in removed and name not in left_out]
    for shard in {shard for shard, _ in documents}:
        mask = mask_of(out, shard)
        assert {number for number, kept in enumerate(mask) if kept} == {n for s, n in kept_names if s == shard}
        path = out / "clean" / f"{shard}.zst"
        lines = [documents[name].line for name in kept_names if name[0] == shard]
        assert path.exists() == (clean and bool(lines))
        if path.exists():
            assert making.unzstd(path) == b"".join(line + b"\n" for line in lines)
            assert Path(f"{path}.index.parquet").exists()

    summary = json.loads((out / "summary.json").read_text())
    for subset in [None, *{document.subset for document in documents.values()}]:
        of = [name for name in documents if subset is None or documents[name].subset == subset]
        size = {name: len(documents[name].text.encode()) for name in of}
        reasons = Counter(row["reason"] for row in rows if subset is None or row["subset"] == subset)
        expected: dict[str, Any] = {
            "read": len(of) + (skipped if subset is None else 0),
            "kept": len(set(of) & set(kept_names)),
            "removed": reasons.total(),
            "exact": reasons["exact"],
            "near": reasons["near"],
            "skipped": skipped if subset is None else 0,
            **({"left_out": len(left_out & set(of))} if only else {}),
            **(
                {
                    "like_held_out": sum(
                        row["kept_corpus"] == "held-out" for row in rows if subset in (None, row["subset"])
                    )
                }
                if protected
                else {}
            ),
            "bytes": {
                "read": sum(size.values()),
                "kept": sum(size[name] for name in set(of) & set(kept_names)),
                "removed": sum(size[name] for name in set(of) & removed),
            },
        }
        counts = summary if subset is None else summary["subsets"][subset]
        assert {name: counts[name] for name in expected} == expected
    assert set(summary["subsets"]) == {document.subset for document in documents.values()}
    return removed
