"""`pilekit explore`: a page on this machine to browse a corpus, its duplicates, tokens and bits per byte."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilekit.cli.display.output import say
from pilekit.cli.options import Described, folder_option, open_corpus, paths_argument
from pilekit.display.progress import byte_progress
from pilekit.errors import PilekitError

if TYPE_CHECKING:
    from pilekit.report.collect import Artefact


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
    """Browse a corpus and results in a page of your browser: documents, search, duplicates, traces, tokens, runs.

    It takes the corpora and results that `pilekit report` takes. Each result has its page of the report. The server
    answers on 127.0.0.1 alone, at an address with a random token, until Ctrl-C. It reads the paths given and shows
    nothing else. Missing indexes are built, which reads each shard once; it says where they are. A shard as released,
    in one long frame, must be reframed first. Needs the extra `explore`: pip install '.[explore]'.

    \b
    Example:
      pilekit explore data/
      pilekit explore data/ --dedup dedup --tokenizer 20B_tokenizer.json
      pilekit explore data/ dedup decontaminated scores/a
      pilekit explore data/ traces.parquet
      pilekit explore runs/a stats.json
      pilekit explore val.jsonl.zst --bpb scores/a
    """
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise PilekitError("explore needs starlette and uvicorn; pip install '.[explore]'")
    if "-" in paths:
        raise click.UsageError("the page jumps to any document: name files, not standard input")
    from pilekit.cli.index import print_places
    from pilekit.corpus import load_manifest
    from pilekit.explore.server import serve
    from pilekit.explore.sources import Sources
    from pilekit.report.collect import sort_out
    from pilekit.shards.index.build import index_corpus

    options = [str(folder) for folder in (dedup, *cuts, bpb) if folder]
    results, without = sort_out([*paths, *options], [])
    corpora = _corpora(paths, without, results)
    corpus = None if results and paths and not corpora else open_corpus(corpora or paths, manifest)
    shown = [result for result in results if result.is_given and Path(result.path) not in map(Path, corpora)]
    dedup = dedup or _first("dedup", [result for result in shown if result.kind == "dedup"])
    scores = [result for result in shown if result.kind == "bpb"]
    bpb = bpb or _first("bpb", [score for score in scores if score.content.protocol.get("per_token")])
    cut_folders = [Path(result.path) for result in shown if result.kind in ("decontamination", "substrings")]
    if corpus is not None:
        with byte_progress("indexing", corpus.size) as advance:
            indexes = index_corpus(corpus, on_error="skip", advance=advance)
        print_places("index written", [index.path for index in indexes if index.built], err=True)
    sources = Sources(
        corpus,
        dedup=dedup,
        cuts=list(dict.fromkeys([*cuts, *cut_folders])),
        traces=[Path(result.path) for result in shown if result.kind == "trace"],
        bpb=bpb,
        tokenizer=tokenizer,
        results=results,
        manifest=load_manifest(manifest or "pile"),
    )
    print_places("index written for a result", sources.written, err=True)
    with contextlib.suppress(KeyboardInterrupt):
        serve(sources, lambda address: click.echo(f"{address}\nCtrl-C ends it"))


def _corpora(paths: Sequence[str], without: Sequence[str], results: Sequence[Artefact]) -> list[str]:
    """The paths that are corpora: paths without results, and folders that hold shards in addition to results.

    If there are none, the folders of jobs are the shards that the jobs wrote.
    """

    def has_shards(path: str) -> bool:
        with contextlib.suppress(PilekitError):
            return bool(open_corpus([path]))
        return False

    kinds = {Path(result.path): result.kind for result in results if result.is_given}
    corpora = [path for path in paths if path in without or (Path(path) not in kinds and has_shards(path))]
    jobs = ("dedup", "cleaning", "decontamination", "substrings")
    return corpora or [path for path in paths if kinds.get(Path(path)) in jobs and has_shards(path)]


def _first(kind: str, results: Sequence[Artefact]) -> Path | None:
    """The folder of the result whose documents are listed; each further result has only its page."""
    if len(results) > 1:
        say(f"several folders of {kind}: {results[0].path} is listed by document; --{kind} names another", err=True)
    return Path(results[0].path) if results else None
