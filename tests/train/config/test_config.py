"""The training config: every wrong one is refused in one clear line, and every right one survives a round trip."""

from __future__ import annotations

import math
import tomllib
import unicodedata
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.train import config as package
from pilekit.train.config.check import check_world, world_sizes
from pilekit.train.config.file import load_config, to_toml
from pilekit.train.config.sections import (
    SECTIONS,
    DataConfig,
    LogConfig,
    ModelConfig,
    OptimizerConfig,
    PrecisionConfig,
    TrainConfig,
    TrainSection,
    differences,
)
from tests.refusing import refused

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


def refusal(path: str | Path, *changes: str) -> str:
    """The one line with which the config is refused, without the name of the file."""
    return refused(".", load_config, path, changes).removeprefix(str(path))


def test_every_section_is_a_class_of_the_package() -> None:
    assert all(getattr(package, kind.__name__) is kind for kind in SECTIONS.values())


# Files and --set


def test_wrong_files(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    for text, message in (
        (
            "[trian]\nsteps = 1",
            ': unknown section, "trian"; did you mean train? There are data, model, teacher, lora, train, ',
        ),
        ("[train]\nSteps = 1", ': unknown key of train, "Steps"; did you mean steps? There are steps, tokens, '),
        ('["\\u001b[31m"]', r': unknown section, "\x1b[31m"; there are '),
        ("train = 3", ": train must be a section, which begins with [train]"),
        ("[train]", ": data.tokenizer is missing: "),
        (GOOD.replace("steps = 50", ""), ": train has neither steps nor tokens: give one, "),
        (GOOD + "tokens = 1", ": train has both steps and tokens: give one"),
        (GOOD.replace('tokenizer = "tokenizer.json"', ""), ": data.tokenizer is missing: "),
        ("[model]\nfrom_teacher = 6\n[train]\nsteps = 1", ": model.from_teacher = 6: needs teacher.path"),
        (GOOD.replace("preset", 'path = "a"\npreset'), ": model has preset and path: give exactly one of them"),
        ('[train]\nsteps = "50"', ': train.steps = "50": must be a whole number from 1 to 2^53'),
        ("[optimizer]\nlr = 0x1" + 9000 * "0", ": optimizer.lr = (too many digits): "),
        ("[train]\n\nsteps 50", ": is not TOML: Expected '=' after a key in a key/value pair (at line 3, "),
        ("a = " + 100_000 * "[", ": is not TOML: "),
        ("#" * 2**21, ": is larger than 1,048,576 bytes"),
    ):
        file.write_text(text)
        assert (line := refusal(file)).startswith(message), line
    file.write_bytes(GOOD.encode() + b"# caf\xe9\n")
    assert refusal(file).startswith(": is not TOML: 'utf-8' codec can't decode byte 0xe9")
    for path in (tmp_path, tmp_path / "no.toml", file / "x"):
        assert refusal(path).startswith(": cannot be read (")
    assert refusal("/dev/zero").startswith(": is larger than ")
    assert refusal("a\0b").startswith(r"a\x00b: cannot be read (")
    assert sorted(tmp_path.iterdir()) == [file]


@given(content=st.binary(max_size=40) | st.text(alphabet='[]=."#\n trainsep0', max_size=40).map(str.encode))
def test_any_other_file_is_refused_in_one_line(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_bytes(content)
    assert refusal(file).startswith(":")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # caplog, which the test clears
@given(
    kind=st.sampled_from(["constant", "linear", "cosine", "wsd"]),
    warmup=st.integers(0, 60),
    before=st.integers(1, 60),
    after=st.integers(1, 60),
    share=st.sampled_from([0.1, 0.5, 0.9]),
)
@example(kind="constant", warmup=10, before=20, after=5, share=0.5)  # it is shortened
def test_a_warmup_of_the_file_is_shortened_only_if_a_change_leaves_no_room(
    kind: str, warmup: int, before: int, after: int, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    def room(steps: int) -> int:
        return steps - (max(1, round(share * steps)) if kind == "wsd" else 0)

    of = {"data": {"tokenizer": "t"}, "model": {"preset": "pythia-14m"}, "train": {"steps": before}}
    of["schedule"] = {"kind": kind, "warmup": warmup, "decay_share": share}
    caplog.clear()
    if warmup > max(room(before), room(after)) or room(before) < warmup > room(after):
        refused(r"schedule\.warmup = .*must be at most", load_config, of, [f"train.steps={after}"])
        return
    found = load_config(of, [f"train.steps={after}"])
    assert found == load_config(of, {"train.steps": after})
    if warmup <= room(after):
        assert found.schedule.warmup == warmup
        assert not caplog.records
        return
    assert found.schedule.warmup == min(math.floor(warmup * after / before), room(after)) < warmup
    said = f"schedule.warmup = {found.schedule.warmup} instead of {warmup}, in proportion to {after} step"
    assert caplog.records[0].getMessage().startswith(said)
    assert load_config(found) == found, "the run's own config says the same, without a warning"
    with pytest.raises(PilekitError, match=r"schedule\.warmup = .*must be at most"):
        load_config(of, [f"train.steps={after}", f"schedule.warmup={warmup}"])


def test_names_need_no_brackets(good: Path) -> None:
    for text in ("ArXiv,GitHub", "ArXiv, GitHub", '"ArXiv,GitHub"', '["ArXiv", "GitHub"]'):
        assert load_config(good, [f"data.subsets={text}"]).data.subsets == ["ArXiv", "GitHub"]
    assert load_config(good, ["data.subsets=Wikipedia (en)"]).data.subsets == ["Wikipedia (en)"]
    assert load_config(good, ["model.freeze=*.embed_in.*"]).model.freeze == ["*.embed_in.*"]
    assert load_config(good, ["data.path=a,b"]).data.path == "a,b", "a path may have a comma"


def test_changes(good: Path, tmp_path: Path) -> None:
    changed = load_config(
        good,
        [
            "train.tokens=7",
            " train.clip_norm = inf ",
            "data.path=00",  # not TOML, because numbers do not begin with 0
            "data.tokenizer=2024-01-01",  # TOML, but a date
            'data.subsets=["ArXiv", "Github"]',
            "model.path=a/model",  # replaces the file's preset
            "optimizer.betas=[0.5, 0]",
            "precision.dtype='bf16'",
            "log.every=2",
            "log.every=3",  # the last change counts
            "data.lanes=[8, 2]",
            "data.repeats={ArXiv = 2, 'Wikipedia (en)' = 0.5}",
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
        train=TrainSection(tokens=7, clip_norm=math.inf),
        optimizer=OptimizerConfig(betas=(0.5, 0.0)),
        precision=PrecisionConfig(dtype="bf16"),
        log=LogConfig(every=3),
    )
    (tmp_path / "written.toml").write_text(to_toml(changed), "utf-8")
    assert load_config(tmp_path / "written.toml") == changed
    assert differences(changed, load_config(tmp_path / "written.toml")) == []
    for text in ("s3://x/a=b.jsonl", "[a", "x # y", '"', "a\nb", "東京 läuft.jsonl"):
        assert load_config(good, [f"data.path={text}"]).data.path == text
    marked = tmp_path / "marked.toml"
    marked.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_config(marked) == load_config(good)


@given(change=st.text(max_size=30) | st.text(max_size=10).map(lambda text: f"train.steps={text}"))
@example(change="train.steps=5#")
@example(change="train.steps=" + 5000 * "9")
@example(change="train.steps=" + 50_000 * "[")
def test_any_change_is_taken_or_refused_in_one_line(change: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "good.toml"
    file.write_text(GOOD)
    try:
        changed = load_config(file, [change])
    except PilekitError as error:
        assert not any(unicodedata.category(character) == "Cc" for character in str(error))
        assert str(error).startswith("--set: ")
    else:
        assert changed.train.steps == int(change.partition("=")[2].partition("#")[0])


# Values and rules


def test_impossible_values_are_named_with_the_rule(good: Path) -> None:
    mlm = ("train.objective=mlm", "model.config=shape")
    cases: tuple[tuple[str | tuple[str, ...], str], ...] = (
        ("train.steps", "train.steps: must be section.field=value, such as train.steps=50"),
        ("train.stesp=5", 'unknown key of train, "stesp"; did you mean steps?'),
        ("data.subsets=5", "data.subsets = 5: must be a list that is not empty, each text that is not empty; for exa"),
        ('data.subsets=["ArXiv"', r'data.subsets = "[\"ArXiv\"": must be a list'),
        ("data.subsets=ArXiv,", 'data.subsets = "ArXiv,": must be a list'),
        ("train.steps=many", 'train.steps = "many": must be a whole number from 1 to 2^53; for example 100'),
        ("optimizer.lr=high", 'optimizer.lr = "high": must be a finite number over 0; for example 0.0003'),
        ("train.steps=9007199254740993", "train.steps = 9007199254740993: must be a whole number from 1 to 2^53"),
        ('data.path="a\\u0000b"', r'data.path = "a\u0000b": must be paths'),
        ("data.path=\udc80", r'data.path = "\udc80": must be paths'),
        ('data.path=["a", "-"]', 'data.path = ["a", "-"]: must be paths, but not "-"'),
        ("train.eval_path=-", 'train.eval_path = "-": must be paths, but not "-"'),
        ("model.preset=pythia-14", 'model.preset = "pythia-14": did you mean pythia-14m or pythia-1.4b? There are '),
        ("train.micro_batch_size=12", "train.micro_batch_size = 12: must divide train.global_batch_size = 32"),
        ("data.lanes=[24, 4]", "data.lanes = [24, 4]: its rows must divide train.global_batch_size = 32"),
        ("schedule.warmup=51", "schedule.warmup = 51: must be at most 50 steps"),
        (("schedule.kind=wsd", "schedule.warmup=41"), "at most 40 steps, because the rate falls in the last 10"),
        (("train.tokens=200000", "schedule.warmup=5"), "must be at most 4 steps"),  # of 32 rows of 2,048 tokens
        ("data.attention=row", 'with train.objective = "clm" it must be "document" or "causal"'),
        ("train.objective=mlm", 'it must be "distilroberta" or "roberta-base"'),
        (("parallel.zero=2", "parallel.offload=true", "optimizer.name=muon"), "needs parallel.offload = false"),
        (("parallel.zero=0", "parallel.offload=true"), "parallel.offload"),
        (("optimizer.lr=1e-4", "schedule.min_lr=1e-3"), "schedule.min_lr"),
        (("schedule.kind=exponential", "schedule.min_lr=0"), "schedule.min_lr"),
        (("precision.loss_scale=1", "precision.loss_scale_floor=2"), "precision.loss_scale_floor"),
        (("log.profile=[5, 4]",), "log.profile"),
        (("log.profile=[5, 51]",), "log.profile"),
        ((*mlm, "data.attention=causal"), 'it must be "document" or "row"'),
        ((*mlm, "train.eval_every=2"), "bits per byte need a causal model"),
    )
    for changes, message in cases:
        line = refusal(good, *([changes] if isinstance(changes, str) else changes))
        assert message in line, line


def test_a_config_made_in_python_is_checked_too(good: Path) -> None:
    config = load_config(good)
    replaced: list[tuple[str, Any, str]] = [
        ("train", None, "config: train must be a section"),
        ("train", TrainSection(steps="3"), 'config: train.steps = "3": must be a whole number'),  # type: ignore[arg-type]
        ("data", DataConfig(path=[Path("x"), 3]), "config: data.path"),  # type: ignore[list-item]
    ]
    for section, value, message in replaced:
        with pytest.raises(PilekitError) as raised:
            load_config(msgspec.structs.replace(config, **{section: value}))
        assert str(raised.value).startswith(message)
    data = DataConfig(path=[Path("x")], tokenizer=Path("t"), lanes=[32, 4])  # type: ignore[list-item, arg-type]
    made = load_config(TrainConfig(data=data, model=config.model, train=config.train))
    assert made.data == DataConfig(path=["x"], tokenizer="t", lanes=(32, 4))


def test_the_written_file_has_all_fields_and_differences_have_both_values(good: Path) -> None:
    old = load_config(good)
    written = tomllib.loads(to_toml(old))
    assert list(written) == list(TrainConfig.__struct_fields__)
    assert written["model"] == {"preset": "pythia-14m", "attention_implementation": "auto"}
    assert set(written["optimizer"]) == {"name", "momentum", "lr", "betas", "eps", "weight_decay", "layer_decay"}
    new = load_config(good, ["train.steps=60", 'data.path=["a"]', "optimizer.betas=[0.5, 0.5]", "log.every=1"])
    assert differences(old, new) == [
        ("data.path", "x.jsonl", ["a"]),
        ("train.steps", 50, 60),
        ("optimizer.betas", (0.9, 0.95), (0.5, 0.5)),
    ]


@given(st.integers(1, 60), st.integers(1, 6), st.none() | st.integers(1, 60), st.integers(1, 70))
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
        refused(f"^train.global_batch_size = {rows}: {ranks} ranks cannot share it in", check_world, config, ranks)


def test_dicts_and_configs_are_taken_as_files_are(good: Path) -> None:
    tables = {**tomllib.loads(GOOD), "log": {"every": 7, "profile": None}}
    config = load_config(tables)
    assert config == load_config(good, ["log.every=7"])
    assert load_config(config) == config
    changed = load_config(config, ["train.tokens=1000000", "optimizer.lr=1e-3"])
    assert (changed.train.steps, changed.optimizer.lr) == (None, 1e-3)
    assert load_config(config, {"train.tokens": 1_000_000, "optimizer.lr": 1e-3}) == changed
    assert load_config(changed, {"model.preset": None, "train.steps": None}) == msgspec.structs.replace(
        changed, model=ModelConfig()
    )
    for changes, message in (
        ({"train.stepz": 5}, 'changes: unknown key of train, "stepz"; did you mean steps'),
        ({"steps": 5}, "changes: steps: must be section.field=value"),
        ({"train.steps": "5"}, 'changes: train.steps = "5": must be a whole number'),
        ({"train.steps": 5, "schedule.warmup": 6}, "config with changes: schedule.warmup = 6: must be at most 5 steps"),
    ):
        refused(message, load_config, config, changes)
    for wrong, message in (
        ({"train": {"stepz": 5}}, 'config: unknown key of train, "stepz"; did you mean steps'),
        ({"train": 5}, "config: train must be a section"),
        ({"train": {"steps": "x"}}, "config: train.steps"),
    ):
        with pytest.raises(PilekitError, match=message):
            load_config(wrong)  # type: ignore[arg-type]
