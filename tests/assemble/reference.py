"""What an assembled corpus must be, checked document by document from the sources and the output alone.

Which documents are drawn is free. So this takes what is held out from the output, and derives everything else.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.shards import making

SPLITS = ("val", "test")
Document = tuple[str, str, str]
"""Text, group and identity."""


@dataclass(frozen=True)
class Part:
    """A subset: the documents of each of its sources, by the path of the source.

    A path without suffix is a folder of text files: a document of it lies in the folder that its group names.
    """

    name: str
    epochs: float
    sources: dict[str, list[Document]]
    grouped: bool = False

    @property
    def documents(self) -> list[Document]:
        """Those with text; an identity that the output does not tell is empty."""
        told = [(bool(Path(path).suffix), document) for path, some in self.sources.items() for document in some]
        return [(text, group, identity if is_told else "") for is_told, (text, group, identity) in told if text]


@dataclass(frozen=True)
class Case:
    parts: Sequence[Part]
    val: float
    test: float
    shards: int = 3
    seed: int = 42

    def write(self, folder: Path, *, turned: bool = False) -> Path:
        """Write the sources in the form of their names, and the manifest; `turned`: the sources in another order."""
        lines = ['name = "mine"', "[assemble]", *(f"{name} = {getattr(self, name)}" for name in ("val", "test"))]
        lines += [f"shards = {self.shards}", f"seed = {self.seed}"]
        for part in self.parts:
            names = list(part.sources)[:: -1 if turned else 1]
            lines += ["[[subsets]]", f"name = {json.dumps(part.name)}", f"epochs = {part.epochs}"]
            lines += [
                f"sources = {json.dumps(names)}",
                'keep = ["id", "of.repo"]',
                *['group = "of.repo"'] * part.grouped,
            ]
            for name, documents in part.sources.items():
                write_source(folder, name, documents)
        (folder / "mine.toml").write_text("\n".join(lines))
        return folder / "mine.toml"

    def check(self, summary: dict[str, Any], out: Path) -> None:
        """Fail unless the corpus in `out` is exactly what the manifest asks for."""
        found = records_of(out)
        shards = [found.pop(f"train/{shard:02}.jsonl.zst") for shard in range(self.shards)]
        assert max(map(len, shards)) - min(map(len, shards)) <= 1
        held = {split: found.pop(f"{split}.jsonl.zst", []) for split in SPLITS}
        assert not found
        train = Counter(
            (label(record), record["text"], record["meta"].get("id", "")) for one in shards for record in one
        )
        texts = Counter(record["text"] for split in SPLITS for record in held[split])
        assert set(texts.values()) <= {1}, "a text is held out once"
        chosen: dict[str, set[str]] = {"texts": set(), "groups": set()}
        for part in self.parts:
            own = {split: [one for one in held[split] if label(one) == part.name] for split in SPLITS}
            check_choice(part, own, chosen, self.val, self.test)
        for part in self.parts:
            row = summary["subsets"][part.name]
            gone = {one for one in part.documents if one[0] in texts or (part.grouped and one[1] in chosen["groups"])}
            left = [one for one in part.documents if one not in gone]
            fewest = Counter((part.name, text, identity) for text, _, identity in left)
            own_train = {place: number for place, number in train.items() if place[0] == part.name}
            for place, documents in fewest.items():
                assert documents * floor(part.epochs) <= train[place] <= documents * (floor(part.epochs) + 1)
            more = round((part.epochs - floor(part.epochs)) * len(left))
            assert set(own_train) <= set(fewest)
            assert sum(own_train.values()) == row["train"] == floor(part.epochs) * len(left) + more
            val, test = (sum(label(one) == part.name for one in held[split]) for split in SPLITS)
            read = sum(map(len, part.sources.values()))
            documents = row["train_documents"]
            assert documents == (len(left) if part.epochs >= 1 else more)
            assert row == {
                "epochs": part.epochs,
                "bytes": sum(len(text.encode()) * number for (_, text, _), number in own_train.items()),
                "read": read,
                "empty": read - len(part.documents),
                "skipped": 0,
                "removed": len(part.documents) - len(left) - val - test,
                "left_out": len(left) - documents,
                "val": val,
                "test": test,
                "train_documents": documents,
                "train": row["train"],
            }
        rows = summary["subsets"].values()
        totals = {name: sum(row[name] for row in rows) for name in summary["subsets"][self.parts[0].name]}
        del totals["epochs"], totals["bytes"]
        assert summary == {"seed": self.seed, "shards": self.shards, **totals, "subsets": summary["subsets"]}


def check_choice(
    part: Part, own: dict[str, list[dict[str, Any]]], chosen: dict[str, set[str]], val: float, test: float
) -> None:
    """Check the numbers that a subset holds out; add its texts and groups to those chosen before it."""
    different = {text for text, _, _ in part.documents}
    room = len(different) // 2
    free = [one for one in part.documents if one[0] not in chosen["texts"]]
    if part.grouped:
        free = [one for one in free if one[1] not in chosen["groups"]]
    group_of = {(text, identity): group for text, group, identity in part.documents}
    for split, share in (("val", val), ("test", test)):
        wanted = min(round(share * part.epochs * len(different)), room)
        texts = {record["text"] for record in own[split]}
        groups = {group_of[record["text"], record["meta"].get("id", "")] for record in own[split]}
        assert texts <= {text for text, _, _ in free}
        if part.grouped:
            assert texts == {text for text, group, _ in free if group in groups}, "groups are whole"
            largest = max(
                (len({text for text in texts if text in members(part, group)}) for group in groups), default=0
            )
            assert len(texts) <= room
            assert len(texts) - largest < wanted or not texts, "not one group more than needed"
            free = [one for one in free if one[0] not in texts and one[1] not in groups]
            if len(texts) < wanted:  # No other group fits.
                others = {group for _, group, _ in free}
                assert all(len({t for t, g, _ in free if g == group}) > room - len(texts) for group in others)
            chosen["groups"] |= groups
        else:
            assert len(texts) == min(wanted, len({text for text, _, _ in free}))
            free = [one for one in free if one[0] not in texts]
        room -= len(texts)
        chosen["texts"] |= texts


def members(part: Part, group: str) -> set[str]:
    return {text for text, of, _ in part.documents if of == group}


def label(record: dict[str, Any]) -> str:
    return str(record["meta"]["pile_set_name"])


def write_source(folder: Path, name: str, documents: Sequence[Document]) -> None:
    """Write documents in the form that the source's name asks for."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.suffix:
        for text, group, identity in documents:
            (folder / group).mkdir(parents=True, exist_ok=True)
            (folder / group / f"{identity}.txt").write_bytes(text.encode())
        return
    records = [{"text": text, "of": {"repo": group}, "id": identity} for text, group, identity in documents]
    if path.suffix == ".parquet":
        schema = pa.schema({"text": pa.string(), "of": pa.struct({"repo": pa.string()}), "id": pa.string()})
        pq.write_table(pa.Table.from_pylist(records, schema), path, row_group_size=7)
        return
    data = b"".join(json.dumps(record).encode() + b"\n" for record in records) + b"\n"
    stored = {".jsonl": bytes, ".gz": gzip.compress, ".zst": making.zstd_frame}[path.suffix]
    path.write_bytes(stored(data))


def records_of(out: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of every shard, by its path."""
    return {
        path.relative_to(out).as_posix(): [json.loads(line) for line in making.unzstd(path).split(b"\n")[:-1]]
        for path in sorted(out.rglob("*.zst"))
    }
