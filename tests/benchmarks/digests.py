"""Digests of pilekit's outputs on a folder of real text: whether a change that must change no byte has changed one.

    python tests/benchmarks/digests.py FOLDER [--write FILE] [--compare FILE] [--documents 600]

FOLDER holds shards (`.jsonl.zst`, `.jsonl`), one of them named val, and `20B_tokenizer.json`. The first lines of each
shard are copied into a temporary folder, which becomes the working folder, and each command runs there as a user runs
it, in a process of its own, on the CPU, with one thread. The table has a line for each output: the xxh3_128 of its
content, and its name. `--write` keeps the digests as JSON. `--compare` names the outputs that differ from a file of
them, or that are missing there or here; exit code 1 if one differs or is missing here. Outputs that the file does not
have are new, which is no error.

Content is what a user reads. So a Parquet file counts by its columns and rows, a keep mask by its bits, and JSON by its
fields. Left out are fields that hold a path, a time or a version, Parquet metadata, hidden files, and `pilekit.json`,
whose header holds them. All other files count byte by byte. Digests belong to one machine and one set of libraries:
the bytes of zstd and the last digits of a loss depend on them.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import xxhash
import zstandard

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, from any folder

TOKENIZER = "20B_tokenizer.json"
LEFT_OUT = {"pilekit", "torch", "version", "versions", "path", "folder", "files", "seconds", "date"}
"""JSON fields that hold a path, a time or a version."""

COMMANDS = {
    "stats": "stats --json --copies --tokenizer {tokenizer} --on-error skip corpus",
    "select": "select corpus --subsets Wikipedia,StackExchange,ArXiv --min-bytes 500 --on-error skip --out select",
    "select-parquet": "select corpus --sample 0.3 --format parquet --on-error skip --out select-parquet",
    "reframe": "reframe corpus --frame 64KB --out reframe",
    "stats-indexed": "stats --json reframe",
    "clean": "clean corpus --rules gopher-quality,c4 --c4-lines --pii email,ip --on-error skip --json --out clean",
    "dedup": "dedup corpus --held-out protect --on-error skip --json --out dedup",
    "decontaminate": "decontaminate corpus --against asked.jsonl --fields question --on-error skip --json --out decon",
    "substrings": "substrings corpus --min-bytes 80 --on-error skip --json --out substrings",
    "assemble": "assemble mine.toml --on-error skip --json --out assemble",
    "count": "count phrases.txt corpus --on-error skip --json --out count/counts.parquet",
    "count-words": "count phrases.txt corpus --words --sort given --on-error skip --json",
    "trace": "trace texts.jsonl corpus --words 5 --common 50 --on-error skip --json --out trace/traces.parquet",
    **{
        f"tokenize-{format}": f"tokenize reframe --tokenizer {{tokenizer}} --format {format} --out tokens-{format}/t"
        for format in ("megatron", "npy", "ds", "llmc", "parquet")
    },
    "tokenize-dedup": "tokenize corpus --tokenizer {tokenizer} --dedup dedup --on-error skip --out tokens-dedup/t",
    "train": "train run.toml --out run",
    "seen": "seen run --subset Wikipedia --json",
    "bpb": "bpb run/model corpus/val.jsonl.zst --limit 3 --max-length 128 --device cpu --json",
}
BY_JSON = {
    *("stats", "stats-indexed", "clean", "dedup", "decontaminate", "substrings", "assemble", "bpb"),
    *("count", "count-words", "trace", "seen"),
}
"""Commands whose JSON on standard output counts."""

ASSEMBLE = """name = "mine"
[assemble]
shards = 2
val = 0.02
test = 0.02
[[subsets]]
name = "First"
sources = ["FIRST"]
epochs = 1.5
[[subsets]]
name = "Others"
sources = OTHERS
"""
RUN = """[data]
path = "reframe"
tokenizer = "TOKENIZER"
seq_len = 128
workers = 0
[model]
config = "config.json"
[train]
steps = 50
global_batch_size = 4
micro_batch_size = 2
[optimizer]
lr = 1e-3
"""
SHAPE = {
    "model_type": "gpt_neox",
    "architectures": ["GPTNeoXForCausalLM"],
    "vocab_size": 50304,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 128,
}


def main() -> int:
    """Digest, print, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=Path, help="keep the digests in this JSON file")
    parser.add_argument("--compare", type=Path, help="a file that --write wrote")
    parser.add_argument("--documents", type=int, default=600, help="lines of each shard")
    chosen = parser.parse_args()
    earlier = json.loads(chosen.compare.read_text()) if chosen.compare else None
    write = chosen.write and chosen.write.absolute()
    source = chosen.folder.absolute()
    digests: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="pilekit-digests-") as folder:
        os.chdir(folder)
        material(source, chosen.documents)
        for name, digest in (*of_commands(source / TOKENIZER), *of_streams(source / TOKENIZER)):
            digests[name] = digest
            print(f"{digest}  {name}", flush=True)
        os.chdir("/")
    if write:
        write.write_text(json.dumps({"documents": chosen.documents, "digests": digests}, indent=1))
    if earlier is None:
        return 0
    if earlier["documents"] != chosen.documents:
        sys.exit(f"{chosen.compare}: is of --documents {earlier['documents']}; compare with the same number")
    differ = [name for name, digest in earlier["digests"].items() if digests.get(name) != digest]
    for name in differ:
        print(f"differs: {name}: {earlier['digests'][name]} -> {digests.get(name, 'missing')}")
    new = [name for name in digests if name not in earlier["digests"]]
    for name in new:
        print(f"new: {name}")
    print(f"{len(differ)} of {len(earlier['digests'])} differ, {len(new)} are new")
    return bool(differ)


def material(source: Path, documents: int) -> None:
    """Fill the working folder: the shards' first lines, evaluation texts, phrases, a manifest, a config."""
    Path("corpus").mkdir()
    for path in sorted([*source.glob("*.jsonl.zst"), *source.glob("*.jsonl")]):
        content = b"".join(first_lines(path, documents))
        Path("corpus", path.name).write_bytes(zstandard.compress(content) if path.suffix == ".zst" else content)
    first, *others = sorted(str(path) for path in Path("corpus").iterdir() if "val" not in path.name)
    texts = [json.loads(line)["text"] for line in first_lines(Path("corpus/val.jsonl.zst"), 200)]
    with Path("asked.jsonl").open("w") as file:
        file.writelines(json.dumps({"question": text[:400], "answer": text[400:420]}) + "\n" for text in texts)
    phrases = dict.fromkeys(" ".join(text.split()[size : 2 * size + 1]) for size in range(1, 6) for text in texts)
    Path("phrases.txt").write_text("".join(f"{phrase}\n" for phrase in phrases if phrase))
    with Path("texts.jsonl").open("w") as file:
        for number, text in enumerate(texts[:50]):  # Of a document, of another one in capitals, and of neither.
            mixed = f"{text[:300]} {number} {texts[-number - 1][:300].upper()}"
            file.write(json.dumps({"text": mixed}) + "\n")
    for folder in ("count", "trace"):
        Path(folder).mkdir()
    Path("mine.toml").write_text(ASSEMBLE.replace("FIRST", first).replace("OTHERS", json.dumps(others)))
    Path("run.toml").write_text(RUN.replace("TOKENIZER", str(source / TOKENIZER)))
    Path("config.json").write_text(json.dumps(SHAPE))


def first_lines(path: Path, count: int) -> list[bytes]:
    """The first lines of a shard."""
    with path.open("rb") as file:
        packed = path.suffix == ".zst"
        stored = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) if packed else file
        return list(islice(io.BufferedReader(stored), count))


def of_commands(tokenizer: Path) -> Iterator[tuple[str, str]]:
    """(name, digest) of each output of each command."""
    one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
    environment = {
        **os.environ,
        **one_thread,
        "PYTHONPATH": str(ROOT),
        "PILEKIT_CACHE": "cache",
        "CUDA_VISIBLE_DEVICES": "",
    }
    for name, command in COMMANDS.items():
        words = [word.format(tokenizer=tokenizer) for word in command.split()]
        ran = subprocess.run([sys.executable, "-m", "pilekit", *words], env=environment, capture_output=True, text=True)
        if ran.returncode:
            sys.exit(f"{name}: exit code {ran.returncode}: {ran.stderr[-2000:]}")
        if name in BY_JSON:
            yield f"{name} --json", digest_of(canonical(json.loads(ran.stdout)))
        if name == "train":
            metrics = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
            yield "train losses", digest_of(canonical([[row["step"], row["loss"]] for row in metrics if "loss" in row]))
        elif "--out" in words:
            out = Path(words[words.index("--out") + 1])
            out = out if out.is_dir() else out.parent
            yield from ((f"{name} {path.relative_to(out)}", digest_of(content)) for path, content in files_of(out))


def files_of(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """(path, content that counts) of each file of an output folder."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.name == "pilekit.json" or any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        as_content = CONTENT.get(path.suffix, Path.read_bytes)
        yield path, as_content(path)


def rows_of(path: Path) -> bytes:
    """The columns and rows of a Parquet file, without its metadata."""
    table = pq.read_table(path)
    return canonical([[field.name, str(field.type), table[field.name].to_pylist()] for field in table.schema])


CONTENT: dict[str, Callable[[Path], bytes]] = {
    ".parquet": rows_of,
    ".json": lambda path: canonical(json.loads(path.read_text())),
    ".mask": lambda path: path.read_bytes().partition(b"\n")[2],
}


def canonical(value: Any) -> bytes:
    """JSON without the fields of `LEFT_OUT`, as bytes."""

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: kept(inner) for name, inner in value.items() if name not in LEFT_OUT}
        return [kept(inner) for inner in value] if isinstance(value, list) else value

    return json.dumps(kept(value), sort_keys=True, default=str).encode()


def of_streams(tokenizer: Path) -> Iterator[tuple[str, str]]:
    """(name, digest) of 30 batches of each kind of source and packing."""
    from pilekit import PileStream

    sources = {"raw": "corpus/minipile-*.zst", "indexed": "reframe", "tokens": "tokens-megatron/t"}
    for kind, source in sources.items():
        for packing in ("best_fit", "concat", "none"):
            stream = PileStream(source, tokenizer, seq_len=256, batch_size=4, packing=packing, window=64)
            total = xxhash.xxh3_128()
            for batch in islice(stream, 30):
                for name in sorted(batch.keys() - {"stream_state"}):
                    array = np.ascontiguousarray(batch[name].numpy())
                    total.update(f"{name} {array.dtype} {array.shape}".encode())
                    total.update(array.data)
            yield f"stream {kind} {packing}", total.hexdigest()


def digest_of(content: bytes) -> str:
    """The digest of an output."""
    return xxhash.xxh3_128_hexdigest(content)


if __name__ == "__main__":
    sys.exit(main())
