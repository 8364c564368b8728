"""`pilekit generate`: a model's own text, which says more than its figures do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import orjson

from pilekit.cli.display.output import say
from pilekit.cli.options import Described, exact_subsets, manifest_option, open_corpus
from pilekit.display.progress import count_progress, waiting
from pilekit.errors import PilekitError, visible, visible_lines

_COUNT = click.IntRange(min=1)


@click.command()
@click.argument("model_dir")
@click.argument("prompts", nargs=-1, metavar="[PROMPT]...")
@click.option("--prompts", "file", type=click.Path(path_type=Path), metavar="FILE", help="Prompts, one to a line.")
@click.option("--data", metavar="PATH", help="Prompts from a corpus: the first tokens of documents.")
@click.option("--prompt-tokens", type=_COUNT, default=32, metavar="K", help="With --data: tokens of each prompt.")
@click.option("--per-subset", type=_COUNT, default=1, metavar="N", help="With --data: documents of each subset.")
@click.option("--subsets", metavar="NAMES", help="With --data: only these subsets, separated by commas.")
@manifest_option
@click.option("--max-new-tokens", type=_COUNT, default=64, metavar="N", help="The most tokens to add.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, help="0: the likeliest token; else draw.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="Draw among this probability.")
@click.option("--seed", type=int, default=0, help="Seed of the draws.")
@click.option("--dtype", type=click.Choice(["auto", "fp32", "bf16", "fp16"]), default="auto", help="Precision.")
@click.option("--device", default="auto", metavar="auto|cpu|cuda|cuda:N", help="Where to compute.")
@click.option("--out", type=click.Path(path_type=Path), metavar="X.jsonl", help="Write JSON lines to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def command(
    model_dir: str,
    prompts: tuple[str, ...],
    file: Path | None,
    data: str | None,
    prompt_tokens: int,
    per_subset: int,
    subsets: str | None,
    manifest: Described,
    out: Path | None,
    as_json: bool,
    **rules: Any,
) -> None:
    """Continue prompts with a model, by default with the likeliest token each time.

    The prompts are arguments, the lines of a file (--prompts), or the first tokens of documents (--data). A JSON line
    has prompt, text, model, tokens, ended, and the document that a prompt begins.

    \b
    Example:
      pilekit generate runs/small/model "The capital of France"
      pilekit generate runs/small/model --data data/val.jsonl.zst --per-subset 2
      pilekit generate runs/small/model --prompts prompts.txt --temperature 0.8 --top-p 0.95 --out samples.jsonl
    """
    if bool(prompts) + (file is not None) + (data is not None) != 1:
        raise click.UsageError("give prompts as arguments, a file of them (--prompts), or a corpus (--data).")
    from pilekit.artifacts.atomic_write import check_target, write_atomically
    from pilekit.models.folder import check_folder
    from pilekit.tokenize.tokenizer_file import tokenizer_file

    check_folder(model_dir)
    tokenizer_file(model_dir)
    if out is not None:
        check_target(out)
    to_continue: list[Any] = list(prompts) if file is None else _lines(file)
    if any(not prompt.isascii() and "\\ud" in ascii(prompt) for prompt in to_continue):
        raise PilekitError("a prompt is not UTF-8 text; give it in a file (--prompts)")
    corpus = None if data is None else open_corpus((data,), manifest)
    names = None if corpus is None else exact_subsets(subsets, corpus)
    with waiting("loading torch"):
        from pilekit.evaluate.generate import generate, prompts_of
    if corpus is not None:
        with waiting("looking for prompts"):
            to_continue = prompts_of(corpus, model_dir, tokens=prompt_tokens, per_subset=per_subset, subsets=names)
    with count_progress("generating") as reached:
        samples = generate(model_dir, to_continue, reached=reached, **rules)
    lines = [orjson.dumps(sample.to_dict(), option=orjson.OPT_APPEND_NEWLINE) for sample in samples]
    if out is not None:
        with write_atomically(out) as target:
            target.write(b"".join(lines))
        say(f"{len(lines):,} continuations: {out}", err=True)
    elif as_json:
        click.echo(b"".join(lines), nl=False)
    else:
        for number, sample in enumerate(samples):
            prompt = sample.prompt
            if prompt.shard is not None:
                click.secho(f"{visible(prompt.shard)} {prompt.number} {visible(prompt.subset or '')}", dim=True)
            click.echo(visible_lines(prompt.text) + click.style(visible_lines(sample.text), bold=True))
            if number + 1 < len(samples):
                click.echo()


def _lines(file: Path) -> list[str]:
    """The lines of a text file that are not empty."""
    try:
        lines = file.read_text("utf-8").split("\n")
    except OSError as error:
        raise PilekitError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PilekitError(f"{file}: is not UTF-8 text: byte {error.start:,}") from error
    prompts = [line.removesuffix("\r") for line in lines if line.strip()]
    if not prompts:
        raise PilekitError(f"{file}: has no prompt; write one to a line")
    return prompts
