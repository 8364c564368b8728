"""`pilekit bpb`: bits per byte of a model, or by how much models differ, as a table, as JSON, as a figure.

Under torchrun every rank runs this, and rank 0 alone says anything.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pilekit.cli.options import Folder, corpus_argument, exact_subsets, open_corpus
from pilekit.errors import PilekitError, ToldElsewhere, visible
from pilekit.progress import Advance, byte_progress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pilekit.corpus import Corpus
    from pilekit.evaluate.results.compare import Comparison
    from pilekit.evaluate.results.result import BitsPerByte
    from pilekit.shards.read.reader import OnError

_COUNT = click.IntRange(min=1)
_ALL_COLUMNS = 400
"""The width where there is no terminal and no COLUMNS, as in a pipe."""


@click.command()
@click.argument("model_dir")
@corpus_argument
@click.option("--limit", type=_COUNT, metavar="N", help="Only the first N documents of each subset.")
@click.option(
    "--max-length", type=_COUNT, metavar="N", help="Tokens in a window.  [default: as many as the model has positions]"
)
@click.option(
    "--context-len",
    type=_COUNT,
    default=1,
    show_default=True,
    metavar="K",
    help="Inputs before each predicted token, at the least; over 1 windows overlap: lower figures, not comparable.",
)
@click.option(
    "--prefix",
    default="auto",
    show_default=True,
    metavar="auto|bos|eos|none|ID",
    help="What stands before a document's first token; auto: BOS, or EOS where there is no BOS.",
)
@click.option("--paper", is_flag=True, help="The paper's variant: its tokens-per-byte constants; GPT-2 tokenizers.")
@click.option("--train", metavar="PATH", help="Training shards: count documents whose text occurs in them.")
@click.option("--mlm-sample", type=_COUNT, metavar="K", help="Of a masked model's window, mask K tokens only.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "fp32", "bf16", "fp16"]),
    default="auto",
    show_default=True,
    help="What to compute in; auto: fp32 on a CPU, as the weights are on a GPU.",
)
@click.option("--batch-tokens", type=_COUNT, metavar="N", help="Tokens in a forward pass; changes no figure.")
@click.option("--device", default="auto", show_default=True, metavar="auto|cpu|cuda|cuda:N", help="Where to compute.")
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="At a line that is no document: stop, or skip and count it.",
)
@click.option(
    "--out", type=Folder(), metavar="DIR", help="Folder for result.json and the records; run again, it resumes."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, the same as in result.json, instead of the table.")
@click.option("--plot", metavar="FILE", help="Draw the figures into a .png, .svg or .pdf file.")
@click.option("--compare", "comparing", is_flag=True, help="Compare results, given as --out folders or as models.")
@click.pass_context
def command(
    context: click.Context,
    /,
    model_dir: str,
    paths: tuple[str, ...],
    subsets: str | None,
    manifest: str | None,
    train: str | None,
    out: Path | None,
    as_json: bool,
    plot: str | None,
    comparing: bool,
    **rules: Any,
) -> None:
    """Score a model in bits per byte, for each subset and over all, with 95 % intervals.

    MODEL_DIR is a folder in Hugging Face's format: config.json, safetensors and tokenizer.json. Each document is scored
    alone, in windows as in lm-evaluation-harness; what is divided by are the UTF-8 bytes of its raw text. Of a corpus
    with val or test shards among others, only those are scored. A masked model gets pseudo-bits per byte.

    With --out every document is recorded as it is scored; interrupted, the same command resumes. With
    --compare A B [C ...] [PATH ...] each further model is compared with A on the documents that all have: folders given
    to --out before, or model folders, which are scored on the PATHs first.

    \b
    Example:
      pilekit bpb runs/small/model val.jsonl.zst --plot bpb.png
      pilekit bpb pythia-14m data/ --subsets ArXiv,GitHub --limit 100 --out scores/14m
      pilekit bpb runs/small/model val.jsonl.zst --train data/train
      pilekit bpb --compare scores/14m scores/70m --plot gain.png
      pilekit bpb --compare step-50/model step-200/model val.jsonl.zst
      torchrun --nproc-per-node 2 -m pilekit bpb pythia-14m val.jsonl.zst --out scores/14m
    """
    _silence_other_ranks()
    with _told_once():
        if comparing and train is not None:
            raise click.UsageError("--train is about the documents of one result; give it without --compare.")
        models, paths = _models(model_dir, paths) if comparing else ([model_dir], paths)
        to_score = [model for model in models if not (comparing and _is_result(model))]
        if not to_score:
            _refuse_scoring_options(context, paths)
        _check_targets(to_score, out, plot)
        corpus = open_corpus(paths, manifest).only_held_out() if to_score else None
        rules["subsets"] = None if corpus is None else exact_subsets(subsets, corpus)
        if train is not None:
            rules["train"] = _indexed(open_corpus([train], manifest).without_held_out(), rules["on_error"])
    if comparing:
        _compare(models, to_score, corpus, rules, out, as_json, plot)
    else:
        result = _scored(model_dir, corpus, rules, out, "scoring")
        if not _rank():
            _show_result(result, as_json, plot, out)


def _compare(
    models: Sequence[str],
    to_score: Sequence[str],
    corpus: Corpus | None,
    rules: dict[str, Any],
    out: Path | None,
    as_json: bool,
    plot: str | None,
) -> None:
    """Read the results, score the models, each into a folder of its own, A, B, ... in `out`, and compare."""
    from pilekit.evaluate.results.compare import LETTERS, check_kinds, compare
    from pilekit.evaluate.results.result_folder import read_result

    with _told_once():
        results = {model: read_result(model) for model in models if model not in to_score}
        kinds = {model: result.protocol["kind"] for model, result in results.items()}
        check_kinds([kinds.get(model) or _kind(model) for model in models])
    folders: list[Path | None] = [None if model in to_score else Path(model) for model in models]
    for place, (letter, model) in enumerate(zip(LETTERS, models, strict=False)):
        if model in to_score:
            folders[place] = own = None if out is None else out / letter
            results[model] = _scored(model, corpus, rules, own, f"scoring {letter}")
            if not _rank():
                _say_written(own)
    if not _rank():
        _show_comparison(compare([results[model] for model in models], folders), as_json, plot)


def _kind(model_dir: str) -> str:
    from pilekit.evaluate.model.load import MASKED, kind_of

    return "masked" if kind_of(model_dir) is MASKED else "causal"


def _indexed(train: Corpus, on_error: OnError) -> Corpus:
    """The training shards, each with an index: what is wrong with one is told before anything is scored."""
    from pilekit.shards.index.build import index_corpus

    with _progress("indexing", train.size) as advance:
        index_corpus(train, on_error=on_error, advance=advance)
    return train


def _scored(model_dir: str, corpus: Corpus | None, rules: dict[str, Any], out: Path | None, what: str) -> BitsPerByte:
    from pilekit.evaluate.bits_per_byte import bits_per_byte  # torch, transformers: seconds

    assert corpus is not None
    given = {name: value for name, value in rules.items() if value is not None}
    with _progress(what, None if rules["limit"] else corpus.size) as advance:
        return bits_per_byte(model_dir, corpus, out=out, advance=advance, **given)


def _show_result(result: BitsPerByte, as_json: bool, plot: str | None, out: Path | None) -> None:
    from pilekit.evaluate.results.result import result_text
    from pilekit.evaluate.show.table import result_table

    if as_json:
        click.echo(result_text(result), nl=False)
    else:
        width = shutil.get_terminal_size((_ALL_COLUMNS, 24)).columns
        _print(result_table(result, width), width)
    _say_written(out)
    _draw(result, plot)


def _say_written(out: Path | None) -> None:
    from pilekit.evaluate.results.result import RESULT_FILE

    if out is not None:
        click.echo(f"written: {visible(str(out / RESULT_FILE))}", err=True)


def _show_comparison(comparison: Comparison, as_json: bool, plot: str | None) -> None:
    from pilekit.evaluate.show.comparison_table import comparison_table

    if as_json:
        click.echo(json.dumps(comparison.to_dict(), indent=2, allow_nan=False))
    else:
        width = shutil.get_terminal_size().columns
        _print(comparison_table(comparison, width), width)
    _draw(comparison, plot)


def _draw(result: BitsPerByte | Comparison, plot: str | None) -> None:
    from pilekit.evaluate.show.plot import write_figure

    if plot is not None:
        write_figure(result, plot)
        click.echo(f"drawn: {visible(plot)}", err=True)


def _print(table: RenderableType, width: int) -> None:
    from rich.console import Console

    console = Console(file=sys.stdout, width=width, highlight=False)
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _models(first: str, others: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """(models, paths) of what stands behind --compare: the folders of models and results come first."""
    given = [first, *others]
    models = 0
    while models < len(given) and (_is_result(given[models]) or _is_model(given[models])):
        models += 1
    if models < 2:
        folders = "two or more folders, before any PATH: of results (with a result.json, from --out) or of models"
        if models == len(given):
            raise click.UsageError(f"--compare takes {folders} (with a config.json); there is only one.")
        raise PilekitError(
            f"{visible(given[models])}: is neither a result nor a model; --compare takes {folders} (with a config.json)"
        )
    return given[:models], tuple(given[models:])


def _is_result(path: str) -> bool:
    return any((Path(path) / name).exists() for name in ("result.json", "records"))


def _is_model(path: str) -> bool:
    return (Path(path) / "config.json").exists()


def _refuse_scoring_options(context: click.Context, paths: Sequence[str]) -> None:
    """What says how to score would say nothing where all has been scored."""
    shown = ("as_json", "plot", "comparing", "model_dir", "paths")
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in (None, *shown)
        and context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    ]
    given += [visible(path, 60) for path in paths]
    if given:
        raise click.UsageError(
            f"all that is compared has been scored, so nothing can be done with {', '.join(given)}; leave it out, or "
            "give folders of models instead of results."
        )


def _check_targets(models: Sequence[str], out: Path | None, plot: str | None) -> None:
    """Tell what is wrong with where results go now, and not after hours."""
    from pilekit.artifacts.atomic_write import check_target
    from pilekit.evaluate.results.result import RESULT_FILE
    from pilekit.evaluate.results.result_folder import check_out
    from pilekit.stats.plot import figure_format

    if plot is not None:
        figure_format(plot)
        check_target(plot, follow_links=True)
        _check_folder(Path(plot).parent)
    if out is not None and models:
        check_target(out / RESULT_FILE)
        _check_folder(out)
        check_out(out)


def _check_folder(folder: Path) -> None:
    """That files can be made in it, or it in the nearest folder above that is there."""
    there = Path(os.path.abspath(folder))  # noqa: PTH100 (links stay as they are)
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        raise PilekitError(f"{visible(str(there))}: is a file, where a folder is needed; name another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PilekitError(f"{visible(str(there))}: nothing can be written there; name another place")


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[Advance]:
    if _rank():
        yield lambda amount: None
        return
    with byte_progress(what, total) as advance:
        yield advance


def _silence_other_ranks() -> None:
    """Of the ranks of a job only the first warns; and it alone prints."""
    if _rank():
        logging.getLogger("pilekit").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")


@contextmanager
def _told_once() -> Iterator[None]:
    """What is wrong before the ranks have met all of them find; one of each machine tells it."""
    try:
        yield
    except (PilekitError, click.UsageError) as error:
        if _rank() and os.environ.get("LOCAL_RANK", "0") != "0":
            raise ToldElsewhere(str(error)) from error
        raise


def _rank() -> int:
    """This process's number among those of its job."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() and os.environ.get("WORLD_SIZE", "1") != "1" else 0
