"""Commands give the bytes of local processes on a cluster, also when a node dies or hangs, or the driver stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
import zstandard

from tests.shards.making import record, unzstd
from tests.stats.auditing import every_figure, figure, manifest_of
from tests.stopping import interrupt, kill, partial_files, tree, wait_for
from tests.tokenize.making import byte_level_bpe, saved
from tests.train.runs import tiny_run, trainer
from tests.web_server import serving
from tests.workers.ray_cluster import LABELS, TwoNodes, children, pilekit, published, started

REFRAME = ("reframe", "corpus", "--level", 19, "--jobs", 2, "--out")


@pytest.mark.slow
def test_each_command_gives_what_local_processes_give(cluster: TwoNodes, corpus: Path, tmp_path: Path) -> None:
    home = corpus.parent  # The driver's folder, to which paths are relative, is not that of the nodes.
    ray = cluster.ray
    for command in (
        ("stats", "corpus"),
        ("stats", "corpus", "--copies", "--json"),
        ("verify", "corpus"),
        ("sample", "corpus", "-n", 9999, "--json"),  # more than a task may send home
        ("grep", "a+ ", "corpus"),
        ("grep", "a+ ", "corpus", "-n", 3, "--json"),
    ):
        found = pilekit(*command, *ray, at=home, PILEKIT_CACHE=tmp_path / "cache")
        assert found == pilekit(*command, at=home)
        assert found.strip()
    assert not tree(tmp_path / "cache")
    for name, command in (
        ("reframe", ("reframe", "corpus", "--jobs", 3)),
        ("select", ("select", "corpus", "--sample", 0.3)),
        ("parquet", ("select", "corpus", "--subsets", "ArXiv", "--format", "parquet", "--jobs", 1)),
    ):
        results = []
        for place, options in (("local", ()), ("ray", ray)):
            out = tmp_path / f"{name}-{place}"
            results.append(pilekit(*command, "--out", out, *options, at=home).replace(str(out), ""))
        assert results[0] == results[1]
        assert tree(tmp_path / f"{name}-local") == tree(tmp_path / f"{name}-ray")
    with serving(corpus) as server:  # The index of a URL goes into the cache folder.
        for options in ((), ray):
            cache = tmp_path / f"cache-{len(options)}"
            assert "built" in pilekit("index", f"{server.url}00.jsonl.zst", *options, at=home, PILEKIT_CACHE=cache)
    assert len(tree(tmp_path / "cache-0")) == 1
    assert tree(tmp_path / "cache-0") == tree(tmp_path / "cache-2")
    indexes = []
    for place, options in (("local", ()), ("ray", ray)):
        copy = tmp_path / place
        copy.mkdir()
        for shard in corpus.glob("*.zst"):
            (copy / shard.name).symlink_to(shard)
        indexes.append(pilekit("index", copy, *options).replace(str(copy), "COPY"))
    assert indexes[0] == indexes[1]
    assert {name: read for name, read in tree(tmp_path / "local").items() if "index" in name} == {
        name: read for name, read in tree(tmp_path / "ray").items() if "index" in name
    }


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["worker", "node", "hanging node"])
def test_the_bytes_are_the_same_when_a_worker_or_a_node_is_lost(
    cluster: TwoNodes, corpus: Path, tmp_path: Path, lost: str
) -> None:
    home, out = corpus.parent, tmp_path / "ray"
    expected = json.loads(pilekit(*REFRAME, tmp_path / "local", "--json", at=home))
    with started(*REFRAME, out, "--json", *cluster.ray, at=home) as process:
        wait_for(lambda: len(partial_files(out)) == 2)
        cluster.lose(lost)
        output, errors = process.communicate(timeout=240)
    assert (process.returncode, errors.count("\n")) == (0, 1), errors
    assert json.loads(output) == expected
    if lost == "hanging node":  # It wakes, and may finish its task a second time.
        cluster.wake_node()
    assert published(out) == tree(tmp_path / "local")


@pytest.mark.slow
def test_a_stopped_driver_leaves_no_worker_and_is_resumed(cluster: TwoNodes, corpus: Path, tmp_path: Path) -> None:
    home = corpus.parent
    pilekit(*REFRAME, tmp_path / "local", at=home)
    for name, stop, code in (("int", interrupt, 130), ("term", subprocess.Popen.terminate, -15), ("kill", kill, -9)):
        out = tmp_path / name
        ray = cluster.ray
        with started(*REFRAME, out, *ray, at=home) as process:
            wait_for(lambda out=out: len(partial_files(out)) == 2)  # type: ignore[misc]
            assert cluster.busy_workers()
            stop(process)
            _, errors = process.communicate(timeout=60)
        # Ray's core may abort when it cancels a task that ends just then (ray-project/ray#54846): as good as a kill.
        ray_aborted = process.returncode == -signal.SIGABRT and "submissible_tasks_" in errors
        assert ray_aborted or process.returncode == code, errors
        assert ray_aborted or "Traceback" not in errors
        assert ray_aborted or ("interrupted; the same command resumes" in errors) == (name == "int")
        wait_for(lambda: not cluster.busy_workers(), 10)
        if name == "int" and not ray_aborted:
            assert not partial_files(out)
        pilekit(*REFRAME, out, *ray, at=home)
        assert tree(out) == tree(tmp_path / "local")


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards with exact copies, near-duplicates and a text that a hundred begin with; beside them, what stays."""
    folder, random = tmp_path_factory.mktemp("copies") / "corpus", Random(2)
    folder.mkdir()
    words = ["".join(random.choices("abcdefghijklmnop", k=6)) for _ in range(3000)]
    texts = [random.choices(words, k=random.randint(40, 90)) for _ in range(300)]
    texts += [[*text[:place], "other", *text[place:]] for place, text in enumerate(texts[:150], -20)]
    texts += [[*texts[0], *random.choices(words, k=random.randint(1, 60))] for _ in range(100)] + texts[100:180]
    random.shuffle(texts)
    for number in range(4):
        lines = [record(" ".join(text), LABELS[len(text) % 3]) for text in texts[number::4]]
        (folder / f"{number:02}.jsonl.zst").write_bytes(zstandard.compress(b"\n".join(lines)))
    pilekit(*DEDUP, "local", at=folder.parent)
    return folder


DEDUP = ("dedup", "corpus", "--threshold", 0.7, "--jobs", 2, "--memory", "64MB", "--out")
SKETCH, COPIES, MATCH, SETS = ".jsonl.parquet.", "copies-", "bands-", ".ends."
REMOVED, MASK, CLEAN = "removed.parquet.", ".mask.", ".jsonl.zst.index."
"""A part of the names of the files in which a step ends."""


@pytest.mark.slow
def test_dedup_gives_the_bytes_of_local_processes_on_one_and_two_nodes(cluster: TwoNodes, copies: Path) -> None:
    home = copies.parent
    pilekit(*DEDUP, "ray", *cluster.ray, at=home)
    cluster.remove_node()
    against = ("--against", "local", "--subsets", "ArXiv,Github", "--no-write")
    pilekit(*DEDUP, "later", *against, at=home)
    pilekit(*DEDUP, "later-ray", *against, *cluster.ray, at=home)
    for local, ray in (("local", "ray"), ("later", "later-ray")):
        assert json.loads(tree(home / local)["summary.json"])["near"] > 100
        assert tree(home / local) == tree(home / ray)


@pytest.mark.slow
def test_dedup_gives_the_same_bytes_when_each_step_loses_a_node_or_a_worker(cluster: TwoNodes, copies: Path) -> None:
    home, out, scratch = copies.parent, copies.parent / "lost", copies.parent / "scratch"
    scratch.mkdir()
    for step in (SKETCH, COPIES, MATCH, SETS, MASK, CLEAN):
        (cluster.held / step).touch()
    with started(*DEDUP, out, *cluster.ray, "--scratch", scratch, at=home) as process:
        for step in (SKETCH, COPIES, MATCH, SETS, MASK):
            with cluster.holding(process, out, step):
                workers = children(cluster.node.all_processes["raylet"][0].process.pid)
                in_scratch = [f"{scratch}/" in Path(f"/proc/{worker}/maps").read_text() for worker in workers]
                assert any(in_scratch) == (step in (COPIES, MATCH))
                cluster.lose("worker" if step in (COPIES, MASK) else "node")
                cluster.complete()
        with cluster.holding(process, out, CLEAN):
            cluster.lose("hanging node")
        _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    cluster.wake_node()
    assert published(out) == tree(home / "local")


@pytest.mark.slow
def test_dedup_begun_in_local_processes_goes_on_with_ray_and_back(cluster: TwoNodes, copies: Path) -> None:
    home, out = copies.parent, copies.parent / "moved"
    times: dict[Path, int] = {}
    for options, changed, step in (((), {"PYTHONPATH": os.environ["PYTHONPATH"]}, SETS), (cluster.ray, {}, CLEAN)):
        (cluster.held / step).touch()
        with started(*DEDUP, out, *options, at=home, **changed) as process, cluster.holding(process, out, step):
            process.kill()
            process.wait()
        files = [*(out / "sketches").iterdir(), *(out / "masks").glob("*")]
        assert times.items() <= (times := {path: path.stat().st_mtime_ns for path in files}).items()
    pilekit(*DEDUP, out, at=home)
    assert times.items() <= {path: path.stat().st_mtime_ns for path in times}.items()
    assert tree(out) == tree(home / "local")


def same_bytes_with_a_node_lost(
    cluster: TwoNodes, command: tuple[object, ...], step: str, folder: Path, home: Path
) -> None:
    """Run a command, which ends with --out, here and on the cluster, whose second node dies in a step."""
    local, ray = folder / "local", folder / "ray"
    printed = pilekit(*command, local / "pile", at=home)
    cluster.complete()
    (cluster.held / step).touch()
    with started(*command, ray / "pile", *cluster.ray, at=home) as process:
        with cluster.holding(process, ray, step):
            cluster.lose("node")
        output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert output == printed.replace(str(local), str(ray))
    assert tree(ray) == tree(local)


SOURCES = """
name = "mine"
[assemble]
shards = 3
val = 0.01
test = 0.01
[[subsets]]
name = "A"
sources = ["corpus/0[0-3].jsonl.zst"]
epochs = 2
[[subsets]]
name = "B"
sources = ["corpus/0[4-6].jsonl.zst"]
"""


@pytest.mark.slow
def test_tokenize_and_assemble_give_the_bytes_of_local_processes_when_a_node_is_lost(
    cluster: TwoNodes, corpus: Path, tmp_path: Path
) -> None:
    home = corpus.parent
    saved(byte_level_bpe(700), home / "tokenizer.json")
    (home / "mine.toml").write_text(SOURCES)
    tokenize = ("tokenize", "corpus", "--tokenizer", "tokenizer.json", "--append-eod", "--jobs", 2, "--out")
    assemble = ("assemble", "mine.toml", "--jobs", 2, "--memory", "64MB", "--out")
    for command, step in ((tokenize, ".ids."), (assemble, ".jsonl.zst.")):
        same_bytes_with_a_node_lost(cluster, command, step, tmp_path / command[0], home)


@pytest.mark.slow
def test_cleaning_and_cutting_give_the_bytes_of_local_processes_when_a_node_is_lost(
    cluster: TwoNodes, copies: Path, tmp_path: Path
) -> None:
    texts = [json.loads(line)["text"].split() for line in unzstd(copies / "01.jsonl.zst").split(b"\n")[:20]]
    quiz = tmp_path / "quiz.jsonl"
    items = [
        {"text": " ".join(text[5:25]), "answer": " ".join(text[25 : 25 + at % 3])} for at, text in enumerate(texts)
    ]
    quiz.write_text("\n".join(map(json.dumps, items)))
    verdicts = ("--question", "text", "--answer", "answer")
    for command, step in (
        (("clean", "corpus", "--rules", "gopher-quality", "--set", "gopher-quality.stop_words=0"), ".jsonl.parquet."),
        (("decontaminate", "corpus", "--against", quiz, "--window", 10, *verdicts), ".jsonl."),
        (("substrings", "corpus", "--memory", "64MB", "--min-bytes", 60), ".jsonl."),
    ):
        command = (*command, "--jobs", 2, "--out")
        same_bytes_with_a_node_lost(cluster, command, step, tmp_path / command[0], copies.parent)
        counts = json.loads((tmp_path / command[0] / "local/pile/summary.json").read_bytes())
        assert counts["dropped"] + counts.get("cut", 0) > 10


@pytest.mark.slow
def test_counting_and_tracing_give_the_bytes_of_local_processes_when_a_node_is_lost(
    cluster: TwoNodes, copies: Path, tmp_path: Path
) -> None:
    home = copies.parent
    texts = [json.loads(line)["text"] for line in unzstd(copies / "01.jsonl.zst").split(b"\n")[:20]]
    phrases, traced = tmp_path / "phrases.txt", tmp_path / "traced.jsonl"
    phrases.write_text("\n".join(text[begin : begin + 30] for text in texts for begin in range(0, 200, 7)) + "\nabsent")
    traced.write_text("\n".join(json.dumps({"text": f"{text[:150]} other {text[150:]}"}) for text in texts))
    for command, step, found in (
        (("count", phrases, "corpus"), ".jsonl.npy.", "occurrences"),
        (("trace", traced, "corpus"), ".jsonl.msgpack.", "covered"),
    ):
        same_bytes_with_a_node_lost(cluster, (*command, "--jobs", 2, "--out"), step, tmp_path / command[0], home)
        rows = pq.read_table(tmp_path / command[0] / "ray/pile")
        assert sum(rows[found].to_pylist()) > 500


@pytest.mark.slow
def test_an_audit_is_that_of_local_processes_when_a_worker_or_a_node_is_lost_or_the_driver_stops(
    cluster: TwoNodes, corpus: Path, tmp_path: Path
) -> None:
    """Counting tokens takes long enough to lose a worker meanwhile. The hashes that nodes wrote are removed."""
    home, cache, tokenizer = corpus.parent, tmp_path / "cache", byte_level_bpe(700)
    tokens = figure("tokens", 1, tokenizer="mine", vocabulary=tokenizer.get_vocab_size())
    saved(tokenizer, home / "audit.json")
    manifest = manifest_of(tmp_path / "mine.toml", [*every_figure(["abc", "a b"]), tokens])
    audit = ("stats", "corpus", "--audit", "--json", "--manifest", manifest, "--tokenizer", "audit.json")
    expected = pilekit(*audit, "--jobs", 1, at=home)
    found = {name: row["counted"] for name, row in json.loads(expected)["figures"]["train"].items()}
    assert found["documents"] == found["distinct texts"] == 6040
    assert found["tokens of mine"] > found['occurrences of "abc"'] > 1000
    assert pilekit(*audit, "--jobs", 3, at=home) == expected
    for lost in ("worker", "node"):
        cluster.complete()
        with started(*audit, *cluster.ray, at=home, PILEKIT_CACHE=cache) as process:
            wait_for(lambda: len(cluster.busy_workers()) == 2)
            cluster.lose(lost)
            output, errors = process.communicate(timeout=240)
        assert (process.returncode, output) == (0, expected), errors
        assert not tree(cache)
    cluster.complete()
    with started(*audit, *cluster.ray, at=home, PILEKIT_CACHE=cache) as process:
        wait_for(lambda: bool(cluster.busy_workers()))
        interrupt(process)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGABRT), errors  # Ray's core may abort when it cancels a task.
    assert process.returncode != 130 or not tree(cache)
    assert pilekit(*audit, *cluster.ray, at=home, PILEKIT_CACHE=cache) == expected


@pytest.mark.slow
def test_copies_of_other_documents_are_those_of_local_processes_when_a_node_is_lost(
    cluster: TwoNodes, tmp_path: Path
) -> None:
    made, given, cache = tiny_run(tmp_path / "run", documents=40), tmp_path / "given.jsonl", tmp_path / "cache"
    trainer(made, made / "seen", "train.steps=3").fit()
    texts = [json.loads(line)["text"] for line in unzstd(made / "data/01.jsonl.zst").split(b"\n") if line]
    given.write_text("".join(json.dumps({"text": f"{text} !"}) + "\n" for text in texts[::3]))
    seen = ("seen", made / "seen", "--against", given, "--json")
    expected = pilekit(*seen, at=made, PILEKIT_CACHE=tmp_path / "local")
    assert json.loads(expected)["against"]["copied"] > 5
    cluster.complete()
    (cluster.held / ".pairs.").touch()
    with started(*seen, *cluster.ray, at=made, PILEKIT_CACHE=cache) as process:
        with cluster.holding(process, cache, ".pairs."):
            cluster.lose("node")
        output, errors = process.communicate(timeout=240)
    assert (process.returncode, output) == (0, expected), errors
    assert not tree(cache)
