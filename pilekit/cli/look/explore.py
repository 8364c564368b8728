"""`pilekit explore`: a page on this machine to browse a corpus, its duplicates, tokens and bits per byte."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path

import click

from pilekit.cli.options import Described, folder_option, open_corpus, paths_argument
from pilekit.errors import PilekitError
from pilekit.progress import byte_progress


@click.command()
@paths_argument
@folder_option("--dedup", "Show what this `pilekit dedup` removed, beside the kept.")
@folder_option("--cuts", "Show what this `decontaminate` or `substrings` cut; repeatable.", multiple=True)
@folder_option("--bpb", "Colour tokens by their bits: of `pilekit bpb --per-token`.")
@click.option("--tokenizer", metavar="F", help="Show the tokens of texts.  [default: that of --bpb's model]")
def command(
    paths: tuple[str, ...],
    manifest: Described,
    dedup: Path | None,
    cuts: tuple[Path, ...],
    bpb: Path | None,
    tokenizer: str | None,
) -> None:
    """Browse a corpus in a page of your browser: documents by subset, search, duplicates, tokens, bits per byte.

    The page is served on 127.0.0.1 alone, at an address with a random token, until Ctrl-C. It reads the paths given and
    shows nothing else. Missing indexes are built, which reads each shard once; it says where they are. A shard as
    released, in one long frame, must be reframed first. Needs the extra `explore`: pip install '.[explore]'.

    \b
    Example:
      pilekit explore data/
      pilekit explore data/ --dedup dedup --tokenizer 20B_tokenizer.json
      pilekit explore data/ dedup decontaminated scores/a
      pilekit explore val.jsonl.zst --bpb scores/a
    """
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise PilekitError("explore needs starlette and uvicorn; pip install '.[explore]'")
    if "-" in paths:
        raise click.UsageError("the page jumps to any document: name files, not standard input")
    from pilekit.cli.index import tell_places
    from pilekit.explore.server import serve
    from pilekit.explore.sources import Sources
    from pilekit.shards.index.build import index_corpus

    kinds = {path: _kind(path) for path in paths}
    if not all(kinds.values()):  # Beside a corpus, the folder of a result is that result; else it is its shards.
        given = {kind: tuple(Path(path) for path in paths if kinds[path] == kind) for kind in ("dedup", "cuts", "bpb")}
        for kind, also in (("dedup", dedup), ("bpb", bpb)):
            if len(given[kind]) + (also is not None) > 1:
                raise click.UsageError(f"several folders of {kind} are given; the page shows one")
        paths = tuple(path for path in paths if not kinds[path])
        dedup, bpb = next(iter(given["dedup"]), dedup), next(iter(given["bpb"]), bpb)
        cuts = (*cuts, *given["cuts"])
    corpus = open_corpus(paths, manifest)
    with byte_progress("indexing", corpus.size) as advance:
        indexes = index_corpus(corpus, on_error="skip", advance=advance)
    tell_places("index written", [index.path for index in indexes if index.built], err=True)
    sources = Sources(corpus, dedup=dedup, cuts=cuts, bpb=bpb, tokenizer=tokenizer)
    tell_places("index written for a result", sources.written, err=True)
    with contextlib.suppress(KeyboardInterrupt):
        serve(sources, lambda address: click.echo(f"{address}\nCtrl-C ends it"))


def _kind(path: str) -> str:
    """The option that takes the result in a folder, by its header; "" for a corpus."""
    from pilekit.artifacts.header import read_header
    from pilekit.evaluate.results.result import RESULT_FILE

    if Path(path, RESULT_FILE).is_file():
        return "bpb"
    with contextlib.suppress(PilekitError):
        kind = read_header(path).kind
        return {"dedup": "dedup", "decontamination": "cuts", "substrings": "cuts"}.get(kind, "")
    return ""
