"""`pilekit assemble` as a user runs it: table, JSON, plan, and one clear line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.assemble.reference import records_of
from tests.cli.running import refused, run, run_json

MANIFEST = """\
name = "mine"
[assemble]
shards = 2
val = 0.1
test = 0
[[subsets]]
name = "Code"
epochs = 2
sources = ["code/**/*.py"]
group = "any"
[[subsets]]
name = "Prose"
sources = ["prose"]
text_field = "body"
group = "of.book"
keep = ["of.book"]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A manifest with text files in folders, and a folder of a shard and a file that is none."""
    monkeypatch.chdir(tmp_path)
    for number in range(40):
        path = Path(f"code/{number % 10}/{number}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"print({number})\n")
    Path("code/0/.hidden.py").write_text("hidden")
    Path("code/0/empty.py").write_text("")
    Path("prose").mkdir()
    Path("prose/README").write_text("not a document, as there are shards")
    records = [{"body": f"page {number}", "of": {"book": number // 5}, "meta": "ignored"} for number in range(30)]
    Path("prose/a.jsonl").write_text("\n".join(map(json.dumps, records)))
    Path("mine.toml").write_text(MANIFEST)
    return tmp_path


def test_plan_corpus_and_stats_agree(here: Path) -> None:
    planned = run("assemble", "mine.toml", "--out", "out", "--plan", exit_code=0)
    assert "planned: 2 train shards, shuffled with seed 42" in planned.stdout
    assert not list(here.rglob("*.zst"))
    summary = run_json("assemble", "mine.toml", "--out", "out")
    assert summary == json.loads(Path("out/summary.json").read_text())
    code, prose = summary["subsets"]["Code"], summary["subsets"]["Prose"]
    # val: 0.1 * 2 * 40 = 8 texts are two folders of four; 0.1 * 30 = 3 are one book of five
    expected = {"read": 41, "empty": 1, "val": 8, "test": 0, "train_documents": 32, "train": 64}
    assert {name: code[name] for name in expected} == expected
    assert [prose[name] for name in ("read", "val", "train")] == [30, 5, 25]
    assert summary["read"] == sum(summary[name] for name in ("empty", "val", "train_documents"))
    printed = run("assemble", "mine.toml", "--out", "out", exit_code=0)  # done already
    assert "71 read = 1 empty + 13 val + 57 train documents" in printed.stdout
    assert printed.stdout.splitlines()[:6] == planned.stdout.splitlines()[:6]
    assert not Path("out/test.jsonl.zst").exists()
    stats = run_json("stats", "out", "--manifest", "mine.toml", "--copies")
    assert {name: (row["documents"], row["copies"]) for name, row in stats["subsets"].items()} == {
        "Code": (72, 32),
        "Prose": (30, 0),
    }
    head = run_json("head", "out/val.jsonl.zst", "-n", 1, "--subsets", "Prose", "--manifest", "mine.toml")
    assert head["meta"] == {"pile_set_name": "Prose", "book": head["meta"]["book"]}


def test_other_settings_take_over_a_plan_but_not_a_corpus(here: Path) -> None:
    run("assemble", "mine.toml", "--out", "out", "--plan")
    counted = {path: path.stat().st_ino for path in Path("out/scratch/counted").iterdir()}
    Path("mine.toml").write_text(MANIFEST.replace("epochs = 2", "epochs = 0.5").replace("shards = 2", "shards = 3"))
    run("assemble", "mine.toml", "--out", "out", "--plan")
    assert {path: path.stat().st_ino for path in counted} == counted
    manifest = Path("mine.toml").read_text()
    Path("mine.toml").write_text(manifest.replace("shards", "seed = 7\nshards"))
    run("assemble", "mine.toml", "--out", "out", "--plan")  # of the same size as the plan before
    Path("mine.toml").write_text(manifest)
    assert run_json("assemble", "mine.toml", "--out", "out")["subsets"]["Code"]["train"] == 18
    assert len(list(Path("out/train").glob("*.zst"))) == 3
    run("assemble", "mine.toml", "--out", "new")
    assert records_of(Path("out")) == records_of(Path("new"))
    Path("mine.toml").write_text(MANIFEST)
    message = r"out: was made with other settings: shards is 3 there, 2 here"
    refused(message, "assemble", "mine.toml", "--out", "out")


def test_mistakes_are_one_clear_line(here: Path) -> None:
    Path("link").symlink_to("code/1/1.py")
    for old, new, message in (
        ('sources = ["prose"]\n', "", r"the subset Prose has no sources"),
        ('sources = ["prose"]', 'sources = ["prose/*.txt"]', r"the subset Prose: prose/\*\.txt finds no file"),
        ('["code/', '["nowhere/', r"the subset Code, source nowhere/\*\*/\*\.py: .*there is no folder nowhere"),
        ('["prose"]', '["prose", "code/1/1.py"]', r"1\.py: is a source of two subsets, Code and Prose"),
        ("shards = 2", "shard = 2", r'mine\.toml: unknown field of assemble, "shard"; did you mean shards\?'),
        ('group = "of.book"', 'group = "of.author"', r"a\.jsonl, line 1: has no \"of\.author\" field"),
        ("epochs = 2", "epochs = 2000", r"mine\.toml: subsets\[\d\]\.epochs = 2000: must be a number from 0 to 1,000"),
        ('keep = ["of.book"]', 'keep = ["of.book", "book"]', r"mine\.toml: subsets\[1\]: `keep` names 'book' twice"),
        ('["prose"]', '["prose", "/dev/null"]', r"the subset Prose: /dev/null is no file and cannot be read twice"),
        ('["prose"]', '["prose", "link"]', r"link: is a source of two subsets, Code and Prose"),
        ('["of.book"]', '["of.pile_set_name"]', r"mine\.toml: `keep` would put 'of\.pile_set_name' in the place of"),
        ('name = "mine"', 'name = "mine"\nlabel_path = "meta.book.name"', r"`keep` would put 'of\.book' in the place"),
        ('name = "mine"', 'name = "mine"\nlabel_path = "meta"', r"`keep` would put 'of\.book' in the place"),
    ):
        Path("mine.toml").write_text(MANIFEST.replace(old, new))
        refused(message, "assemble", "mine.toml", "--out", "out")
    without_prose = MANIFEST.replace('"Prose"', '"Prose"\nepochs = 0')
    Path("mine.toml").write_text(without_prose)
    assert run_json("assemble", "mine.toml", "--out", "out")["subsets"]["Prose"]["left_out"] == 30
    refused(r"code/\d.*: lies in code; name another folder with --out", "assemble", "mine.toml", "--out", "code")
    refused(r"^pile: no such manifest; check the path$", "assemble", "pile", "--out", "none")  # bundled, not a file
    Path("mine.toml").write_text(without_prose.replace("epochs = 2", "epochs = 0"))
    message = r"nothing is left for train: of 71 documents, 1 are empty"
    refused(message, "assemble", "mine.toml", "--out", "none")
    Path("prose/a.jsonl.gz").write_bytes(b"")
    message = r"two sources have the name prose/a\.jsonl: a\.jsonl"
    refused(message, "assemble", "mine.toml", "--out", "none")


def test_what_is_no_document_is_an_error_or_counted(here: Path) -> None:
    Path("code/3/3.py").write_bytes(b"caf\xe9")
    with Path("prose/a.jsonl").open("a") as file:
        file.write('\n{"body": 7, "of": {"book": 1}}\n\n{"body": "x"}')
    said = r"^text files from code/0/0\.py on: code/3/3\.py: is not valid UTF-8 \(byte 3\).*--on-error skip"
    refused(said, "assemble", "mine.toml", "--out", "out")
    result = run("assemble", "mine.toml", "--out", "out", "--on-error", "skip", exit_code=0)
    assert 'a.jsonl, line 31: field "body" is a number, not a string' in result.stderr
    assert result.stdout.splitlines()[0].split()[2:5] == ["Read", "Empty", "Skipped"]
    summary = json.loads(Path("out/summary.json").read_text())
    assert [summary[name] for name in ("read", "skipped")] == [70, 3]
    assert [row["skipped"] for row in summary["subsets"].values()] == [1, 2]
    refused(r'on_error is "skip" there, "raise" here', "assemble", "mine.toml", "--out", "out")


def test_a_source_that_changes_is_read_again(here: Path) -> None:
    run("assemble", "mine.toml", "--out", "out", "--plan")
    Path("code/1/1.py").write_text("print(2)\n")  # as long as before, and the text of another file
    summary = run_json("assemble", "mine.toml", "--out", "out")
    assert summary["subsets"]["Code"]["read"] == 41
    Path("code/1/1.py").write_text("print(9)\n")
    assert run_json("assemble", "mine.toml", "--out", "out")["read"] == 71
    texts = [record["text"] for records in records_of(Path("out")).values() for record in records]
    assert texts.count("print(2)\n") in (1, 2)
    assert texts.count("print(9)\n") in (1, 4)
