"""The arguments and options that several commands share, so that every command spells them alike.

    @click.command()
    @corpus_argument
    @on_error_option()
    @json_option
    def command(paths, subsets, manifest, on_error, as_json):
        corpus, names = open_subsets(paths, manifest, subsets)

Commands that read whole shards take `paths_argument`, which has no `--subsets`.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

import click
import msgspec

from pilekit.artifacts.settings import LARGEST_INTEGER, plain_types, settings_of
from pilekit.artifacts.sort.memory_limit import sorting_memory
from pilekit.errors import PilekitError, visible

if TYPE_CHECKING:
    from pilekit.corpus import Corpus, Manifest

Described: TypeAlias = "Manifest | str | None"
"""A command's value of `--manifest`, or of `--text-field` and `--label`."""

F = TypeVar("F", bound=Callable[..., Any])


def folder(typed: str) -> Path:
    """The path of a folder. An empty name is wrong usage, because its `Path` would be the current folder."""
    if not typed:
        raise click.BadParameter("it is empty; name a folder")
    return Path(typed)


def folder_option(name: str, help: str, **settings: Any) -> Callable[[F], F]:
    """An option that takes a folder."""
    return click.option(name, type=folder, metavar="DIR", help=help, **settings)


adapter_option = folder_option(
    "--adapter", "An adapter (LoRA) of the model, as peft saves it; else the model alone counts."
)
"""Adds `adapter` (Path or None) to a command that loads a model."""


def prefix(typed: str) -> Path:
    """The beginning of file names, such as `tokens/pile`; a folder is wrong usage."""
    from pilekit.tokenize.files.formats import check_prefix

    try:
        return check_prefix(typed)
    except PilekitError as error:
        raise click.BadParameter(str(error)) from error


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class ByteSize(click.ParamType[int]):
    """A number of bytes of at least `smallest`, such as `200MB`, `1.5 GB`, `64MiB` or `1000000`.

    K, M, G, T are powers of 1000; Ki, Mi, Gi, Ti are powers of 1024.
    """

    name = "size"

    def __init__(self, smallest: int = 1):
        self.smallest = smallest

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes; any other text is wrong usage."""
        match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,9})?)\s*([kmgt]i?)?b?", str(value).strip().lower())
        if match is None:
            self.fail(f"'{visible(str(value), 40)}' is not a size; write it like 200MB, 1.5GB or 64MiB", param, ctx)
        size = int(Decimal(match[1]) * _UNITS[match[2] or ""])
        if not self.smallest <= size <= 1 << 60:
            self.fail(f"{value} is not in the range from {self.smallest:,} to {1 << 60:,} bytes", param, ctx)
        return size


class Similarity(click.FloatRange):
    """A number from 0 to 1. Unlike click's own range it refuses NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; anything outside the range is wrong usage."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{number} is not in the range {self._describe_range()}.", param, ctx)
        return number


def repeats(typed: str) -> dict[str, float]:
    """`ArXiv=2,Wikipedia (en)=3.5`, as {"ArXiv": 2.0, "Wikipedia (en)": 3.5}. Another form is wrong usage."""
    factors: dict[str, float] = {}
    for part in typed.split(","):
        name, _, factor = part.rpartition("=")
        try:
            factors[name.strip()] = float(factor)
        except ValueError:
            name = ""
        if not name.strip():
            raise click.BadParameter(f"{visible(part, 80)} is not NAME=FACTOR, such as ArXiv=2")
    return factors


def weights(typed: str) -> dict[str, float] | list[tuple[int, dict[str, float]]]:
    """As `repeats`; or `0:ArXiv=1;1000:ArXiv=1,GitHub=2`, as pairs of a step and its weights."""
    if not re.match(r"\s*\d+\s*:", typed):
        return repeats(typed)
    entries = []
    for part in typed.split(";"):
        step, colon, shares = part.partition(":")
        if not colon or not re.fullmatch(r"\s*\d{1,15}\s*", step):
            raise click.BadParameter(f"{visible(part, 80)} is not STEP:NAME=X,..., such as 1000:ArXiv=1,GitHub=2")
        entries.append((int(step), repeats(shares)))
    return entries


def lanes(typed: str) -> tuple[int, int]:
    """`32,4`, as (32, 4). A text that is not two whole numbers is wrong usage."""
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*,\s*([0-9]{1,9})\s*", typed)
    if match is None:
        raise click.BadParameter(f"{visible(typed, 80)} is not ROWS,COLUMNS, such as 32,4")
    return int(match[1]), int(match[2])


def parse_part(typed: str) -> tuple[int, int]:
    """`3/30`, as (3, 30). A text that is not a part and the number of parts is wrong usage."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", typed)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise click.BadParameter(f"{visible(typed, 80)} is not I/N, I from 1 to N, such as 1/30")
    return int(match[1]), int(match[2])


def setting_options(kind: type[msgspec.Struct], *names: str, **changes: Mapping[str, Any]) -> Callable[[F], F]:
    """The options of these settings, the fields of a Struct (artifacts/settings.py).

    changes   arguments of `click.option`, by setting, which replace the field's

    Type, default and range come from the field, and the help is its first sentence.
    """
    settings, types = {setting.name: setting for setting in settings_of(kind)}, plain_types(kind)
    options = []

    def as_option(word: re.Match[str]) -> str:
        return f"--{word[1].replace('_', '-')}" if word[1] in settings else word[0]

    for name in names:
        setting = settings[name]
        first = re.match(r".*?\.(?= [A-Z]|$)", setting.sentence)
        help = re.sub(r"`(\w+)`", as_option, first[0] if first else "")
        arguments: dict[str, Any] = {"help": help, **_typed(types.get(name))}
        if setting.default is inspect.Parameter.empty:
            arguments["required"] = True
        elif setting.default == "auto" and "type" not in arguments:
            arguments["help"] += "  [default: auto]"
        elif not arguments.get("is_flag"):
            arguments["default"] = setting.default
        options.append(click.option(f"--{name.replace('_', '-')}", **{**arguments, **changes.get(name, {})}))
    return together(*options)


def _typed(hint: Any) -> dict[str, Any]:
    """The arguments of `click.option` for values of a type: a number, a truth value, or one of several words."""
    if get_origin(hint) in (Union, UnionType):  # a type or None
        return _typed(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return {"type": click.Choice(get_args(hint))}
    if hint is bool:
        return {"is_flag": True}
    if get_origin(hint) is Annotated:
        limits = hint.__metadata__[0]
        most = None if limits.le == LARGEST_INTEGER else limits.le
        return {"type": int if limits.ge < 0 else click.IntRange(limits.ge, most)}
    return {}


_PATHS = click.argument("paths", metavar="[PATH]...", nargs=-1)


def together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """A decorator that adds several options, in their order on the help page."""

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def _described(context: click.Context, option: click.Parameter, manifest: str | None) -> Described:
    """The value of `manifest`, which takes the place of the values of --text-field and --label."""
    text_field, label = context.params.pop("text_field"), context.params.pop("label")
    if text_field is None and label is None:
        return manifest
    if manifest is not None:
        raise click.UsageError("--manifest says where text and label are; leave out --text-field and --label.")
    from pilekit.corpus import load_manifest

    try:
        return load_manifest(text_field=text_field, label=label)
    except PilekitError as error:
        raise click.UsageError("--" + str(error).replace("_", "-", 1)) from error


# Click reads eager options first, so `_described` finds their values, in whatever order they are given.
manifest_option = together(
    click.option(
        "--manifest",
        metavar="NAME|FILE",
        callback=_described,
        help="The kind of corpus: pile (the default), pile-uncopyrighted, demo, or a TOML file.",
    ),
    click.option(
        "--text-field",
        metavar="NAME",
        is_eager=True,
        help="The field of the text, for a corpus without a manifest.",
    ),
    click.option("--label", metavar="PATH", is_eager=True, help="The field of the subset's name, such as meta.source."),
)
"""Adds `manifest` (`Described`). --text-field and --label describe a corpus that has no manifest. They give a
`Manifest` without subsets."""

out_option = folder_option("--out", "New folder for the shards.", required=True)
"""Adds `out` (Path)."""

jobs_option = click.option(
    "--jobs", type=click.IntRange(min=1), help="Shards at a time; fewer need less memory.  [default: CPUs; dedup: half]"
)
"""Adds `jobs` (int or None)."""

part_option = click.option(
    "--part", type=parse_part, metavar="I/N", help="Only the I-th of N parts of the shards, for an array of jobs: 1/30."
)
"""Adds `part` ((int, int) or None)."""


def cluster_option(function: F) -> F:
    """Add `cluster` to a command: None, or the `Ray` of --cluster and --scratch, connected."""

    @functools.wraps(function)
    def with_cluster(*args: Any, cluster: str | None, scratch: Path | None, **options: Any) -> Any:
        if cluster is None:
            if scratch is not None:
                raise click.UsageError("--scratch is for a cluster: give --cluster too.")
            return function(*args, cluster=None, **options)
        if options.get("part"):
            raise click.UsageError("a cluster does all parts: leave out --part, or --cluster.")
        from pilekit.workers import Ray

        with Ray(cluster, scratch=scratch) as ray:
            click.echo(str(ray), err=True)
            return function(*args, cluster=ray, **options)

    where = "Run on a Ray cluster: the address of its head; auto: $RAY_ADDRESS, or the cluster of this machine."
    return together(
        click.option("--cluster", metavar="HOST:PORT", help=where),
        folder_option("--scratch", "With --cluster: a folder on each node's own disk.  [default: $TMPDIR]"),
    )(with_cluster)  # type: ignore[return-value]


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
"""Adds `as_json` (bool)."""

shard_options = together(part_option, jobs_option, cluster_option, json_option)
"""Adds `part`, `jobs`, `cluster` and `as_json` to a command that works shard by shard."""

token_format_option = click.option(
    "--format",
    type=click.Choice(["megatron", "npy", "ds", "llmc", "parquet"]),
    default="megatron",
    help="Megatron and GPT-NeoX; OLMo-core and nanoGPT; nanotron; llm.c; datasets and polars.",
)
"""Adds `format` to a command that writes token files."""


def on_error_option(skip: str = "skip and count it") -> Callable[[F], F]:
    """Adds `on_error` ("raise" or "skip"). `skip` says in the help how the command skips a line."""
    return click.option(
        "--on-error",
        type=click.Choice(["raise", "skip"]),
        default="raise",
        help=f"At a line that is not a document: stop, or {skip}.",
    )


held_out_option = click.option(
    "--held-out",
    type=click.Choice(["leave-out", "protect"]),
    default="leave-out",
    help="Val and test shards among others: leave out, or keep whole, and take from the others what these have.",
)
"""Adds `held_out`."""

run_options = together(on_error_option(), jobs_option, json_option, cluster_option)
"""Adds `on_error`, `jobs`, `as_json` and `cluster`."""


def memory_option(use: str) -> Callable[[F], F]:
    """Adds `memory` (int). `use` says in the help what it is for."""
    return click.option(
        "--memory",
        type=ByteSize(64 * 10**6),
        default=sorting_memory,
        show_default=False,
        help=f"Memory {use}.  [default: 4GB, or half of what the process may use]",
    )


sort_options = together(memory_option("to sort and compare, for any corpus"), run_options)
"""Adds `memory` (int) and `run_options` to a command that compares documents with all others."""

paths_argument = together(_PATHS, manifest_option)
"""Adds the argument `paths` (tuple of str) and the option `manifest`."""

corpus_argument = together(
    _PATHS,
    click.option(
        "--subsets", metavar="NAMES", help="Only these subsets, separated by commas: ArXiv,GitHub,pile_upsto."
    ),
    manifest_option,
)
"""Adds `paths`, `subsets` (str or None) and `manifest`."""

corpus_and_only = together(
    corpus_argument,
    click.option("--only", is_flag=True, help="Leave out the documents of all subsets that --subsets does not name."),
)
"""Adds `corpus_argument` and `only` (bool) to a command that removes documents or text of some subsets."""


def open_corpus(paths: Sequence[str], manifest: Described = None) -> Corpus:
    """The corpus at `paths`: files, folders, globs, URLs, or `-` for standard input. No paths: the default places."""
    from pilekit.corpus import Corpus

    return Corpus((paths[0] if len(paths) == 1 else list(paths)) if paths else None, manifest)


def open_subsets(
    paths: Sequence[str], manifest: Described, subsets: str | None, *, only: bool = False
) -> tuple[Corpus, tuple[str, ...] | None]:
    """The corpus, and the exact names of the subsets that --subsets names; None means all subsets."""
    if only and subsets is None:
        raise click.UsageError("--only needs --subsets: it leaves out the documents of all other subsets")
    corpus = open_corpus(paths, manifest)
    return corpus, exact_subsets(subsets, corpus)


def exact_subsets(names: str | None, corpus: Corpus) -> tuple[str, ...] | None:
    """The exact names of the subsets that --subsets names. None means all subsets."""
    from pilekit.corpus import resolve_subsets, split_names

    return None if names is None else resolve_subsets(*split_names(names), manifest=corpus.manifest)
