"""`write_report`: artefacts in, one self-contained HTML file out, which opens from disk."""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from pilekit import __version__
from pilekit.artifacts.atomic_write import check_target, write_atomically
from pilekit.corpus import Corpus, Manifest, load_manifest
from pilekit.errors import PilekitError, counted, visible
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.result_folder import read_result
from pilekit.progress import Report
from pilekit.report import collect
from pilekit.report.collect import Artefact, find_artefacts
from pilekit.report.corpus import Stats, Verification
from pilekit.report.parts import Figure, Part, Section, Source
from pilekit.shards.verify.findings import some_names

logger = logging.getLogger(__name__)

TITLES = {
    "corpus": "Corpus",
    "dedup": "Deduplication",
    "cleaning": "Cleaning",
    "decontamination": "Decontamination",
    "substrings": "Repeated passages",
    "run": "Training",
    "bpb": "Bits per byte",
}
"""The sections in their order, by the kind of their artefacts."""


def write_report(
    paths: str | Path | Sequence[str | Path],
    out: str | Path = "report.html",
    *,
    manifest: Manifest | str | Path | None = None,
    tokenizer: Any | None = None,
    advance: Report = lambda *_: None,
) -> tuple[str, ...]:
    """Write one HTML page that shows artefacts, and return the titles of its sections.

    paths      folders that `dedup`, `clean`, `decontaminate`, `substrings`, `train` or `bpb --out` wrote, saved outputs
               of `stats --json` and `verify --json`, folders that hold such artefacts, and corpora, which are counted
    out        the file; it replaces an older one, whole or not at all
    manifest   describes the corpora; the Pile's by default
    tokenizer  counts the tokens of corpora too: an argument of `load_tokenizer`
    advance    receives the progress of each step

    An artefact that was given and is damaged or not finished is a `PilekitError`. If it was only found in a given
    folder, it is left out, and the page says why.
    """
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    if not paths:
        raise PilekitError("nothing to report: give folders that pilekit commands wrote, or shards")
    check_target(Path(out))
    described = load_manifest(manifest or "pile")
    sources: list[Source] = []
    sections: dict[str, Section] = {}
    left_out: list[str] = []
    scored: list[tuple[BitsPerByte, Source]] = []
    for one in sorted(find_artefacts(paths), key=lambda one: list(TITLES).index(_section(one))):
        kind = _section(one)
        try:
            result = read_result(one.path) if kind == "bpb" else None
            source = _source(len(sources) + 1, one, result)
            parts = sorted(_parts(one, result, described, tokenizer, source, advance), key=_order)
        except PilekitError as error:
            if one.given:
                raise
            left_out.append(str(error))
            logger.warning("left out: %s", error)
            continue
        sources.append(source)
        if result is not None:
            scored.append((result, source))
        sections.setdefault(kind, Section(kind, TITLES[kind])).parts.extend(parts)
    if len(scored) > 1:
        from pilekit.report.bits import together_parts

        names = [source.path for _, source in scored]
        command = collect.line("bpb", "--compare", *names)
        sources.append(Source(len(sources) + 1, ", ".join(names), command))
        sections["bpb"].parts.extend(together_parts(scored, sources[-1]))
    if not sections:
        why = f": {left_out[0]}" if left_out else ""
        raise PilekitError(f"nothing to report in {visible(', '.join(map(str, paths)), 200)}{why}")
    shown = [sections[kind] for kind in TITLES if kind in sections]
    page = render(shown, sources, left_out)
    with write_atomically(Path(out)) as file:
        file.write(page.encode("utf-8", "replace"))
    return tuple(section.title for section in shown)


def _section(one: Artefact) -> str:
    return "corpus" if one.kind in (collect.STATS, collect.VERIFY) else one.kind


def _order(part: Part) -> int:
    """Figures before tables, so that they stand beside each other; texts last."""
    wide = isinstance(part, Figure) and part.wide
    return ["facts", "note", "figure", "wide", "table", "texts", "pairs"].index("wide" if wide else part.kind)


def _source(number: int, one: Artefact, result: BitsPerByte | None) -> Source:
    if result is None:
        made_by = "" if one.header is None else one.header.pilekit
        return Source(number, one.shown_path, one.command(), one.inputs(), made_by)
    of = result.protocol
    limit = () if of["limit"] is None else ("--limit", str(of["limit"]))
    command = collect.line("bpb", str(of["model"]["path"] or "MODEL"), "CORPUS", *limit, "--out", str(one.path))
    return Source(number, one.shown_path, command, some_names(shard["name"] for shard in of["data"]), of["pilekit"])


def _parts(
    one: Artefact, result: BitsPerByte | None, manifest: Manifest, tokenizer: Any, source: Source, advance: Report
) -> Iterator[Part]:
    """The parts of an artefact; each kind's module is imported on first use."""
    from pilekit.report.corpus import corpus_parts, stats_of, verify_parts

    header, folder = one.header, one.path
    if one.kind == "corpus":
        from pilekit.stats.summary import corpus_stats

        corpus = Corpus(list(one.paths), manifest)
        counting = {"copies": True, "tokenizer": tokenizer}
        size = corpus.size or 0
        stats = corpus_stats(corpus, advance=lambda amount: advance("counting", amount, size), **counting)
        yield from corpus_parts(stats, manifest, source)
    elif isinstance(one.saved, Stats):
        yield from corpus_parts(stats_of(one.saved, manifest), manifest, source)
    elif isinstance(one.saved, Verification):
        yield from verify_parts(one.saved, source)
    elif one.kind == "run":
        from pilekit.report.training import training_parts

        yield from training_parts(folder, source)
    elif result is not None:
        from pilekit.report.bits import result_parts

        yield from result_parts(result, source)
    elif header is not None:
        from pilekit.report.cuts import cleaning_parts, cut_parts
        from pilekit.report.dedup import dedup_parts, read_summary

        if not header.finished:
            command = collect.COMMANDS[one.kind]
            raise PilekitError(f"{visible(str(folder))}: is not finished; run the same `pilekit {command}` again")
        if one.kind == "dedup":
            yield from dedup_parts(folder, source, advance)
        else:
            cut = cleaning_parts if one.kind == "cleaning" else cut_parts
            yield from cut(folder, header, read_summary(folder / "summary.json"), source)


def render(sections: Sequence[Section], sources: Sequence[Source], left_out: Sequence[str]) -> str:
    """The page. Every string that a template prints passes through `visible` and is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("pilekit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.tests["number"] = re.compile(r"[-+~]?[\d.,]+( ?[kMGTP]?B?| %)?((–| to )[-+]?[\d.]+)?|–").fullmatch
    environment.filters["lines"] = lambda text: Markup("\n").join(map(visible, text.expandtabs(4).split("\n")))
    templates = files("pilekit.report").joinpath("templates")
    script, style = (templates.joinpath(name).read_text("utf-8") for name in ("report.js", "report.css"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html").render(
        sections=sections,
        sources=sources,
        left_out=left_out,
        script=Markup(script),
        style=Markup(style),
        digest=digest,
        version=__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        title=f"pilekit report: {', '.join(section.title.lower() for section in sections)}",
        counted=counted,
    )
