"""Shards of given documents, the documents of a corpus, manifests and protocols."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from pilekit.corpus import Corpus, Manifest, load_manifest
from pilekit.shards.read.reader import read_corpus


def write(path: Path, documents: list[tuple[str | None, str]]) -> Path:
    lines = [{"text": text, "meta": {} if label is None else {"pile_set_name": label}} for label, text in documents]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def documents_of(corpus: Path) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for batch in read_corpus(Corpus(corpus)):
        for text, subset in zip(batch.texts, batch.subsets, strict=True):
            texts.setdefault(subset, []).append(text)
    return texts


def manifest_of(*names: str) -> Manifest:
    subsets = [f'[[subsets]]\nname = "{name}"' for name in names]
    return msgspec.toml.decode("\n".join(['name = "m"', *subsets]), type=Manifest)


def protocol_of(**changes: Any) -> dict[str, Any]:
    """The protocol of a causal model on shards with all labels of the Pile, with these changes."""
    return {
        "kind": "causal",
        "model": {
            "path": "runs/a/model",
            "weights": "xxh3:" + "0" * 32,
            "model_type": "gpt_neox",
            "parameters": 2_775_208_960,
        },
        "tokenizer": {"fingerprint": "sha256:" + "0" * 64, "backend": "fastokens 0.3.5", "special_tokens": "text"},
        "dtype": "float32",
        "max_length": 2048,
        "context_len": 1,
        "prefix": {"given": "auto", "id": 0, "token": "<|endoftext|>"},
        "data": [{"name": f"{n:02d}.jsonl", "size": 1} for n in range(30)],
        "subsets": None,
        "limit": None,
        "manifest": "pile",
        "skipped_lines": 0,
        "paper": False,
        "labels": [subset.name for subset in load_manifest().subsets],
        **changes,
    }
