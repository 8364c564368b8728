"""`pilekit bpb`: bits per byte of a model, or the difference of models, as a table, as JSON, as a figure.

Under torchrun every rank runs this, and only rank 0 prints.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilekit.cli.display.output import (
    print_fitted,
    rank,
    rank_progress,
    rank_score_progress,
    rank_waiting,
    report_once,
    say,
    terminal,
)
from pilekit.cli.options import (
    ByteSize,
    Described,
    adapter_option,
    corpus_argument,
    exact_subsets,
    folder,
    open_corpus,
    setting_options,
)
from pilekit.errors import PilekitError
from pilekit.evaluate.settings import BitsPerByteSettings

if TYPE_CHECKING:
    from pilekit.corpus import Corpus
    from pilekit.evaluate.results.compare import Comparison
    from pilekit.evaluate.results.result import BitsPerByte

_ALL_COLUMNS = 400
"""The width of a result's table without a terminal and without COLUMNS, as in a pipe."""


@click.command()
@click.argument("model_dir")
@corpus_argument
@adapter_option
@setting_options(
    BitsPerByteSettings,
    *("limit", "limit_bytes", "max_length", "context_len", "prefix", "paper", "train", "mlm_sample", "dtype"),
    *("batch_tokens", "device", "on_error", "out", "per_token"),
    limit={"metavar": "N"},
    limit_bytes={"type": ByteSize(), "metavar": "SIZE"},
    max_length={"metavar": "N"},
    context_len={"metavar": "K"},
    prefix={"metavar": "auto|bos|eos|none|ID"},
    train={"metavar": "PATH"},
    mlm_sample={"metavar": "K"},
    batch_tokens={"metavar": "N"},
    device={"metavar": "auto|cpu|cuda|cuda:N"},
    out={"type": folder, "metavar": "DIR"},
)
@click.option("--by", metavar="length|FILE:COLUMN", help="Rows by length, or by a column of a table of documents.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, the figures of result.json, instead of the table.")
@click.option("--plot", metavar="FILE", help="Draw the figures into a .png, .svg or .pdf file.")
@click.option("--compare", "comparing", is_flag=True, help="Compare results, given as --out folders or as models.")
def command(
    model_dir: str,
    paths: tuple[str, ...],
    subsets: str | None,
    manifest: Described,
    train: str | None,
    out: Path | None,
    as_json: bool,
    plot: str | None,
    by: str | None,
    comparing: bool,
    **rules: Any,
) -> None:
    """Score a model in bits per byte, for each subset and over all, with 95 % intervals.

    MODEL_DIR is a folder in Hugging Face's format: config.json, safetensors and tokenizer.json. Each document is scored
    alone, in windows as in lm-evaluation-harness. The divisor is the UTF-8 bytes of its raw text. If a corpus has val
    or test shards among others, only these are scored. A masked model gets pseudo-bits per byte.

    With --out every document is recorded as it is scored, and the same command resumes after an interruption. With
    --compare A B [C ...] [PATH ...] each further model is compared with A on the documents that all have scored. A, B
    and C are folders that --out wrote, or model folders, which are first scored on the PATHs.

    \b
    Example:
      pilekit bpb runs/small/model val.jsonl.zst --plot bpb.png
      pilekit bpb pythia-14m data/ --subsets ArXiv,GitHub --limit 100 --out scores/14m
      pilekit bpb runs/small/model val.jsonl.zst --train data/train
      pilekit bpb --compare scores/14m scores/70m --by facts.parquet:year
      pilekit bpb --compare scores/14m scores/70m --plot gain.png
      pilekit bpb --compare step-50/model step-200/model val.jsonl.zst
      torchrun --nproc-per-node 2 -m pilekit bpb pythia-14m val.jsonl.zst --out scores/14m
    """
    from pilekit.artifacts.atomic_write import check_target
    from pilekit.evaluate.results.result_folder import check_out
    from pilekit.models.folder import check_folder
    from pilekit.stats.plot import figure_format
    from pilekit.tokenize.tokenizer_file import tokenizer_file

    if rank():  # rank 0 alone prints and warns
        logging.getLogger("pilekit").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
    with report_once():
        if comparing and train is not None:
            raise click.UsageError("--train is about the documents of one result; give it without --compare.")
        if by is not None:
            from pilekit.evaluate.results.by_column import open_column

            if train is not None or rules["paper"]:
                raise click.UsageError("--train and --paper go by subset; leave out --by.")
            open_column(by)
        models, paths = _split_arguments([model_dir, *paths]) if comparing else ([model_dir], paths)
        to_score = [model for model in models if not (comparing and _is_result(model))]
        if rules["per_token"] and out is None:
            raise click.UsageError("--per-token writes beside the result; give --out DIR too.")
        if comparing and rules["adapter"] is not None:
            raise click.UsageError("--adapter is of one model: score it with --out, and compare that folder.")
        for model in to_score:
            check_folder(model, rules["adapter"])
            tokenizer_file(model)
        if out is not None and not comparing:
            check_out(out)
        if plot is not None:
            figure_format(plot)
            check_target(plot, follow_links=True)
        corpus = open_corpus(paths, manifest).only_held_out() if to_score else None
        rules["subsets"] = None if corpus is None else exact_subsets(subsets, corpus)
        if train is not None:
            from pilekit.shards.index.build import index_corpus

            rules["train"] = open_corpus([train], manifest).without_held_out()
            with rank_progress("indexing", rules["train"].size) as advance:
                index_corpus(rules["train"], on_error=rules["on_error"], advance=advance)
    if comparing:
        result: BitsPerByte | Comparison | None = _compare(models, to_score, corpus, rules, out, by)
    else:
        result = score_model(model_dir, corpus, rules, out, "scoring")
        with report_once():
            result = result if by is None else result.by(by)
    if result is not None and not rank():
        _show(result, as_json, plot, None if comparing else out)


def _compare(
    models: Sequence[str],
    to_score: Sequence[str],
    corpus: Corpus | None,
    rules: dict[str, Any],
    out: Path | None,
    by: str | None,
) -> Comparison | None:
    """Read the results, score the models, each into a folder of its own, A, B, ... in `out`, and compare."""
    from pilekit.evaluate.results.compare import LETTERS, check_kinds, compare
    from pilekit.evaluate.results.result_folder import read_result
    from pilekit.models.load import MASKED, kind_of

    with report_once():
        results = {model: read_result(model) for model in models if model not in to_score}
        kinds = {model: result.protocol["kind"] for model, result in results.items()}
        kinds |= {model: "masked" if kind_of(model) is MASKED else "causal" for model in to_score}
        check_kinds([kinds[model] for model in models])
    folders: list[Path | None] = [None if model in to_score else Path(model) for model in models]
    for place, (letter, model) in enumerate(zip(LETTERS, models, strict=False)):
        if model in to_score:
            folders[place] = None if out is None else out / letter
            results[model] = score_model(model, corpus, rules, folders[place], f"scoring {letter}")
            _say_written(folders[place])
    with report_once():
        shown = [results[model] if by is None else results[model].by(by) for model in models]
    return None if rank() else compare(shown, folders)


def score_model(
    model_dir: str, corpus: Corpus | None, rules: dict[str, Any], out: Path | None, activity: str
) -> BitsPerByte:
    """Score a model, and print its speed and the size of its weights on stderr."""
    with rank_waiting("loading torch"):
        from pilekit.evaluate.bits_per_byte import bits_per_byte
        from pilekit.models.load import MASKED, kind_of

    assert corpus is not None
    options = {name: value for name, value in rules.items() if value is not None}
    figure = "pseudo-bits per byte" if kind_of(model_dir) is MASKED else "bits per byte"
    with rank_score_progress(activity, None if rules.get("paper") else figure) as report:
        result = bits_per_byte(model_dir, corpus, out=out, report=report, **options)
    if result.cost is not None and not rank():
        from pilekit.display.fitted_table import rounded_bytes
        from pilekit.models.load import weight_files

        speed, weights = result.cost.tokens_per_second, rounded_bytes(result.cost.weight_bytes)
        stored = rounded_bytes(sum(file.stat().st_size for file in weight_files(model_dir)))
        size = f"{weights} of weights in memory, {stored} on disk"
        say(f"{model_dir}: {speed:,.0f} tokens/s, {size}", err=True)
    return result


def _show(result: BitsPerByte | Comparison, as_json: bool, plot: str | None, out: Path | None) -> None:
    """Print a result or a comparison, and draw it into the file `plot`."""
    from pilekit.evaluate.results.result import BitsPerByte
    from pilekit.evaluate.show.output import comparison_output, result_output
    from pilekit.evaluate.show.plot import write_figure

    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2, allow_nan=False))
    else:
        width = terminal(_ALL_COLUMNS if isinstance(result, BitsPerByte) else 80).width
        output = result_output(result, width) if isinstance(result, BitsPerByte) else comparison_output(result)
        print_fitted(output, width)
    _say_written(out)
    if plot is not None:
        write_figure(result, plot)
        say(f"drawn: {plot}", err=True)


def _say_written(out: Path | None) -> None:
    if out is not None and not rank():
        say(f"written: {out / 'result.json'}", err=True)


def _split_arguments(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """(models, paths) of --compare: the folders of models and results come first."""
    models = list(takewhile(lambda path: _is_result(path) or (Path(path) / "config.json").exists(), arguments))
    if len(models) < 2:
        raise PilekitError(
            f"{arguments[min(len(models), len(arguments) - 1)]}: --compare takes two or more folders, before any PATH: "
            "of results (with a result.json, from --out) or of models (with a config.json)"
        )
    return models, tuple(arguments[len(models) :])


def _is_result(path: str) -> bool:
    return any((Path(path) / name).exists() for name in ("result.json", "records"))
