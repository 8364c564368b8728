"""`write_report`: artefacts in, one self-contained HTML file out, which opens from disk.

collect.py sorts the paths into artefacts. The section module of a kind (corpus, dedup, cuts, training, bits, counts,
traces) turns an artefact into data for its template, `templates/KIND.html`, without any HTML but figures, which are
inline SVG (figures.py). A corpus is hostile text. Every string passes through `visible` and jinja2's autoescape, so
nothing becomes markup. The page's policy (CSP) allows no network, and no script but its own, which it names by its
hash.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pilekit.artifacts.atomic_write import check_target, write_atomically
from pilekit.artifacts.header import Header
from pilekit.corpus import Corpus, Manifest, load_manifest
from pilekit.display.fitted_table import Column, FittedTable, percentage, rounded_bytes, rounded_count
from pilekit.display.progress import Report
from pilekit.errors import PilekitError, counted, shortened, visible
from pilekit.report.bits import compared_content, result_content
from pilekit.report.collect import KINDS, Artefact, counted_corpus, left_out_if_found, sort_out
from pilekit.report.corpus import corpus_content, with_shares_of
from pilekit.report.counts import counts_content
from pilekit.report.cuts import cleaning_content, cut_content
from pilekit.report.dedup import dedup_content
from pilekit.report.traces import traced_content
from pilekit.report.training import SAMPLED_STEPS, training_content
from pilekit.shards.verify.findings import findings_table
from pilekit.stats.result import CorpusStats
from pilekit.stats.summary import corpus_stats
from pilekit.version import __version__


def write_report(
    paths: str | Path | Sequence[str | Path],
    out: str | Path = "report.html",
    *,
    manifest: Manifest | str | Path | None = None,
    tokenizer: Any | None = None,
    title: str = "pilekit report",
    date: str | None = None,
    advance: Report = lambda *_: None,
) -> tuple[str, ...]:
    """Write one HTML page that shows artefacts, and return the titles of its sections.

    paths      folders that `dedup`, `clean`, `decontaminate`, `substrings`, `train` or `bpb --out` wrote, files that
               `count --out` or `trace --out` wrote, saved outputs of `stats --json` and `verify --json`, folders that
               hold such artefacts, and corpora, which are counted
    out        the file; it replaces an older one, whole or not at all
    manifest   describes the corpora; the Pile's by default
    tokenizer  counts the tokens of corpora too: an argument of `load_tokenizer`
    title      the head of the page
    date       when it was made, as text; None: now, or the time in `SOURCE_DATE_EPOCH`, to the minute
    advance    receives the progress of each step

    A given artefact that is damaged or not finished is a `PilekitError`. Such an artefact inside a given folder is left
    out, and the page says why.
    """
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    if not paths:
        raise PilekitError("nothing to report: give folders that pilekit commands wrote, or shards")
    check_target(Path(out), inputs=paths)
    described = load_manifest(manifest or "pile")
    left_out: list[str] = []
    artefacts, corpora = sort_out(paths, left_out)
    if corpora:
        artefacts.insert(0, counted_corpus(corpora, manifest, tokenizer))
    page, sections = report_page(artefacts, described, tokenizer, title, date, left_out, advance)
    if not sections:
        why = f": {left_out[0]}" if left_out else ""
        raise PilekitError(f"nothing to report in {shortened(', '.join(map(str, paths)), 200)}{why}")
    with write_atomically(Path(out)) as file:
        file.write(page.encode("utf-8", "replace"))
    return sections


def report_page(
    artefacts: Sequence[Artefact],
    manifest: Manifest,
    tokenizer: Any | None = None,
    title: str = "pilekit report",
    date: str | None = None,
    left_out: list[str] | None = None,
    advance: Report = lambda *_: None,
    sampled_steps: int = SAMPLED_STEPS,
) -> tuple[str, tuple[str, ...]]:
    """The page that shows these artefacts, and the titles of its sections. The other parameters are `write_report`'s.

    left_out        messages about artefacts that are left out; messages about damaged ones are added
    sampled_steps   the page shows the samples of at most so many steps of a run
    """
    date = date or _now()
    left_out = [] if left_out is None else left_out
    shown: dict[str, list[Markup]] = {}
    sources: list[Artefact] = []
    environment = _environment()
    for artefact in sorted(artefacts, key=lambda artefact: list(KINDS).index(artefact.kind)):
        with left_out_if_found(artefact.is_given, left_out):
            content = _content(artefact, manifest, tokenizer, advance, sampled_steps)
            template = environment.get_template(f"{artefact.kind}.html")
            part = template.render(**content, source=artefact, number=len(sources) + 1)
            shown.setdefault(KINDS[artefact.kind][0], []).append(Markup(part))
            sources.append(artefact)
    script = environment.get_template("report.js").render()
    page = environment.get_template("report.html").render(
        sections=shown,
        sources=sources,
        left_out=left_out,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
        title=title,
        made=date,
    )
    return page, tuple(shown)


def _now() -> str:
    """The time, to the minute: now, or `SOURCE_DATE_EPOCH`, which reproducible builds set."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        now = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        raise PilekitError(f"SOURCE_DATE_EPOCH is {seconds!r}, not a number of seconds since 1970; unset it") from None
    return now.strftime("%Y-%m-%d %H:%M UTC")


def _content(
    artefact: Artefact, manifest: Manifest, tokenizer: Any, advance: Report, sampled_steps: int
) -> dict[str, Any]:
    """The data of an artefact for its template. PilekitError if it is damaged or not finished."""
    kind, path, content = artefact.kind, artefact.path, artefact.content
    if isinstance(content, Header) and kind != "run" and not content.finished:
        raise PilekitError(f"{path}: is not finished; run the same `pilekit {KINDS[kind][1]}` again")
    match kind:
        case "stats" if isinstance(content, CorpusStats):
            return corpus_content(with_shares_of(manifest, content), manifest, path)
        case "stats":
            size = (corpus := Corpus(content, manifest)).size or 0
            options = {"copies": True, "tokenizer": tokenizer, "on_error": "skip"}
            stats = corpus_stats(corpus, **options, advance=lambda amount: advance("counting", amount, size))
            return corpus_content(stats, manifest, path)
        case "verify":
            return {"findings": findings_table(content)}
        case "dedup":
            return dedup_content(Path(path), content, advance)
        case "cleaning":
            return cleaning_content(Path(path))
        case "decontamination" | "substrings":
            return cut_content(Path(path))
        case "run":
            return training_content(Path(path), sampled_steps)
        case "bpb":
            return result_content(content, path)
        case "count":
            return counts_content(Path(path))
        case "trace":
            return traced_content(Path(path))
    return compared_content(content, path)


def _environment() -> Environment:
    """Every string that a template prints passes through `visible` and is escaped."""
    environment = Environment(
        loader=PackageLoader("pilekit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.tests["number"] = re.compile(r"[-+~<]?[\d.,]+( ?[kMGTP]?B?| %)?((–| to )[-+]?[\d.]+)?|–").fullmatch
    environment.filters["lines"] = lambda text: Markup("\n").join(map(visible, text.expandtabs(4).split("\n")))
    environment.filters |= {
        "count": rounded_count,
        "bytes": rounded_bytes,
        "commas": "{:,}".format,
        "percentage": percentage,
        "log10": math.log10,
    }
    environment.globals |= {"table_of": _table_of, "counted": counted}
    return environment


def _table_of(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> FittedTable[Any]:
    """A table whose rows are lists of cells."""
    return FittedTable(list(rows), [Column(title, itemgetter(place)) for place, title in enumerate(titles)])
