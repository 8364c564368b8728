"""The training config: whatever is wrong is one clear line, whatever is right survives a round trip."""

from __future__ import annotations

import ast
import inspect
import math
import re
import tomllib
import unicodedata
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.train.config import (
    CheckpointConfig,
    DataConfig,
    LogConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    PrecisionConfig,
    ScheduleConfig,
    TrainConfig,
    TrainSection,
    check,
    check_world,
    differences,
    load_config,
    sections,
    to_toml,
    world_sizes,
)
from pilekit.train.model.presets import PRESETS

GOOD = """\
[data]
path = "x.jsonl"
tokenizer = "tokenizer.json"
[model]
preset = "pythia-14m"
[train]
steps = 50
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    file = tmp_path / "run.toml"
    file.write_text(GOOD)
    return file


def is_one_line(text: str) -> bool:
    return text.splitlines() == [text] and not any(unicodedata.category(character) == "Cc" for character in text)


def refusal(path: str | Path, *changes: str) -> str:
    """The one line with which the config is refused."""
    with pytest.raises(PilekitError) as raised:
        load_config(path, changes)
    line = str(raised.value)
    assert is_one_line(line), line
    return line


def test_a_field_has_a_sentence() -> None:
    tree = ast.parse(inspect.getsource(sections))
    told = {}
    for struct in [node for node in tree.body if isinstance(node, ast.ClassDef)]:
        for field, after in zip(struct.body, [*struct.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                told[f"{struct.name}.{field.target.id}"] = after.value.value if is_text else ""  # type: ignore[union-attr]
    assert len(told) == 65
    assert [name for name, sentence in told.items() if not sentence.endswith(".")] == []


def test_another_model_with_set_takes_the_place_of_the_files(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[data]\ntokenizer = "t"\n[model]\npreset = "pythia-14m"\n[train]\nsteps = 100\n')
    assert load_config(file, ["model.path=a/model"]).model == ModelConfig(path="a/model")
    assert load_config(file, ["train.steps=200"]).model == ModelConfig(preset="pythia-14m")


def test_tokens_with_set_take_the_place_of_the_files_steps_and_back(good: Path) -> None:
    by_tokens = load_config(good, ["train.tokens=1000"])
    assert (by_tokens.train.steps, by_tokens.train.tokens) == (None, 1000)
    good.write_text(GOOD.replace("steps = 50", "tokens = 1000"))
    assert load_config(good) == by_tokens
    assert load_config(good, ["train.steps=7"]).train == TrainSection(steps=7)


@given(tokens=st.integers(1, 10**9), rows=st.integers(1, 64), seq_len=st.integers(2, 512))
def test_steps_are_as_few_as_reach_the_tokens(tokens: int, rows: int, seq_len: int) -> None:
    config = TrainConfig(
        data=DataConfig(seq_len=seq_len),
        train=TrainSection(tokens=tokens, global_batch_size=rows, micro_batch_size=1),
    )
    assert (config.steps - 1) * rows * seq_len < tokens <= config.steps * rows * seq_len


# What is wrong in the file


WRONG_FILES = [
    ("[trian]\nsteps = 1", r': unknown section "trian": did you mean "train"\? There are data, model, train, '),
    ("[zzzzzz]", r': unknown section "zzzzzz": There are data, model, '),
    ("steps = 1", r': unknown section "steps": did you mean "train.steps"\? There are data, '),
    (
        "[train]\nstesp = 1",
        r': unknown key train.stesp: did you mean "steps"\? There are steps, tokens, global_batch_size, ',
    ),
    ("[train]\nSteps = 1", r': unknown key train.Steps: did you mean "steps"\?'),
    ("[train]\nlr = 1", r': unknown key train.lr: did you mean "optimizer.lr"\? There are steps, '),
    ('["\\u001b[31m"]', r': unknown section "\\x1b\[31m": There are '),
    ('[train]\n"\\u202e" = 1', r": unknown key train.\\u202e: There are "),
    ("train = 3", r": train = 3: it must be a section, which begins with \[train\]"),
    ("[[train]]\nsteps = 1", r": train = .*: it must be a section"),
    (
        '[model]\npreset = "pythia-14m"\n[data]\ntokenizer = "t"',
        r": train has neither steps nor tokens: give one, ",
    ),
    (
        '[model]\npreset = "pythia-14m"\n[data]\ntokenizer = "t"\n[train]\nsteps = 1\ntokens = 1',
        r": train has both steps and tokens: give one, the number of optimizer steps or of tokens in all",
    ),
    ("[train]", r": model has neither preset nor config nor path"),
    ('[train]\nsteps = "50"', r': train.steps = "50": it must be a whole number'),
    ("[train]\nsteps = 50.0", r": train.steps = 50.0: it must be a whole number"),
    ("[train]\nsteps = true", r": train.steps = true: it must be a whole number"),
    ("[train]\nsteps = []", r": train.steps = \[\]: it must be a whole number"),
    ("[train.steps]", r": train.steps = {}: it must be a whole number"),
    ("[train]\nsteps = 2024-01-01", r": train.steps = datetime.*: it must be a whole number"),
    ('[optimizer]\nlr = "1e-3"', r': optimizer.lr = "1e-3": it must be a number'),
    ("[optimizer]\nlr = false", r": optimizer.lr = false: it must be a number"),
    ("[optimizer]\nlr = 1" + 400 * "0", r": optimizer.lr = a number of more than a hundred digits: it must be a "),
    ("[optimizer]\nbetas = 0.9", r": optimizer.betas = 0.9: it must be two numbers from 0 to below 1"),
    ("[optimizer]\nbetas = [0.9]", r": optimizer.betas = \[0.9\]: it must be two numbers"),
    ("[optimizer]\nbetas = [0.9, 0.9, 0.9]", r": optimizer.betas = .*: it must be two numbers"),
    ('[optimizer]\nbetas = [0.9, "x"]', r': optimizer.betas = \[0.9, "x"\]: it must be two numbers'),
    ("[data]\npath = 3", r': data.path = 3: it must be a path in quotes .* or a list of paths, such as \["a"'),
    ('[data]\npath = ["a", 3]', r': data.path = \["a", 3\]: it must be a path in quotes'),
    ('[data]\nsubsets = "ArXiv"', r': data.subsets = "ArXiv": it must be a list of texts'),
    ('[data]\npacking = "first_fit"', r': data.packing = "first_fit": it must be "best_fit" or "concat" or "none"'),
    ('[data]\nattention = "full"', r': data.attention = "full": it must be "document" or "causal" or "row"'),
    ('[train]\nobjective = "rlm"', r': train.objective = "rlm": it must be "clm" or "mlm"'),
    (
        '[schedule]\nkind = "step"',
        r': schedule.kind = "step": it must be "constant" or "linear" or "cosine" or "polynomial" or ',
    ),
    ('[precision]\ndtype = "fp8"', r': precision.dtype = "fp8": it must be "fp32" or "bf16" or "fp16"'),
    ("[precision]\ndtype = 32", r': precision.dtype = 32: it must be "fp32" or "bf16" or "fp16"'),
    ("[checkpoint]\nresume = true", r": checkpoint.resume = true: it must be text in quotes"),
    ("[checkpoint]\nasynchronous = 1", r": checkpoint.asynchronous = 1: it must be true or false"),
    ("[parallel]\nzero = 4", r": parallel.zero = 4: it must be 0 or 1 or 2 or 3"),
    ("[parallel]\nzero = true", r": parallel.zero = true: it must be 0 or 1 or 2 or 3"),
    ('[parallel]\noffload = "yes"', r': parallel.offload = "yes": it must be true or false'),
    ("[log]\nprofile = 5", r": log.profile = 5: it must be two whole numbers of at least 1, such as "),
    ("[log]\nprofile = [5, 6, 7]", r": log.profile = \[5, 6, 7\]: it must be two whole numbers"),
    (
        '[data]\nlanes = "none"',
        r': data.lanes = "none": it must be two whole numbers .* \[8, 16\] or "auto"',
    ),
    (
        '[data]\nrepeats = ["ArXiv"]',
        r': data.repeats = \["ArXiv"\]: it must be a table of numbers of at least 0, such as {ArXiv = ',
    ),
    ('[data.repeats]\nArXiv = "2"', r': data.repeats = {"ArXiv" = "2"}: it must be a table of numbers'),
    ('[data.repeats]\n"\\u001b" = {}', r': data.repeats = {"\\x1b" = {}}: it must be a table of numbers'),
    ("[optimizer]\nlr_by_pattern = 1", r": optimizer.lr_by_pattern = 1: it must be a table of numbers"),
    ("x = ", r", line 1: is not TOML: Invalid value"),
    ("[train]\n\nsteps 50", r", line 3: is not TOML: Expected '=' after a key"),
    ("[train]\nsteps = 1\nsteps = 2", r", line 3: is not TOML: Cannot overwrite a value"),
    ("[train]\nsteps = 1\n[train]\nseed = 1", r", line 3: is not TOML: Cannot declare"),
    ('[data]\npath = "x\n', r", line 2: is not TOML: "),
    ("a = " + 100_000 * "[", r": has a number of too many digits or too many brackets"),
    ("a = " + 5_000 * "9", r": has a number of too many digits or too many brackets"),
    ("#" * 2**21, r": is larger than 1,048,576 bytes"),
]


def test_a_wrong_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    for text, message in WRONG_FILES:
        file.write_text(text)
        assert re.match(re.escape(str(file)) + message, line := refusal(file)), line
    assert sorted(tmp_path.iterdir()) == [file]


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(GOOD.encode() + b"# caf\xe9\n")
    assert refusal(file) == f"{file}, line 8: is not UTF-8; save it as UTF-8"
    file.write_bytes(b"\xff\xfe" + GOOD.encode("utf-16-le"))
    assert refusal(file) == f"{file}, line 1: is not UTF-8; save it as UTF-8"


def test_the_mark_that_some_editors_put_first_is_passed_over(good: Path, tmp_path: Path) -> None:
    file = tmp_path / "marked.toml"
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_config(file) == load_config(good)


def test_what_is_no_file(tmp_path: Path, good: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path}: is a folder; give the TOML file of a config"
    assert refusal(tmp_path / "no.toml") == f"{tmp_path}/no.toml: no such file; check the path"
    assert refusal(good / "x").startswith(f"{good}/x: cannot be read: ")
    assert refusal("/dev/zero").startswith("/dev/zero: is larger than ")
    assert refusal("a\0b").startswith(r"a\x00b: cannot be read: ")
    assert refusal("\x1b[31m\n").startswith(r"\x1b[31m\x0a: no such file")


@given(content=st.binary(max_size=40) | st.text(alphabet='[]=."#\n trainsep0', max_size=40).map(str.encode))
def test_any_file_is_a_config_or_one_line(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_bytes(content)
    assert refusal(file).startswith(str(file))  # none of these has all that a config needs


# --set


def test_changes(good: Path) -> None:
    changed = load_config(
        good,
        [
            "train.steps=7",
            " train.clip_norm = inf ",
            "data.path=00",  # no TOML, as numbers do not begin with 0
            "data.tokenizer=2024-01-01",  # TOML, but a date
            'data.subsets=["ArXiv", "Github"]',
            "model.preset=pythia-70m",
            "optimizer.betas=[0.5, 0]",
            "optimizer.lr=1",
            "precision.dtype='bf16'",
            "log.every=2",
            "log.every=3",  # the last one counts
            "log.profile=[3, 5]",
            "data.lanes=[8, 2]",
            "data.repeats={ArXiv = 2, 'Wikipedia (en)' = 0.5}",
            "optimizer.lr_by_pattern={'*.embed_in.*' = 1e-4}",
            "parallel.zero=3",
            "parallel.offload=true",
            "checkpoint.resume=runs/a/checkpoints/step-3",
        ],
    )
    assert changed == msgspec.structs.replace(
        load_config(good),
        data=DataConfig(
            path="00",
            tokenizer="2024-01-01",
            subsets=["ArXiv", "Github"],
            repeats={"ArXiv": 2.0, "Wikipedia (en)": 0.5},
            lanes=(8, 2),
        ),
        model=ModelConfig(preset="pythia-70m"),
        train=TrainSection(steps=7, clip_norm=math.inf),
        optimizer=OptimizerConfig(lr=1.0, betas=(0.5, 0.0), lr_by_pattern={"*.embed_in.*": 1e-4}),
        parallel=ParallelConfig(zero=3, offload=True),
        precision=PrecisionConfig(dtype="bf16"),
        checkpoint=CheckpointConfig(resume="runs/a/checkpoints/step-3"),
        log=LogConfig(every=3, profile=(3, 5)),
    )


def test_a_change_may_bring_what_the_file_lacks(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(GOOD.replace("steps = 50", ""))
    assert load_config(file, ["train.steps=3"]).train.steps == 3


def test_a_value_with_equals_signs_and_brackets_is_text(good: Path) -> None:
    for text in ("s3://x/a=b.jsonl", "[a", "x # y", '"', "a\nb"):
        assert load_config(good, [f"data.path={text}"]).data.path == text


WRONG_CHANGES = [
    ("train.steps", "--set: train.steps: it must be section.field=value, such as train.steps=50"),
    ("", "--set: : it must be section.field=value"),
    ("=", "--set: =: it must be section.field=value"),
    ("steps=5", "--set: steps=5: it must be section.field=value"),
    ("train.stesp=5", '--set: unknown key train.stesp: did you mean "steps"?'),
    ("train.lr=5", '--set: unknown key train.lr: did you mean "optimizer.lr"?'),
    ("trian.steps=5", '--set: unknown section "trian": did you mean "train"?'),
    ("train.steps.x=5", "--set: unknown key train.steps.x: "),
    ("\x1b.\x07=5", r'--set: unknown section "\x1b": There are '),
    ("train.steps=x", '--set: train.steps = "x": it must be a whole number'),
    ("train.steps=", '--set: train.steps = "": it must be a whole number'),
    ("train.steps=1.5", "--set: train.steps = 1.5: it must be a whole number"),
    ("train.steps=5\n[data]", r'--set: train.steps = "5\x0a[data]": it must be a whole number'),
    ("train.steps=5\nseed = 1", r'--set: train.steps = "5\x0aseed = 1": it must be a whole number'),
    ("train.steps=" + 5000 * "9", '--set: train.steps = "999'),
    ("train.steps=" + 50_000 * "[", '--set: train.steps = "[[['),
    ("precision.dtype=fp8", '--set: precision.dtype = "fp8": it must be "fp32" or "bf16" or "fp16"'),
    ("data.repeats.ArXiv=2", '--set: unknown key data.repeats.ArXiv: did you mean "repeats"?'),
    ("data.subsets=ArXiv", '--set: data.subsets = "ArXiv": it must be a list of texts'),
]


def test_a_wrong_change(good: Path) -> None:
    for change, message in WRONG_CHANGES:
        assert (line := refusal(good, change)).startswith(message), line
    assert load_config(good) == load_config(good, [])  # and the file is as it was


@given(change=st.text(max_size=30) | st.text(max_size=10).map(lambda text: f"train.steps={text}"))
@example(change="train.steps=5#")
def test_any_change_is_taken_or_refused_in_one_line(change: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "good.toml"
    file.write_text(GOOD)
    try:
        changed = load_config(file, [change])
    except PilekitError as error:
        assert is_one_line(str(error))
    else:
        assert changed.train.steps == int(change.partition("=")[2].partition("#")[0])


# Values that no run can have


IMPOSSIBLE = [
    ("train.steps=0", "train.steps = 0: it must be a whole number from 1 to 2^53"),
    ("train.steps=9007199254740993", "train.steps = 9007199254740993: it must be a whole number from 1 to 2^53"),
    ("train.seed=-1", "train.seed = -1: it must be a whole number from 0 to 2^53"),
    ("train.eval_every=-1", "train.eval_every = -1: it must be a whole number from 0 to 2^53"),
    ("data.seq_len=1", "data.seq_len = 1: it must be a whole number from 2 to 1048576"),
    ("train.clip_norm=nan", "train.clip_norm = nan: it must be a number above 0"),
    ("optimizer.lr=-1e-3", "optimizer.lr = -0.001: it must be a number above 0"),
    ("optimizer.lr=1e999", "optimizer.lr = inf: it must be finite"),
    ("optimizer.weight_decay=nan", "optimizer.weight_decay = nan: it must be a number of at least 0"),
    ("optimizer.weight_decay=inf", "optimizer.weight_decay = inf: it must be finite"),
    ("optimizer.betas=[0.9, 1.0]", "optimizer.betas = [0.9, 1.0]: it must be two numbers from 0 to below 1"),
    ("optimizer.betas=[nan, 0.9]", "optimizer.betas = [nan, 0.9]: it must be two numbers from 0 to below 1"),
    ("optimizer.layer_decay=1.1", "optimizer.layer_decay = 1.1: it must be a number above 0 and at most 1"),
    ("optimizer.lr_by_pattern={'*' = nan}", 'optimizer.lr_by_pattern = {"*" = nan}: it must be a table of numbers'),
    ("data.repeats={ArXiv = -1}", 'data.repeats = {"ArXiv" = -1}: it must be a table of numbers of at least 0'),
    ("data.repeats={ArXiv = inf}", 'data.repeats = {"ArXiv" = inf}: it must be finite'),
    ("data.repeats={}", "data.repeats = {}: it must be a table of numbers"),
    ('data.repeats={"" = 1}', 'data.repeats = {"" = 1}: it must be a table of numbers'),
    ("data.tokenizer=", 'data.tokenizer = "": it must be text in quotes, and not empty'),
    ("data.subsets=[]", "data.subsets = []: it must be a list of texts"),
    ('data.subsets=[""]', 'data.subsets = [""]: it must be a list of texts'),
    *(
        (f"data.path={given}", f'data.path = {told}: it must be a path in quotes (not "-") or a list of paths')
        for given, told in (
            ("", '""'),
            ("[]", "[]"),
            ('["a", ""]', '["a", ""]'),
            ('"a\\u0000b"', r'"a\x00b"'),
            ("\udc80", r'"\udc80"'),
            ("-", '"-"'),
            ('["a", "-"]', '["a", "-"]'),
        )
    ),
    ("train.eval_path=-", 'train.eval_path = "-": it must be a path'),
    ("data.lanes=[0, 4]", "data.lanes = [0, 4]: it must be two whole numbers of at least 1"),
    ("data.lanes=[24, 4]", "data.lanes = [24, 4]: its rows must divide train.global_batch_size = 32, as 8 do"),
    ("train.micro_batch_size=12", "train.micro_batch_size = 12: it must divide train.global_batch_size = 32, as 4"),
    ("train.global_batch_size=4", "train.micro_batch_size = 8: it must divide train.global_batch_size = 4, as 4 do"),
    ("model.preset=pythia-14", 'model.preset = "pythia-14": did you mean "pythia-14m"? There are pythia-14m, pyth'),
    ("model.preset=gpt2", 'model.preset = "gpt2": There are pythia-14m, pythia-31m'),
    ("schedule.warmup=51", "schedule.warmup = 51: it must be at most train.steps = 50"),
    ("schedule.min_lr=4e-4", "schedule.min_lr = 0.0004: it must be at most optimizer.lr = 0.0003"),
    ("schedule.kind=exponential", 'schedule.min_lr = 0.0: it must be above 0, which "exponential" never reaches; such'),
    ("log.profile=[0, 3]", "log.profile = [0, 3]: it must be two whole numbers of at least 1"),
    ("log.profile=[4, 3]", "log.profile = [4, 3]: it must be the first step and the last, not before it"),
    ("log.profile=[3, 51]", "log.profile = [3, 51]: it must end by train.steps = 50"),
    ("parallel.offload=true", "parallel.offload = true: it needs parallel.zero = 1, 2 or 3"),
    ("precision.loss_scale=0.5", "precision.loss_scale = 0.5: it must be at least precision.loss_scale_floor = 1.0"),
]


def test_an_impossible_value(good: Path) -> None:
    for change, message in IMPOSSIBLE:
        assert f": {message}" in (line := refusal(good, change)), line


def test_what_follows_from_tokens_is_told_as_such(good: Path) -> None:
    few = ("train.tokens=200000", "schedule.warmup=5")  # 4 steps of 32 rows of 2,048 tokens
    assert refusal(good, *few).endswith(
        "schedule.warmup = 5: it must be at most 4, the steps that train.tokens = 200000 make"
    )


def test_a_warmup_leaves_room_for_the_decay(good: Path) -> None:
    wsd = ("schedule.kind=wsd", "schedule.decay_share=0.1")
    load_config(good, [*wsd, "schedule.warmup=45"])
    assert refusal(good, *wsd, "schedule.warmup=46").endswith(
        "schedule.warmup = 46: it must be at most 45, as the last 5 of 50 steps go down (schedule.decay_share = 0.1)"
    )


def test_values_at_the_edge_of_what_is_possible(good: Path) -> None:
    for change in (
        "train.steps=1",
        "train.steps=9007199254740992",
        "train.micro_batch_size=32",
        "train.clip_norm=inf",
        "data.seq_len=2",
        "optimizer.betas=[0, 0.9999]",
        "optimizer.weight_decay=0",
        "schedule.warmup=50",
        "schedule.min_lr=3e-4",
        "log.profile=[50, 50]",
        "data.lanes=[32, 1]",
        "optimizer.layer_decay=1",
        "schedule.decay_share=1",
        "precision.loss_scale=1",
        "data.path=東京 läuft.jsonl",
    ):
        load_config(good, [change])


def test_the_model_is_given_once(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    for given_fields, message in (
        ([], "model has neither preset nor config nor path"),
        (["preset", "config"], "model has preset and config"),
        (["config", "path"], "model has config and path"),
        (["preset", "config", "path"], "model has preset and config and path"),
    ):
        file.write_text(
            '[data]\ntokenizer = "t"\n[train]\nsteps = 1\n[model]\n'
            + "".join(f'{field} = "pythia-14m"\n' for field in given_fields)
        )
        assert refusal(file).startswith(f"{file}: {message}: give exactly one of the three")


def test_a_tokenizer_is_given_or_comes_with_the_model(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    for field, value in (("preset", "pythia-14m"), ("config", "config.json")):
        file.write_text(f'[train]\nsteps = 1\n[model]\n{field} = "{value}"\n')
        assert refusal(file).startswith(f"{file}: data.tokenizer is missing: ")
    file.write_text('[train]\nsteps = 1\n[model]\npath = "model"\n')
    assert load_config(file).data.tokenizer is None


REPLACED: list[tuple[str, Any, str]] = [
    ("train", None, "train = (not given): it must be a TrainSection"),
    ("train", {"steps": 3}, 'train = {"steps" = 3}: it must be a TrainSection'),
    ("train", TrainSection(steps="3"), 'train.steps = "3": it must be a whole number'),  # type: ignore[arg-type]
    ("train", TrainSection(steps=True), "train.steps = true: it must be a whole number"),
    ("data", DataConfig(path=Path("x")), "data.path = PosixPath('x'): it must be a path in quotes"),  # type: ignore[arg-type]
    ("data", DataConfig(path=("x", "y")), 'data.path = ["x", "y"]: it must be a list'),  # type: ignore[arg-type]
    ("optimizer", OptimizerConfig(betas=[0.9, 0.95]), "optimizer.betas = [0.9, 0.95]: it must be a tuple"),  # type: ignore[arg-type]
    ("precision", PrecisionConfig(dtype="fp8"), 'precision.dtype = "fp8": it must be "fp32" or "bf16" or '),  # type: ignore[arg-type]
    ("parallel", ParallelConfig(zero=4), "parallel.zero = 4: it must be 0 or 1 or 2 or 3"),  # type: ignore[arg-type]
    ("data", DataConfig(lanes=[32, 4]), "data.lanes = [32, 4]: it must be a tuple"),  # type: ignore[arg-type]
    ("data", DataConfig(repeats={3: 1.0}), 'data.repeats = {"3" = 1.0}: it must be a table of numbers'),  # type: ignore[dict-item]
]


def test_a_config_made_in_python_is_checked_too(good: Path) -> None:
    config = load_config(good)
    check(config)
    for section, value, message in REPLACED:
        with pytest.raises(PilekitError) as raised:
            check(msgspec.structs.replace(config, **{section: value}))
        assert str(raised.value).startswith(message)


def test_a_config_cannot_be_changed_nor_made_with_unknown_fields() -> None:
    with pytest.raises(AttributeError):
        TrainSection(steps=3).steps = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        TrainSection(steps=3, stesp=4)  # type: ignore[call-arg]


# Any config: the round trip, and the rules once more

TEXTS = st.text(min_size=1, max_size=8).filter(lambda text: "\0" not in text and text != "-")
SOME_TEXTS = st.lists(TEXTS, min_size=1, max_size=3)
POSITIVE = st.integers(min_value=1, max_value=2**20)
FRACTION = st.floats(min_value=0, max_value=1, exclude_max=True)


def floats(lowest: float, *, above: bool = False, infinite: bool = False) -> st.SearchStrategy[float]:
    return st.floats(min_value=lowest, exclude_min=above, allow_nan=False, allow_infinity=infinite)


@st.composite
def possible_configs(draw: st.DrawFn) -> TrainConfig:
    model = draw(st.sampled_from(["preset", "config", "path"]))
    micro_batch_size = draw(st.integers(min_value=1, max_value=1000))
    rows = micro_batch_size * draw(st.integers(min_value=1, max_value=1000))
    seq_len = draw(st.integers(2, 2**20))
    tokens = draw(st.none() | st.integers(1, 2**53))
    steps = draw(POSITIVE) if tokens is None else math.ceil(Fraction(tokens, rows * seq_len))
    lanes: st.SearchStrategy[Any] = st.just("auto") | st.tuples(st.just(micro_batch_size), POSITIVE)
    kind: Any = draw(st.sampled_from(["constant", "linear", "cosine", "polynomial", "exponential", "wsd"]))
    share = 1 - draw(FRACTION)
    lr = draw(floats(0, above=True))
    return TrainConfig(
        data=DataConfig(
            path=draw(st.none() | TEXTS | SOME_TEXTS),
            manifest=draw(st.none() | TEXTS),
            tokenizer=draw(TEXTS if model != "path" else st.none() | TEXTS),
            seq_len=seq_len,
            subsets=draw(st.none() | SOME_TEXTS),
            repeats=draw(st.none() | st.dictionaries(TEXTS, floats(0), min_size=1, max_size=3)),
            dedup=draw(st.none() | TEXTS),
            window=draw(POSITIVE),
            workers=draw(st.integers(0, 16)),
            lanes=draw(lanes),
            seed=draw(st.integers(min_value=0, max_value=2**53)),
            attention=draw(st.sampled_from(["document", "causal"])),
        ),
        model=ModelConfig(**{model: draw(st.sampled_from(sorted(PRESETS)) if model == "preset" else TEXTS)}),
        train=TrainSection(
            steps=steps if tokens is None else None,
            tokens=tokens,
            global_batch_size=rows,
            micro_batch_size=micro_batch_size,
            clip_norm=draw(floats(0, above=True, infinite=True)),
            seed=draw(st.integers(min_value=0, max_value=2**53)),
            eval_every=draw(st.integers(min_value=0, max_value=100)),
            eval_path=draw(st.none() | TEXTS | SOME_TEXTS),
            eval_limit=draw(st.none() | POSITIVE),
        ),
        optimizer=OptimizerConfig(
            lr=lr,
            betas=(draw(FRACTION), draw(FRACTION)),
            eps=draw(floats(0, above=True)),
            weight_decay=draw(floats(0)),
            layer_decay=1 - draw(FRACTION),
            lr_by_pattern=draw(st.none() | st.dictionaries(TEXTS, floats(0), min_size=1, max_size=3)),
        ),
        schedule=ScheduleConfig(
            kind=kind,
            warmup=draw(st.integers(0, steps if kind != "wsd" else steps - max(1, round(steps * share)))),
            min_lr=draw(st.floats(min_value=0, max_value=lr, exclude_min=kind == "exponential")),
            power=draw(floats(0, above=True)),
            decay_share=share,
        ),
        parallel=ParallelConfig(
            zero=draw(st.sampled_from([1, 2, 3])),
            offload=draw(st.booleans()),
            activation_checkpoint=draw(st.sampled_from(["none", "full", "selective"])),
            compile=draw(st.booleans()),
        ),
        precision=PrecisionConfig(
            dtype=draw(st.sampled_from(["fp32", "bf16", "fp16"])),
            loss_scale=draw(floats(1)),
            loss_scale_window=draw(POSITIVE),
            loss_scale_hysteresis=draw(POSITIVE),
            loss_scale_floor=1.0,
        ),
        checkpoint=CheckpointConfig(
            dir=draw(st.none() | TEXTS),
            every=draw(POSITIVE),
            keep_last=draw(POSITIVE),
            asynchronous=draw(st.booleans()),
            resume=draw(st.sampled_from(["auto", "never", "runs/a/checkpoints/step-3"])),
        ),
        log=LogConfig(
            every=draw(POSITIVE), tensorboard=draw(st.booleans()), profile=draw(st.none() | st.just((1, steps)))
        ),
    )


@given(config=possible_configs())
def test_what_is_written_loads_again_to_an_equal_config(
    config: TrainConfig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check(config)
    file = tmp_path_factory.getbasetemp() / "resolved.toml"
    file.write_bytes(to_toml(config).encode())
    again = load_config(file)
    assert again == config
    assert differences(config, again) == []
    assert to_toml(again) == to_toml(config)


def test_what_is_written_has_every_field_that_has_a_value(good: Path) -> None:
    told = tomllib.loads(to_toml(load_config(good)))
    assert list(told) == list(TrainConfig.__struct_fields__)
    assert list(told["data"]) == [
        *("path", "tokenizer", "seq_len", "on_error", "packing", "window", "lanes", "seed", "workers", "attention")
    ]
    assert list(told["model"]) == ["preset"]
    assert told["optimizer"] == {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "layer_decay": 1.0}
    assert told["checkpoint"] == {"every": 1000, "keep_last": 2, "asynchronous": True, "resume": "auto"}


def is_possible(config: TrainConfig) -> bool:
    """The rules for numbers, written down a second time."""
    data, train, optimizer, schedule = config.data, config.train, config.optimizer, config.schedule
    precision, checkpoint, log = config.precision, config.checkpoint, config.log
    if (train.steps is None) is (train.tokens is None):
        return False
    positive = [train.global_batch_size, train.micro_batch_size, checkpoint.every, checkpoint.keep_last]
    positive += [log.every, data.seq_len - 1, data.window, precision.loss_scale_window, precision.loss_scale_hysteresis]
    positive += [number for number in (train.steps, train.tokens, train.eval_limit) if number is not None]
    if min(positive) <= 0:
        return False
    if train.tokens is None:
        steps = train.steps or 0
    else:
        steps = math.ceil(Fraction(train.tokens, train.global_batch_size * data.seq_len))
    return (
        train.global_batch_size % train.micro_batch_size == 0
        and (data.lanes == "auto" or (min(data.lanes) > 0 and train.global_batch_size % data.lanes[0] == 0))
        and train.seed >= 0
        and data.seed >= 0
        and data.workers >= 0
        and train.eval_every >= 0
        and train.clip_norm > 0
        and 0 < optimizer.lr < math.inf
        and all(0 <= beta < 1 for beta in optimizer.betas)
        and 0 < optimizer.eps < math.inf
        and 0 <= optimizer.weight_decay < math.inf
        and 0 < optimizer.layer_decay <= 1
        and all(0 <= rate < math.inf for rate in (optimizer.lr_by_pattern or {}).values())
        and all(0 <= factor < math.inf for factor in (data.repeats or {}).values())
        and 0 <= schedule.warmup <= steps
        and 0 <= schedule.min_lr <= optimizer.lr
        and (schedule.min_lr > 0 or schedule.kind != "exponential")
        and 0 < schedule.power < math.inf
        and 0 < schedule.decay_share <= 1
        and (schedule.kind != "wsd" or schedule.warmup <= steps - max(1, round(steps * schedule.decay_share)))
        and (config.parallel.zero > 0 or not config.parallel.offload)
        and 0 < precision.loss_scale_floor <= precision.loss_scale < math.inf
        and (log.profile is None or 1 <= log.profile[0] <= log.profile[1] <= steps)
    )


ODD_NUMBERS = st.sampled_from([-1.0, -0.0, 0.0, 1e-320, 1e-3, 0.5, 1.0, 2.0, math.inf, -math.inf, math.nan])
SMALL = st.integers(min_value=-2, max_value=40)
ODD: dict[Any, st.SearchStrategy[Any]] = {
    **dict.fromkeys((sections.Count, sections.FromZero, sections.RowLength), SMALL),
    **dict.fromkeys((sections.Positive, sections.NotNegative, sections.Share), ODD_NUMBERS),
    sections.Count | None: st.none() | SMALL,
    bool: st.booleans(),
    Literal[0, 1, 2, 3]: st.sampled_from([0, 1, 2, 3]),
    sections.Betas: st.tuples(ODD_NUMBERS, ODD_NUMBERS),
    sections.Pair | None: st.none() | st.tuples(SMALL, SMALL),
    sections.Pair | Literal["auto"]: st.just("auto") | st.tuples(SMALL, SMALL),
    sections.Numbers | None: st.none() | st.dictionaries(st.just("x"), ODD_NUMBERS, min_size=1),
}
NUMERIC = [
    (section, field, hint)
    for section in sections.SECTIONS
    for field, hint in sections.fields(section).items()
    if hint in ODD
]
assert len(NUMERIC) == 37


@given(config=possible_configs(), data=st.data())
def test_a_config_passes_exactly_if_its_numbers_are_possible(config: TrainConfig, data: st.DataObject) -> None:
    for section, field, hint in data.draw(st.lists(st.sampled_from(NUMERIC), min_size=1, max_size=3)):
        changed = msgspec.structs.replace(getattr(config, section), **{field: data.draw(ODD[hint])})
        config = msgspec.structs.replace(config, **{section: changed})
    try:
        check(config)
    except PilekitError as error:
        assert not is_possible(config)
        assert is_one_line(str(error))
    else:
        assert is_possible(config)


def test_differences_name_field_and_both_values(good: Path) -> None:
    old = load_config(good)
    new = load_config(good, ["train.steps=60", 'data.path=["a"]', "optimizer.betas=[0.5, 0.5]", "log.every=1"])
    assert differences(old, new) == [
        ("data.path", "x.jsonl", ["a"]),
        ("train.steps", 50, 60),
        ("optimizer.betas", (0.9, 0.95), (0.5, 0.5)),
    ]
    assert differences(old, old) == []


# What depends on the number of ranks


def test_ranks_that_cannot_share_a_step(good: Path) -> None:
    config = load_config(good)
    for ranks, message in (
        (
            3,
            "train.global_batch_size = 32: 3 ranks cannot share it; give a multiple of 3, such as 33, or run "
            "1, 2 or 4 ranks",
        ),
        (8, "train.micro_batch_size = 8: it must divide the 4 rows of each of 8 ranks, as 4 does"),
        (64, "train.global_batch_size = 32: 64 ranks cannot share it; give a multiple of 64, such as 64, or run"),
    ):
        with pytest.raises(PilekitError) as raised:
            check_world(config, ranks)
        assert str(raised.value).startswith(message)
        assert is_one_line(str(raised.value))
    with pytest.raises(PilekitError) as raised:
        check_world(load_config(good, ["data.lanes=[2, 4]"]), 4)
    assert (
        str(raised.value)
        == "data.lanes = [2, 4]: 4 ranks cannot share 2 rows of lanes; run 1 or 2 ranks, or give a multiple of 4"
    )


@given(
    parts=st.integers(1, 60),
    micro_batch_size=st.integers(1, 6),
    lane_rows=st.none() | st.integers(1, 60),
    ranks=st.integers(1, 70),
)
def test_ranks_pass_if_each_gets_whole_micro_batches_and_rows_of_lanes(
    parts: int, micro_batch_size: int, lane_rows: int | None, ranks: int
) -> None:
    rows = parts * micro_batch_size
    config = TrainConfig(
        data=DataConfig(lanes="auto" if lane_rows is None else (lane_rows, 4)),
        train=TrainSection(steps=1, global_batch_size=rows, micro_batch_size=micro_batch_size),
    )
    possible = rows % ranks == 0 and (rows // ranks) % micro_batch_size == 0 and (lane_rows or ranks) % ranks == 0
    assert (ranks in world_sizes(config)) is possible
    if possible:
        check_world(config, ranks)
    else:
        with pytest.raises(PilekitError):
            check_world(config, ranks)
