"""`verify_corpus`: the problems of a corpus's shards, each with its place.

Every shard is read once (shard.py), several shards at a time. Notes name the checks that were not possible because sums
or checksums are missing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Unpack

from pilekit.artifacts.atomic_write import check_target
from pilekit.corpus import Corpus, Described, Source
from pilekit.corpus.find import ENVIRONMENT
from pilekit.corpus.job_shards import CLEAN
from pilekit.corpus.shard import STANDARD_INPUT, is_url, looks_like_shard, make_shard
from pilekit.corpus.sidecar_files import SUMS_FILES
from pilekit.display.table_result import Result
from pilekit.errors import PilekitError, counted, visible
from pilekit.shards.corpus_job import CorpusJob
from pilekit.shards.index.document_rows import load_scan
from pilekit.shards.verify.findings import MOST_FINDINGS, Finding, findings_table, some_names
from pilekit.shards.verify.sha256sums import below, find_sums, read_sums, stored_name
from pilekit.shards.verify.sha256sums import write_sums as write_sums_file
from pilekit.shards.verify.shard import Expected, Verdict, verify_shard
from pilekit.shards.work import StoredWork, takes

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Verification(Result):
    """The result of `verify_corpus`.

    findings       all problems, in the order of the shards
    notes          checks that were not possible, and other remarks; safe to print
    shards         how many shards were verified
    stored_bytes   the stored bytes of the shards that could be read
    """

    FIGURES: ClassVar[tuple[str, ...]] = ("ok", "findings")

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    shards: int
    stored_bytes: int

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def __repr__(self) -> str:
        return f"Verification({counted(self.shards, 'shard')}, {counted(len(self.findings), 'finding')})"

    def to_arrow(self) -> pa.Table:
        """A row per finding."""
        import pyarrow as pa

        types = {"shard": pa.string(), "problem": pa.string(), **dict.fromkeys(("frame", "line", "byte"), pa.int64())}
        return pa.Table.from_pylist(self.to_dict()["findings"], pa.schema(types))

    def _repr_html_(self) -> str:
        return findings_table(self.findings)._repr_html_()


@takes(StoredWork)
def verify_corpus(
    corpus: Corpus | Source,
    *,
    sums: str | Path | None = None,
    write_sums: bool = False,
    use_manifest_sums: bool = False,
    whole: bool | None = None,
    manifest: Described = None,
    **work: Unpack[StoredWork],
) -> Verification:
    """Verify all shards of a corpus.

    corpus              a `Corpus`, or one or several paths, globs or URLs
    sums                a file of SHA-256 sums (path or URL), with names below the corpus root; None: `SHA256SUMS` or
                        `SHA256SUMS.txt` in that root, if there is one
    write_sums          writes such a file there, if nothing is wrong; lines for other files are kept
    use_manifest_sums   applies the manifest's sums to all files; else only to files of exactly the listed size
    whole               a listed file that is missing is a finding; None: if `corpus` is the path of a folder
    manifest            describes the corpus at a path, as for `Corpus`
    part                (I, N): only the shards of `corpus.part(part)`; part 1 finds the listed files that are missing
    work                jobs, advance, cluster: see `StoredWork`

    Problems of shards are in the result. A bad sums file, or a named sums file that is missing, is a `PilekitError`.
    """
    source, corpus = corpus, Corpus.of(corpus, manifest)
    job = CorpusJob(corpus, **work)
    part = job.part
    if whole is None and not isinstance(source, Corpus):
        whole = is_whole(source, corpus)
    if any(shard.path == STANDARD_INPUT for shard in corpus.shards):
        raise PilekitError("standard input (-) cannot be verified, as it cannot be read again; save it to a file first")
    if write_sums and part is not None:
        raise PilekitError("sums are written for all shards at once; leave out --part")
    target, old = _target(corpus) if write_sums else (None, {})
    listed_in, listed = _load_sums(corpus, sums)
    expected = _expected_sums(corpus, listed_in, listed, use_manifest_sums)
    missing = _find_missing(corpus, listed_in, listed) if listed_in and whole and (part is None or part[0] == 1) else []
    verify = functools.partial(verify_shard, manifest=corpus.manifest, hashed=write_sums)
    load_scan(job, job.shards)
    items = [(shard, expected.get(shard.name)) for shard in job.shards]
    verdicts = {item[0].name: verdict for item, verdict in zip(items, job.each(verify, items), strict=True)}
    findings = [finding for verdict in verdicts.values() for finding in verdict.findings]
    findings += missing
    corpus = corpus.part(part)
    notes = [] if listed_in is None else [f"sums are taken from {visible(listed_in)}"]
    notes += _notes(corpus, verdicts, listed_in, listed)
    if target is not None and findings:
        notes.append(f"{visible(target)}: not written, as something is wrong")
    elif target is not None:
        here = {stored_name(shard): verdicts[shard.name].sha256 or "" for shard in corpus.shards}
        write_sums_file(target, {**old, **here})
        notes.append(f"written: {visible(target)}")
    stored_bytes = sum(verdict.size for verdict in verdicts.values())
    return Verification(tuple(findings), tuple(notes), len(verdicts), stored_bytes)


def is_whole(source: str | Path | Sequence[str | Path] | None, corpus: Corpus) -> bool:
    """Whether `corpus`, made from `source` (nothing: the default places), holds all shards of its root folder."""
    sources = [source] if isinstance(source, str | Path) else source or [os.environ.get(ENVIRONMENT) or corpus.root]
    root = corpus.root.rstrip("/")  # Of a job, it may be the folder of its shards.
    places = [os.path.expanduser(place).rstrip("/") for place in sources]  # noqa: PTH111 (as it was given)
    return any(root in (place, f"{place}/{CLEAN}") for place in places)


def _target(corpus: Corpus) -> tuple[Path, dict[str, str]]:
    """The sums file to write, and the sums it has now; raises before any work if it cannot be written."""
    if is_url(corpus.root):
        raise PilekitError(
            f"{corpus.root}: sums can only be written into a local folder; copy the corpus first, or verify "
            "without --write-sums"
        )
    target = Path(corpus.root) / SUMS_FILES[0]
    check_target(target)
    if not os.access(corpus.root, os.W_OK):
        raise PilekitError(f"{target}: cannot be written: the folder is read-only")
    old = find_sums(corpus.root)
    return target, read_sums(old) if old else {}


def _load_sums(corpus: Corpus, sums: str | Path | None) -> tuple[str | None, dict[str, str]]:
    """(the sums file, name -> sum); (None, {}) if there is none."""
    place = find_sums(corpus.root) if sums is None else str(sums)
    if place is None:
        return None, {}
    listed = read_sums(place)
    names = [stored_name(shard) for shard in corpus.shards]
    if sums is not None and not any(name in listed for name in names):
        raise PilekitError(
            f"{place}: has no sum of any of these shards; it names {some_names(listed) or 'nothing'}, the "
            f"shards in {corpus.root} are {some_names(names)}; verify the folder that holds the named files"
        )
    return place, listed


def _expected_sums(
    corpus: Corpus, listed_in: str | None, listed: dict[str, str], use_manifest_sums: bool
) -> dict[str, Expected]:
    """The known sums that shards should have, by the shard's name."""
    expected: dict[str, Expected] = {}
    by_name = {stored_name(shard): shard for shard in corpus.shards}
    source = f"the manifest {visible(corpus.manifest.name, 60)}"
    for file in corpus.manifest.release.files:
        shard = by_name.get(file.name)
        if shard and file.sha256 and (use_manifest_sums or (file.bytes is not None and shard.size == file.bytes)):
            expected[shard.name] = Expected(file.sha256, source)
        plain = by_name.get(make_shard(file.name, file.name, None).name)
        if use_manifest_sums and plain and stored_name(plain) == plain.name and file.uncompressed_sha256:
            expected[plain.name] = Expected(file.uncompressed_sha256, source)
    for name, shard in by_name.items():
        if listed_in is not None and name in listed:
            expected[shard.name] = Expected(listed[name], visible(listed_in))
    return expected


def _find_missing(corpus: Corpus, listed_in: str, listed: dict[str, str]) -> list[Finding]:
    """A finding for each listed file that is missing."""
    not_read = set(listed) - {stored_name(shard) for shard in corpus.shards}
    if is_url(corpus.root):
        gone = [name for name in not_read if looks_like_shard(name)]  # Only shards were searched for.
    else:
        gone = [name for name in not_read if not os.path.lexists(below(corpus.root, name))]
    missing = [Finding(name, f"{visible(listed_in)} lists it, but it is not there; fetch it") for name in sorted(gone)]
    if len(missing) > MOST_FINDINGS:
        hidden = len(missing) - MOST_FINDINGS
        are = "is" if hidden == 1 else "are"
        missing[MOST_FINDINGS:] = [
            Finding("", f"{visible(listed_in)} lists {counted(hidden, 'more file')} that {are} not there")
        ]
    return missing


def _notes(corpus: Corpus, verdicts: dict[str, Verdict], listed_in: str | None, listed: dict[str, str]) -> list[str]:
    """The checks that were not possible, a line for each kind."""
    texts = {
        "unlisted": "{}: no sum in " + visible(listed_in or ""),
        "cut": "{}: no seek table, index or sum: a cut exactly at the end of a frame or line would not show",
        "change": "{}: no checksums, index or sum: a changed byte may pass as text",
        "unread": "{}: lines behind the damage were not checked",
        "fields": "{}: the index is of another text_field or label_path than the manifest's: its documents were not "
        "compared",
    }
    shards = {
        check: [shard.name for shard in corpus.shards if check in verdicts[shard.name].unjudged] for check in texts
    }
    if listed_in is not None:
        shards["unlisted"] = [shard.name for shard in corpus.shards if stored_name(shard) not in listed]
    notes = [text.format(some_names(shards[check])) for check, text in texts.items() if shards[check]]
    if other_files := sum(not looks_like_shard(name) for name in listed):
        notes.append(f"{other_files:,} listed files are no shards and were not checked; sha256sum -c checks them")
    return notes
