"""The training config: every wrong one is refused in one clear line, and every right one survives a round trip."""

from __future__ import annotations

import ast
import inspect
import math
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
    ParallelConfig,
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
    """The one line with which the config is refused, without the name of the file."""
    with pytest.raises(PilekitError) as raised:
        load_config(path, changes)
    assert is_one_line(str(raised.value)), raised.value
    return str(raised.value).removeprefix(str(path))


def test_every_field_has_a_sentence() -> None:
    tree = ast.parse(inspect.getsource(sections))
    sentences = {}
    for struct in [node for node in tree.body if isinstance(node, ast.ClassDef)]:
        for field, after in zip(struct.body, [*struct.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                sentences[f"{struct.name}.{field.target.id}"] = after.value.value if is_text else ""  # type: ignore[union-attr]
    assert len(sentences) == 65
    assert [name for name, sentence in sentences.items() if not sentence.endswith(".")] == []


# Files and --set


def test_wrong_files(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    for text, message in (
        ("[trian]\nsteps = 1", ': unknown section "trian": did you mean "train"? There are data, model, train, '),
        ("steps = 1", ': unknown section "steps": did you mean "train.steps"?'),
        ("[train]\nSteps = 1", ': unknown key train.Steps: did you mean "steps"? There are steps, tokens, '),
        ("[train]\nlr = 1", ': unknown key train.lr: did you mean "optimizer.lr"?'),
        ('["\\u001b[31m"]', r': unknown section "\x1b[31m": There are '),
        ("train = 3", ": train must be a section, which begins with [train]"),
        ("[train]", ": model has neither preset nor config nor path"),
        (GOOD.replace("steps = 50", ""), ": train has neither steps nor tokens: give one, "),
        (GOOD + "tokens = 1", ": train has both steps and tokens: give one"),
        (GOOD.replace('tokenizer = "tokenizer.json"', ""), ": data.tokenizer is missing: "),
        (GOOD.replace("preset", 'path = "a"\npreset'), ": model has preset and path: give exactly one of the three"),
        ('[train]\nsteps = "50"', ': train.steps = "50": Expected `int'),
        ("[train]\nsteps = 50.0", ": train.steps = 50.0: Expected `int"),
        ("[train]\nsteps = true", ": train.steps = true: Expected `int"),
        ("[train]\nsteps = 2024-01-01", ': train.steps = "2024-01-01": Expected `int'),
        ("[optimizer]\nlr = 1" + 400 * "0", ": optimizer.lr = 1000"),
        ("[optimizer]\nlr = 0x1" + 9000 * "0", ": optimizer.lr = (too many digits): "),
        ("[optimizer]\nbetas = [0.9]", ": optimizer.betas = [0.9]: Expected `array` of length 2"),
        ('[data]\npath = ["a", 3]', ': data.path = ["a", 3]: Expected `str`'),
        ('[data]\npacking = "first_fit"', ': data.packing = "first_fit": must be "best_fit" or "concat" or "none"'),
        ('[data]\nlanes = "none"', ': data.lanes = "none": must be "auto"'),
        ("[parallel]\nzero = 4", ": parallel.zero = 4: must be 0 or 1 or 2 or 3"),
        ('[data.repeats]\n"\\u001b" = {}', r': data.repeats = {"\u001b": {}}: Expected `float`'),
        ("[train]\n\nsteps 50", ": is not TOML: Expected '=' after a key in a key/value pair (at line 3, "),
        ("[train]\nsteps = 1\nsteps = 2\n", ": is not TOML: Cannot overwrite a value (at line 3, "),
        ("a = " + 100_000 * "[", ": is not TOML: "),
        ("a = " + 5_000 * "9", ": is not TOML: "),
        ("#" * 2**21, ": is larger than 1,048,576 bytes"),
    ):
        file.write_text(text)
        assert (line := refusal(file)).startswith(message), line
    file.write_bytes(GOOD.encode() + b"# caf\xe9\n")
    assert refusal(file) == ": line 8 is not UTF-8; save the file as UTF-8"
    assert sorted(tmp_path.iterdir()) == [file]


def test_paths_that_are_not_files(tmp_path: Path, good: Path) -> None:
    for path in (tmp_path, tmp_path / "no.toml", good / "x"):
        assert refusal(path).startswith(": cannot be read (")
    assert refusal("/dev/zero").startswith(": is larger than ")
    assert refusal("a\0b").startswith(r"a\x00b: cannot be read (")


def test_a_byte_order_mark_and_windows_line_ends_are_ignored(good: Path, tmp_path: Path) -> None:
    file = tmp_path / "marked.toml"
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_config(file) == load_config(good)


@given(content=st.binary(max_size=40) | st.text(alphabet='[]=."#\n trainsep0', max_size=40).map(str.encode))
def test_any_other_file_is_refused_in_one_line(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_bytes(content)
    assert refusal(file).startswith(":")


def test_changes(good: Path) -> None:
    changed = load_config(
        good,
        [
            "train.steps=7",
            " train.clip_norm = inf ",
            "data.path=00",  # not TOML, because numbers do not begin with 0
            "data.tokenizer=2024-01-01",  # TOML, but a date
            'data.subsets=["ArXiv", "Github"]',
            "model.path=a/model",  # replaces the file's preset
            "optimizer.betas=[0.5, 0]",
            "optimizer.lr=1",
            "precision.dtype='bf16'",
            "log.every=2",
            "log.every=3",  # the last change counts
            "data.lanes=[8, 2]",
            "data.repeats={ArXiv = 2, 'Wikipedia (en)' = 0.5}",
            "parallel.zero=3",
            "parallel.offload=true",
        ],
    )
    assert changed == TrainConfig(
        data=DataConfig(
            path="00",
            tokenizer="2024-01-01",
            subsets=["ArXiv", "Github"],
            repeats={"ArXiv": 2.0, "Wikipedia (en)": 0.5},
            lanes=(8, 2),
        ),
        model=ModelConfig(path="a/model"),
        train=TrainSection(steps=7, clip_norm=math.inf),
        optimizer=OptimizerConfig(lr=1.0, betas=(0.5, 0.0)),
        parallel=ParallelConfig(zero=3, offload=True),
        precision=PrecisionConfig(dtype="bf16"),
        log=LogConfig(every=3),
    )
    for text in ("s3://x/a=b.jsonl", "[a", "x # y", '"', "a\nb", "東京 läuft.jsonl"):
        assert load_config(good, [f"data.path={text}"]).data.path == text


def test_changed_tokens_replace_steps_and_back(good: Path) -> None:
    by_tokens = load_config(good, ["train.tokens=1000"])
    assert (by_tokens.train.steps, by_tokens.train.tokens) == (None, 1000)
    good.write_text(GOOD.replace("steps = 50", "tokens = 1000"))
    assert load_config(good) == by_tokens
    assert load_config(good, ["train.steps=7"]).train == TrainSection(steps=7)


def test_wrong_changes(good: Path) -> None:
    for change, message in (
        ("train.steps", "train.steps: must be section.field=value, such as train.steps=50"),
        ("=", "=: must be section.field=value"),
        ("steps=5", "steps=5: must be section.field=value"),
        ("train.stesp=5", 'unknown key train.stesp: did you mean "steps"?'),
        ("trian.steps=5", 'unknown section "trian": did you mean "train"?'),
        ("\x1b.\x07=5", r'unknown section "\x1b": There are '),
        ("train.steps=", 'train.steps = "": Expected `int'),
        ("train.steps=1.5", "train.steps = 1.5: Expected `int"),
        ("train.steps=5\nseed = 1", r'train.steps = "5\nseed = 1": Expected `int'),
        ("train.steps=" + 5000 * "9", 'train.steps = "999'),
        ("train.steps=" + 50_000 * "[", 'train.steps = "[[['),
        ("data.subsets=ArXiv", 'data.subsets = "ArXiv": Expected `array'),
    ):
        with pytest.raises(PilekitError) as raised:
            load_config(good, [change])
        assert is_one_line(line := str(raised.value))
        assert line.startswith(f"--set: {message}"), line


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


# Values and rules


def test_impossible_values(good: Path) -> None:
    for change, message in (
        ("train.steps=0", "train.steps = 0: Expected `int` >= 1"),
        ("train.steps=9007199254740993", "train.steps = 9007199254740993: Expected `int` <= 9007199254740992"),
        ("train.seed=-1", "train.seed = -1: Expected `int` >= 0"),
        ("data.seq_len=1", "data.seq_len = 1: Expected `int` >= 2"),
        ("train.clip_norm=nan", "train.clip_norm = NaN: Expected `float` > 0"),
        ("optimizer.lr=1e999", "optimizer.lr = Infinity: Expected `float` <= "),
        ("optimizer.weight_decay=nan", "optimizer.weight_decay = NaN: Expected `float` >= 0"),
        ("optimizer.betas=[0.9, 1.0]", "optimizer.betas = [0.9, 1.0]: Expected `float` < 1.0"),
        ("optimizer.layer_decay=1.1", "optimizer.layer_decay = 1.1: Expected `float` <= 1.0"),
        ("optimizer.lr_by_pattern={'*' = nan}", 'optimizer.lr_by_pattern = {"*": NaN}: Expected `float` >= 0'),
        ("data.repeats={ArXiv = inf}", 'data.repeats = {"ArXiv": Infinity}: Expected `float` <= '),
        ("data.repeats={}", "data.repeats = {}: Expected `object` of length >= 1"),
        ("data.tokenizer=", 'data.tokenizer = "": Expected `str` of length >= 1'),
        ("data.path=[]", "data.path = []: Expected `array` of length >= 1"),
        ('data.path="a\\u0000b"', r'data.path = "a\u0000b": must be paths'),
        ("data.path=\udc80", r'data.path = "\udc80": must be paths'),
        ('data.path=["a", "-"]', 'data.path = ["a", "-"]: must be paths, but not "-"'),
        ("train.eval_path=-", 'train.eval_path = "-": must be paths, but not "-"'),
        ("data.lanes=[0, 4]", "data.lanes = [0, 4]: Expected `int` >= 1"),
        ("data.lanes=[24, 4]", "data.lanes = [24, 4]: its rows must divide train.global_batch_size = 32, as 8 do"),
        ("train.micro_batch_size=12", "train.micro_batch_size = 12: must divide train.global_batch_size = 32, as 4"),
        ("model.preset=pythia-14", 'model.preset = "pythia-14": did you mean "pythia-14m"? There are pythia-14m, pyth'),
        ("schedule.warmup=51", "schedule.warmup = 51: must be at most train.steps = 50"),
        ("schedule.min_lr=4e-4", "schedule.min_lr = 0.0004: must be at most optimizer.lr = 0.0003"),
        ("schedule.kind=exponential", 'schedule.min_lr = 0.0: "exponential" never reaches 0; give a higher rate'),
        ("log.profile=[4, 3]", "log.profile = [4, 3]: must be the first and the last step"),
        ("log.profile=[3, 51]", "log.profile = [3, 51]: must be the first and the last step, which may be at most"),
        ("parallel.offload=true", "parallel.offload = true: needs parallel.zero = 1, 2 or 3"),
        ("precision.loss_scale=0.5", "precision.loss_scale = 0.5: must be at least precision.loss_scale_floor = 1.0"),
        ("data.attention=row", 'data.attention = "row": with train.objective = "clm" it must be '),
        ("train.objective=mlm", 'model.preset = "pythia-14m": presets predict the next token'),
    ):
        assert f": {message}" in (line := refusal(good, change)), line
    mlm = ("train.objective=mlm", "model.config=shape")
    assert 'it must be "document" or "row"' in refusal(good, *mlm, "data.attention=causal")
    assert "bits per byte need a causal model" in refusal(good, *mlm, "train.eval_every=2")
    few = ("train.tokens=200000", "schedule.warmup=5")  # 4 steps of 32 rows of 2,048 tokens
    assert refusal(good, *few).endswith("must be at most 4, the steps that train.tokens = 200000 make")


def test_values_at_the_edge_of_the_possible(good: Path) -> None:
    for change in (
        "train.steps=9007199254740992",
        "train.micro_batch_size=32",
        "data.seq_len=2",
        "optimizer.betas=[0, 0.9999]",
        "optimizer.weight_decay=0",
        "schedule.warmup=50",
        "schedule.min_lr=3e-4",
        "log.profile=[50, 50]",
        "data.lanes=[32, 1]",
        "optimizer.layer_decay=1",
        "precision.loss_scale=1",
    ):
        load_config(good, [change])


def test_a_config_made_in_python_is_checked_too(good: Path) -> None:
    config = load_config(good)
    replaced: list[tuple[str, Any, str]] = [
        ("train", None, "train must be a TrainSection, not None"),
        ("train", TrainSection(steps="3"), 'train.steps = "3": Expected `int'),  # type: ignore[arg-type]
        ("data", DataConfig(path=Path("x")), 'data.path = "x": Expected `str | array'),  # type: ignore[arg-type]
        ("data", DataConfig(lanes=[32, 4]), "data.lanes = [32, 4]: must be a tuple"),  # type: ignore[arg-type]
        ("data", DataConfig(repeats={3: 1.0}), 'data.repeats = {"3": 1.0}: Expected `str`'),  # type: ignore[dict-item]
        ("parallel", ParallelConfig(zero=4), "parallel.zero = 4: must be 0 or 1 or 2 or 3"),  # type: ignore[arg-type]
    ]
    for section, value, message in replaced:
        with pytest.raises(PilekitError) as raised:
            check(msgspec.structs.replace(config, **{section: value}))
        assert str(raised.value).startswith(message)
    with pytest.raises(AttributeError):
        config.train.steps = 4  # type: ignore[misc]


TEXTS = st.text(min_size=1, max_size=8).filter(lambda text: "\0" not in text and text != "-")
SMALL = st.integers(1, 40)


@st.composite
def any_numbers(draw: st.DrawFn) -> TrainConfig:
    """A config whose values are possible one by one, but perhaps not together."""
    kind: Any = draw(st.sampled_from(["constant", "linear", "cosine", "polynomial", "exponential", "wsd"]))
    tokens = draw(st.none() | st.integers(1, 2000))
    return TrainConfig(
        data=DataConfig(
            path=draw(st.none() | TEXTS | st.lists(TEXTS, min_size=1, max_size=3)),
            tokenizer=draw(TEXTS),
            seq_len=draw(st.integers(2, 8)),
            repeats=draw(st.none() | st.dictionaries(TEXTS, st.floats(0, 1e9), min_size=1, max_size=3)),
            lanes=draw(st.just("auto") | st.tuples(SMALL, SMALL)),
        ),
        model=ModelConfig(config=draw(TEXTS)),
        train=TrainSection(
            steps=draw(SMALL) if tokens is None else None,
            tokens=tokens,
            global_batch_size=draw(st.sampled_from([8, 12, 24])),
            micro_batch_size=draw(st.sampled_from([1, 2, 3, 4, 5])),
            clip_norm=draw(st.floats(0, exclude_min=True)),
        ),
        optimizer=OptimizerConfig(lr=draw(st.floats(0.5, 2))),
        schedule=ScheduleConfig(
            kind=kind,
            warmup=draw(st.integers(0, 40)),
            min_lr=draw(st.just(0.0) | st.floats(0, 1)),
            decay_share=draw(st.floats(0.1, 1)),
        ),
        parallel=ParallelConfig(zero=draw(st.sampled_from([0, 3])), offload=draw(st.booleans())),
        precision=PrecisionConfig(loss_scale=draw(st.floats(1, 99)), loss_scale_floor=draw(st.floats(0.1, 9))),
        checkpoint=CheckpointConfig(dir=draw(st.none() | TEXTS)),
        log=LogConfig(profile=draw(st.none() | st.tuples(SMALL, SMALL))),
    )


def is_possible(config: TrainConfig) -> bool:
    """The rules between fields, written down a second time."""
    data, train, schedule, profile = config.data, config.train, config.schedule, config.log.profile
    steps = train.steps or math.ceil((train.tokens or 0) / (train.global_batch_size * data.seq_len))
    assert config.steps == steps
    return (
        train.global_batch_size % train.micro_batch_size == 0
        and (data.lanes == "auto" or train.global_batch_size % data.lanes[0] == 0)
        and schedule.warmup <= steps
        and schedule.min_lr <= config.optimizer.lr
        and (schedule.min_lr > 0 or schedule.kind != "exponential")
        and (schedule.kind != "wsd" or schedule.warmup <= steps - max(1, round(steps * schedule.decay_share)))
        and (config.parallel.zero > 0 or not config.parallel.offload)
        and config.precision.loss_scale_floor <= config.precision.loss_scale
        and (profile is None or profile[0] <= profile[1] <= steps)
    )


@given(config=any_numbers())
def test_exactly_the_possible_configs_pass_and_load_again_when_written(
    config: TrainConfig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not is_possible(config):
        with pytest.raises(PilekitError) as raised:
            check(config)
        assert is_one_line(str(raised.value))
        return
    check(config)
    file = tmp_path_factory.getbasetemp() / "resolved.toml"
    file.write_bytes(to_toml(config).encode())
    again = load_config(file)
    assert again == config
    assert differences(config, again) == []
    assert to_toml(again) == to_toml(config)


def test_the_written_file_has_every_field_with_a_value(good: Path) -> None:
    written = tomllib.loads(to_toml(load_config(good)))
    assert list(written) == list(TrainConfig.__struct_fields__)
    assert written["model"] == {"preset": "pythia-14m"}
    assert written["optimizer"] == {
        "lr": 3e-4,
        "betas": [0.9, 0.95],
        "eps": 1e-8,
        "weight_decay": 0.1,
        "layer_decay": 1.0,
    }


def test_differences_have_field_and_both_values(good: Path) -> None:
    old = load_config(good)
    new = load_config(good, ["train.steps=60", 'data.path=["a"]', "optimizer.betas=[0.5, 0.5]", "log.every=1"])
    assert differences(old, new) == [
        ("data.path", "x.jsonl", ["a"]),
        ("train.steps", 50, 60),
        ("optimizer.betas", (0.9, 0.95), (0.5, 0.5)),
    ]
