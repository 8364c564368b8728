"""The training config: whatever is wrong is one clear line, whatever is right survives a round trip."""

from __future__ import annotations

import ast
import inspect
import math
import re
import tomllib
import unicodedata
from pathlib import Path
from typing import Any

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
    PrecisionConfig,
    ScheduleConfig,
    TrainConfig,
    TrainSection,
    check,
    differences,
    load_config,
    sections,
    to_toml,
)
from pilekit.train.presets import PRESETS

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


def test_what_is_not_said_has_its_default(good: Path) -> None:
    assert load_config(good) == TrainConfig(
        data=DataConfig(path="x.jsonl", tokenizer="tokenizer.json", seq_len=2048, packing="best_fit", seed=0),
        model=ModelConfig(preset="pythia-14m"),
        train=TrainSection(steps=50, global_batch_size=32, micro_batch_size=8, objective="clm", clip_norm=1.0, seed=0),
        optimizer=OptimizerConfig(lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1),
        schedule=ScheduleConfig(kind="cosine", warmup=0, min_lr=0.0),
        precision=PrecisionConfig(dtype="fp32"),
        checkpoint=CheckpointConfig(every=1000, keep_last=2, resume="auto"),
        log=LogConfig(every=1),
    )


def test_a_field_has_a_sentence() -> None:
    tree = ast.parse(inspect.getsource(sections))
    told = {}
    for struct in [node for node in tree.body if isinstance(node, ast.ClassDef)]:
        for field, after in zip(struct.body, [*struct.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                told[f"{struct.name}.{field.target.id}"] = after.value.value if is_text else ""  # type: ignore[union-attr]
    assert len(told) == 38
    assert [name for name, sentence in told.items() if not sentence.endswith(".")] == []


def test_another_model_with_set_takes_the_place_of_the_files(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[data]\ntokenizer = "t"\n[model]\npreset = "pythia-14m"\n[train]\nsteps = 100\n')
    assert load_config(file, ["model.path=a/model"]).model == ModelConfig(path="a/model")
    assert load_config(file, ["train.steps=200"]).model == ModelConfig(preset="pythia-14m")


# What is wrong in the file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[trian]\nsteps = 1", r': unknown section "trian": did you mean "train"\? There are data, model, train, '),
        ("[zzzzzz]", r': unknown section "zzzzzz": There are data, model, '),
        ("steps = 1", r': unknown section "steps": did you mean "train.steps"\? There are data, '),
        (
            "[train]\nstesp = 1",
            r': unknown key train.stesp: did you mean "steps"\? There are steps, global_batch_size, ',
        ),
        ("[train]\nSteps = 1", r': unknown key train.Steps: did you mean "steps"\?'),
        ("[train]\nlr = 1", r': unknown key train.lr: did you mean "optimizer.lr"\? There are steps, '),
        ('["\\u001b[31m"]', r': unknown section "\\x1b\[31m": There are '),
        ('[train]\n"\\u202e" = 1', r": unknown key train.\\u202e: There are "),
        ("train = 3", r": train = 3: it must be a section, which begins with \[train\]"),
        ("[[train]]\nsteps = 1", r": train = .*: it must be a section"),
        ("[train]", r": train.steps is missing"),
        ("", r": train.steps is missing"),
        ('[train]\nsteps = "50"', r': train.steps = "50": it must be a whole number'),
        ("[train]\nsteps = 50.0", r": train.steps = 50.0: it must be a whole number"),
        ("[train]\nsteps = true", r": train.steps = true: it must be a whole number"),
        ("[train]\nsteps = []", r": train.steps = \[\]: it must be a whole number"),
        ("[train.steps]", r": train.steps = {}: it must be a whole number"),
        ("[train]\nsteps = 2024-01-01", r": train.steps = datetime.*: it must be a whole number"),
        ('[optimizer]\nlr = "1e-3"', r': optimizer.lr = "1e-3": it must be a number'),
        ("[optimizer]\nlr = false", r": optimizer.lr = false: it must be a number"),
        ("[optimizer]\nlr = 1" + 400 * "0", r": optimizer.lr = a number of more than a hundred digits: it must be a "),
        ("[optimizer]\nbetas = 0.9", r": optimizer.betas = 0.9: it must be two numbers, such as \[0.9, 0.95\]"),
        ("[optimizer]\nbetas = [0.9]", r": optimizer.betas = \[0.9\]: it must be two numbers"),
        ("[optimizer]\nbetas = [0.9, 0.9, 0.9]", r": optimizer.betas = .*: it must be two numbers"),
        ('[optimizer]\nbetas = [0.9, "x"]', r': optimizer.betas = \[0.9, "x"\]: it must be two numbers'),
        ("[data]\npath = 3", r': data.path = 3: it must be text in quotes or a list of texts, such as \["a", "b"\]'),
        ('[data]\npath = ["a", 3]', r': data.path = \["a", 3\]: it must be text in quotes or a list of texts'),
        ('[data]\nsubsets = "ArXiv"', r': data.subsets = "ArXiv": it must be a list of texts'),
        ('[data]\npacking = "first_fit"', r': data.packing = "first_fit": it must be "best_fit" or "concat" or "none"'),
        ('[data]\nattention = "full"', r': data.attention = "full": it must be "document" or "causal"'),
        ('[train]\nobjective = "mlm"', r': train.objective = "mlm": it must be "clm"'),
        ('[schedule]\nkind = "linear"', r': schedule.kind = "linear": it must be "constant" or "cosine"'),
        ('[precision]\ndtype = "fp16"', r': precision.dtype = "fp16": it must be "fp32" or "bf16"'),
        ("[precision]\ndtype = 32", r': precision.dtype = 32: it must be "fp32" or "bf16"'),
        ("[checkpoint]\nresume = true", r': checkpoint.resume = true: it must be "auto" or "never"'),
        ("x = ", r", line 1: is not TOML: Invalid value"),
        ("[train]\n\nsteps 50", r", line 3: is not TOML: Expected '=' after a key"),
        ("[train]\nsteps = 1\nsteps = 2", r", line 3: is not TOML: Cannot overwrite a value"),
        ("[train]\nsteps = 1\n[train]\nseed = 1", r", line 3: is not TOML: Cannot declare"),
        ('[data]\npath = "x\n', r", line 2: is not TOML: "),
        ("a = " + 100_000 * "[", r": has a number of too many digits or too many brackets"),
        ("a = " + 5_000 * "9", r": has a number of too many digits or too many brackets"),
        ("#" * 2**21, r": is larger than 1,048,576 bytes"),
    ],
)
def test_a_wrong_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    assert re.match(re.escape(str(file)) + message, refusal(file))
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
        ],
    )
    assert changed == msgspec.structs.replace(
        load_config(good),
        data=DataConfig(path="00", tokenizer="2024-01-01", subsets=["ArXiv", "Github"]),
        model=ModelConfig(preset="pythia-70m"),
        train=TrainSection(steps=7, clip_norm=math.inf),
        optimizer=OptimizerConfig(lr=1.0, betas=(0.5, 0.0)),
        precision=PrecisionConfig(dtype="bf16"),
        log=LogConfig(every=3),
    )


def test_a_change_may_bring_what_the_file_lacks(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(GOOD.replace("steps = 50", ""))
    assert load_config(file, ["train.steps=3"]).train.steps == 3


def test_a_value_with_equals_signs_and_brackets_is_text(good: Path) -> None:
    for text in ("s3://x/a=b.jsonl", "[a", "x # y", '"', "a\nb"):
        assert load_config(good, [f"data.path={text}"]).data.path == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
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
        ("precision.dtype=fp16", '--set: precision.dtype = "fp16": it must be "fp32" or "bf16"'),
        ("data.subsets=ArXiv", '--set: data.subsets = "ArXiv": it must be a list of texts'),
    ],
)
def test_a_wrong_change(good: Path, change: str, message: str) -> None:
    assert refusal(good, change).startswith(message)
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.steps=0", "train.steps = 0: it must be at least 1"),
        ("train.steps=-1", "train.steps = -1: it must be at least 1"),
        ("train.steps=9007199254740993", "train.steps = 9007199254740993: it must be at most 9007199254740992 (2^53)"),
        ("train.global_batch_size=0", "train.global_batch_size = 0: it must be at least 1"),
        ("train.micro_batch_size=0", "train.micro_batch_size = 0: it must be at least 1"),
        ("train.micro_batch_size=-8", "train.micro_batch_size = -8: it must be at least 1"),
        (
            "train.micro_batch_size=12",
            "train.micro_batch_size = 12: it must divide train.global_batch_size = 32, as 4 does",
        ),
        (
            "train.micro_batch_size=64",
            "train.micro_batch_size = 64: it must divide train.global_batch_size = 32, as 32",
        ),
        (
            "train.global_batch_size=4",
            "train.micro_batch_size = 8: it must divide train.global_batch_size = 4, as 4 does",
        ),
        ("train.clip_norm=0", "train.clip_norm = 0.0: it must be above 0; inf clips nothing"),
        ("train.clip_norm=nan", "train.clip_norm = nan: it must be above 0"),
        ("train.clip_norm=-inf", "train.clip_norm = -inf: it must be above 0"),
        ("train.seed=-1", "train.seed = -1: it must be at least 0"),
        ("data.seed=-1", "data.seed = -1: it must be at least 0"),
        ("data.seq_len=1", "data.seq_len = 1: it must be 2 to 1048576"),
        ("data.path=", 'data.path = "": it must be text that is not empty'),
        ("data.path=[]", "data.path = []: it must name something; leave it out"),
        ('data.path=["a", ""]', 'data.path = ["a", ""]: it must be text that is not empty'),
        (
            'data.path="a\\u0000b"',
            r'data.path = "a\x00b": it must be text that is not empty, in UTF-8 and without null',
        ),
        ("data.path=\udc80", r'data.path = "\udc80": it must be text that is not empty, in UTF-8'),
        ("data.path=-", 'data.path = "-": it must be files'),
        ('data.path=["a", "-"]', 'data.path = ["a", "-"]: it must be files'),
        ("data.subsets=[]", "data.subsets = []: it must name something; leave it out"),
        ("data.tokenizer=", 'data.tokenizer = "": it must be text that is not empty'),
        ("data.manifest=", 'data.manifest = "": it must be text that is not empty'),
        (
            "model.preset=pythia-14",
            'model.preset = "pythia-14": did you mean "pythia-14m"? There are pythia-14m, pythia-31m',
        ),
        ("model.preset=gpt2", 'model.preset = "gpt2": There are pythia-14m, pythia-31m'),
        ("optimizer.lr=0", "optimizer.lr = 0.0: it must be above 0"),
        ("optimizer.lr=-1e-3", "optimizer.lr = -0.001: it must be above 0"),
        ("optimizer.lr=nan", "optimizer.lr = nan: it must be finite"),
        ("optimizer.lr=inf", "optimizer.lr = inf: it must be finite"),
        ("optimizer.lr=1e999", "optimizer.lr = inf: it must be finite"),
        ("optimizer.betas=[0.9, 1.0]", "optimizer.betas = [0.9, 1.0]: it must be two numbers from 0 to below 1"),
        ("optimizer.betas=[-0.1, 0.9]", "optimizer.betas = [-0.1, 0.9]: it must be two numbers from 0 to below 1"),
        ("optimizer.betas=[nan, 0.9]", "optimizer.betas = [nan, 0.9]: it must be finite"),
        ("optimizer.eps=0", "optimizer.eps = 0.0: it must be above 0"),
        ("optimizer.eps=inf", "optimizer.eps = inf: it must be finite"),
        ("optimizer.weight_decay=-0.1", "optimizer.weight_decay = -0.1: it must be at least 0"),
        ("optimizer.weight_decay=nan", "optimizer.weight_decay = nan: it must be finite"),
        ("schedule.warmup=-1", "schedule.warmup = -1: it must be at least 0"),
        ("schedule.warmup=51", "schedule.warmup = 51: it must be at most train.steps = 50"),
        ("schedule.min_lr=-1e-9", "schedule.min_lr = -1e-09: it must be at least 0"),
        ("schedule.min_lr=nan", "schedule.min_lr = nan: it must be finite"),
        ("schedule.min_lr=4e-4", "schedule.min_lr = 0.0004: it must be at most optimizer.lr = 0.0003"),
        ("checkpoint.every=0", "checkpoint.every = 0: it must be at least 1"),
        ("checkpoint.keep_last=0", "checkpoint.keep_last = 0: it must be at least 1"),
        ("log.every=0", "log.every = 0: it must be at least 1"),
    ],
)
def test_an_impossible_value(good: Path, change: str, message: str) -> None:
    assert refusal(good, change).startswith(f"{good} with --set: {message}")


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
    ("train", {"steps": 3}, "train = {'steps': 3}: it must be a TrainSection"),
    ("train", TrainSection(steps="3"), 'train.steps = "3": it must be a whole number'),  # type: ignore[arg-type]
    ("train", TrainSection(steps=True), "train.steps = true: it must be a whole number"),
    ("data", DataConfig(path=Path("x")), "data.path = PosixPath('x'): it must be text in quotes or a list"),  # type: ignore[arg-type]
    ("data", DataConfig(path=("x", "y")), 'data.path = ["x", "y"]: it must be a list'),  # type: ignore[arg-type]
    ("optimizer", OptimizerConfig(betas=[0.9, 0.95]), "optimizer.betas = [0.9, 0.95]: it must be a tuple"),  # type: ignore[arg-type]
    ("precision", PrecisionConfig(dtype="fp8"), 'precision.dtype = "fp8": it must be "fp32" or "bf16"'),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("section", "value", "message"), REPLACED)
def test_a_config_made_in_python_is_checked_too(good: Path, section: str, value: Any, message: str) -> None:
    config = load_config(good)
    check(config)
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
    steps = draw(POSITIVE)
    lr = draw(floats(0, above=True))
    return TrainConfig(
        data=DataConfig(
            path=draw(st.none() | TEXTS | SOME_TEXTS),
            manifest=draw(st.none() | TEXTS),
            tokenizer=draw(TEXTS if model != "path" else st.none() | TEXTS),
            seq_len=draw(st.integers(2, 2**20)),
            subsets=draw(st.none() | SOME_TEXTS),
            seed=draw(st.integers(min_value=0, max_value=2**53)),
            attention=draw(st.sampled_from(["document", "causal"])),
        ),
        model=ModelConfig(**{model: draw(st.sampled_from(sorted(PRESETS)) if model == "preset" else TEXTS)}),
        train=TrainSection(
            steps=steps,
            global_batch_size=micro_batch_size * draw(st.integers(min_value=1, max_value=1000)),
            micro_batch_size=micro_batch_size,
            clip_norm=draw(floats(0, above=True, infinite=True)),
            seed=draw(st.integers(min_value=0, max_value=2**53)),
        ),
        optimizer=OptimizerConfig(
            lr=lr, betas=(draw(FRACTION), draw(FRACTION)), eps=draw(floats(0, above=True)), weight_decay=draw(floats(0))
        ),
        schedule=ScheduleConfig(
            kind=draw(st.sampled_from(["constant", "cosine"])),
            warmup=draw(st.integers(min_value=0, max_value=steps)),
            min_lr=draw(st.floats(min_value=0, max_value=lr)),
        ),
        precision=PrecisionConfig(dtype=draw(st.sampled_from(["fp32", "bf16"]))),
        checkpoint=CheckpointConfig(
            every=draw(POSITIVE), keep_last=draw(POSITIVE), resume=draw(st.sampled_from(["auto", "never"]))
        ),
        log=LogConfig(every=draw(POSITIVE)),
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
    assert list(told) == ["data", "model", "train", "optimizer", "schedule", "precision", "checkpoint", "log"]
    assert list(told["data"]) == ["path", "tokenizer", "seq_len", "on_error", "packing", "seed", "attention"]
    assert list(told["model"]) == ["preset"]
    assert told["optimizer"] == {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}


def is_possible(config: TrainConfig) -> bool:
    """The rules for numbers, written down a second time."""
    train, optimizer, schedule, checkpoint = config.train, config.optimizer, config.schedule, config.checkpoint
    positive = [train.steps, train.global_batch_size, train.micro_batch_size, checkpoint.every, checkpoint.keep_last]
    positive += [config.log.every, config.data.seq_len - 1]
    return (
        min(positive) > 0
        and train.global_batch_size % train.micro_batch_size == 0
        and train.seed >= 0
        and config.data.seed >= 0
        and train.clip_norm > 0
        and 0 < optimizer.lr < math.inf
        and all(0 <= beta < 1 for beta in optimizer.betas)
        and 0 < optimizer.eps < math.inf
        and 0 <= optimizer.weight_decay < math.inf
        and 0 <= schedule.warmup <= train.steps
        and 0 <= schedule.min_lr <= optimizer.lr
    )


ODD_NUMBERS = st.sampled_from([-1.0, -0.0, 0.0, 1e-320, 1e-3, 0.5, 1.0, 2.0, math.inf, -math.inf, math.nan])
ODD = {
    int: st.integers(min_value=-2, max_value=40),
    float: ODD_NUMBERS,
    tuple[float, float]: st.tuples(ODD_NUMBERS, ODD_NUMBERS),
}
NUMERIC = [
    (section, field, hint)
    for section in sections.SECTIONS
    for field, hint in sections.fields(section).items()
    if hint in ODD
]


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
