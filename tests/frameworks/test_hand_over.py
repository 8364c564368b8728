"""The code and the configs of docs/hand-over.md in the real packages, on files and a model that pilekit made.

A section's Python is saved under the name in its first line, or run; its commands run as they stand. Then a check,
in the package's own environment, looks at what came of it. `pilekit ...` runs with the Python of these tests.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, GPTNeoXConfig

from pilekit import TokenFile, Trainer, bits_per_byte, load_config
from pilekit.artifacts.file_lock import locked
from tests.benchmarks.bpb.lm_eval_peer import REQUIREMENTS as LM_EVAL
from tests.benchmarks.peers import BENCH, peer_environment
from tests.frameworks.environment import ROOT, SETTINGS
from tests.stream.corpora import made
from tests.tiny.models import tiny_tokenizer
from tests.tokenize.files.test_real_text import OLMO_CORE
from tests.tokenize.files.test_real_text import REQUIREMENTS as TOKEN_READERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# With --no-deps on top of this Python's packages: torchtitan and litgpt ask for older versions than pilekit has.
HAND_OVER = [
    "torchtitan==0.3.0",
    "torchdata==0.11.0",
    "torch_checkpointing==0.1.0",
    "spmd_types==0.2.3",
    "tyro==1.0.17",
    "docstring_parser==0.18.0",
    "einops==0.8.2",
    "trl==1.16.0",
    "accelerate==1.15.0",
    "datasets==4.7.0",
    "pandas==3.1.1",
    "pytz==2026.6",
    "six==1.17.0",
    "tzdata==2026.6",
    "python-dateutil==4.0.0",
    "dill==0.4.1",
    "multiprocess==0.70.19",
    "litgpt==0.5.13",
    "lightning==2.6.6",
    "lightning-utilities==0.15.3",
    "torchmetrics==1.9.0",
    "jsonargparse==4.41.0",
    "typeshed_client==2.15.0",
]

PAGE = (ROOT / "docs" / "hand-over.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))

SHAPE = GPTNeoXConfig(
    vocab_size=50304,
    hidden_size=128,
    num_hidden_layers=6,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=512,
    bos_token_id=0,
    eos_token_id=0,
)
"""Pythia-14M's, with the vocabulary that litgpt gives it."""

Check = Callable[..., str]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/train, data/val.jsonl, tokenizer.json and runs/run/model, which `pilekit train` made."""
    folder = tmp_path_factory.mktemp("hand-over")
    made(folder / "data" / "train", [1100, 1100])
    texts = ["the quick brown fox", "def f(x): return 12345", "läuft über die Straße " * 30]
    lines = [json.dumps({"text": text, "meta": {"pile_set_name": "ArXiv"}}) for text in texts]
    (folder / "data" / "val.jsonl").write_text("\n".join(lines) + "\n")
    tiny_tokenizer(folder)
    SHAPE.save_pretrained(folder / "shape")
    config = {
        "data": {"path": f"{folder}/data/train", "tokenizer": f"{folder}/tokenizer.json", "seq_len": 64, "window": 8},
        "model": {"config": f"{folder}/shape"},
        "train": {"steps": 1, "global_batch_size": 2, "micro_batch_size": 2},
    }
    Trainer(load_config(config), folder / "runs" / "run").fit()
    return folder


@pytest.fixture
def folder(left: Path, tmp_path: Path) -> Path:
    """The test's own copy."""
    return Path(shutil.copytree(left, tmp_path / "copy"))


def environment(name: str, requirements: list[str], *arguments: str) -> Path:
    """The folder of the environment's programs."""
    with locked(BENCH / f"{name}.lock"):
        return peer_environment(name, requirements, arguments or ["--no-deps"], on_top=True).parent


def run(command: list[str], folder: Path, programs: Path) -> str:
    """What a command prints, with these programs before others."""
    own = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": ".", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **SETTINGS, **own, "TORCHDYNAMO_DISABLE": "1"},  # compiling a small model takes a minute
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def follow(title: str, folder: Path, programs: Path, check: str = "") -> None:
    """Do what the section shows, in its order; `check` runs behind its last Python that has no name, or alone."""
    unnamed = ""
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", SECTIONS[title], re.MULTILINE | re.DOTALL):
        if (name := re.match(r"# (\S+\.(?:py|yaml))\n", block)) is not None:
            (folder / name[1]).parent.mkdir(exist_ok=True)
            (folder / name[1]).write_text(block, encoding="utf-8")
        elif language == "python":
            unnamed = block
        for line in block.splitlines() if language == "console" else ():
            words = shlex.split(line.removeprefix("$ "))
            own = [sys.executable, "-P", "-m", "pilekit.cli.main"]
            words = own + words[1:] if words[0] == "pilekit" else words
            run(words, folder, programs)
    if unnamed or check:
        (folder / "script.py").write_text(f"{unnamed}\n{check}\n", encoding="utf-8")
        run(["python", "script.py"], folder, programs)


TITAN = """
import torch
from torch import distributed as dist
from torchtitan.distributed.parallel_dims import ParallelDims
import torchtitan.distributed.parallel_dims as module
from torch.testing._internal.distributed.fake_pg import FakeStore
from pile_loader import PileLoader
from pilekit import PileStream

module.device_type = "cpu"
settings = {"seq_len": 64, "local_batch_size": 4}
alone = list(zip(range(3), PileStream("data/train", tokenizer="tokenizer.json", seq_len=64, batch_size=8)))
seen = {}
for rank in range(16):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=16)
    dims = ParallelDims(dp_replicate=1, dp_shard=2, cp=2, tp=2, pp=2, ep=1, world_size=16)
    dims.build_mesh()
    batch = dims.get_mesh("batch")
    assert batch.size() == 2
    seen.setdefault(batch.get_local_rank(), []).append(rank)
    if len(seen[batch.get_local_rank()]) == 1:
        place = {"dp_rank": batch.get_local_rank(), "dp_world_size": 2, "tokenizer": None}
        loader = PileLoader.Config().build(**place, **settings, snapshot_every_n_steps=1)
        rows = iter(loader)
        first = [next(rows) for _ in range(2)]
        again = PileLoader.Config().build(**place, **settings)
        again.load_state_dict(loader.state_dict())
        got = [*first, next(iter(again))]
        assert all(torch.equal(one, other) for one, other in zip(next(rows)[0].values(), got[2][0].values()))
        for (inputs, labels), (_, whole) in zip(got, alone):
            assert inputs["input"].shape == labels.shape == (4, 64)
            ids = whole["input_ids"]
            places = [next(i for i in range(8) if torch.equal(ids[i], row)) for row in inputs["input"]]
            assert torch.equal(inputs["positions"], whole["position_ids"][places])
            assert torch.equal(labels[:, :-1], whole["labels"][places][:, 1:])
            assert (labels[:, -1] == -100).all()
            follows = labels[:, :-1] != -100
            assert torch.equal(labels[:, :-1][follows], inputs["input"][:, 1:][follows])
            seen.setdefault("rows", []).append(tuple(places))
    dist.destroy_process_group()
assert {key: len(ranks) for key, ranks in seen.items() if key != "rows"} == {0: 8, 1: 8}
for step in range(3):
    assert sorted(seen["rows"][step] + seen["rows"][3 + step]) == list(range(8))
"""


def test_torchtitan_ranks_of_one_batch_rank_get_the_same_rows(folder: Path) -> None:
    """Of 16 ranks in two pipeline, context and tensor groups, eight share a batch rank; together they get all rows."""
    follow("torchtitan", folder, environment("hand-over", HAND_OVER), TITAN)


MEGATRON = """
import numpy as np
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from pilekit import TokenFile

class Tokenizer:
    unique_identifiers = {"class": "tokenizer.json"}
    eod, pad, vocab_size = 0, 1, 300

opened = TokenFile("tokens/pile")
documents = {tuple(ids.tolist()) for ids in opened}
rows = opened.tokens // 128 - 1
config = GPTDatasetConfig(
    random_seed=0, sequence_length=128, blend=(["tokens/pile_text_document"], None), split="100,0,0",
    path_to_cache="cache", tokenizer=Tokenizer(), reset_position_ids=True, reset_attention_mask=True,
    eod_mask_loss=False,
)
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
(data, *_) = BlendedMegatronDatasetBuilder(GPTDataset, [rows, 0, 0], lambda: True, config).build()
whole = 0
for number in range(0, rows, 3):
    row = data[number]
    ids = row["tokens"].tolist()
    assert ids[1:] == row["labels"].tolist()[:-1]
    ends = [place for place, id in enumerate(ids) if id == 0]
    for begin, end in zip(ends, ends[1:]):
        assert tuple(ids[begin + 1 : end + 1]) in documents
        whole += 1
assert whole > 100, whole
"""


def test_megatron_reads_the_token_files_as_documents(folder: Path) -> None:
    follow("Megatron-LM and GPT-NeoX", folder, environment("token-readers", TOKEN_READERS), MEGATRON)
    (neox,) = re.findall(r"^```json\n(.*?)^```$", SECTIONS["Megatron-LM and GPT-NeoX"], re.MULTILINE | re.DOTALL)
    config = json.loads(neox)
    assert (folder / f"{config['data_path']}.bin").exists()
    assert (folder / f"{config['data_path']}.idx").exists()
    assert TokenFile(folder / config["data_path"].removesuffix("_text_document")).tokens > 10_000
    assert (folder / config["vocab_file"]).exists()


NANOTRON = """
import numpy as np
import yaml
from datatrove.utils.dataset import DatatroveFolderDataset

data = yaml.safe_load(open("nanotron.yaml"))["data_stages"][0]["data"]["dataset"]
rows = DatatroveFolderDataset(
    data["dataset_folder"], filename_pattern="*.ds", seq_len=128,
    recursive=False, token_size=data["token_size_in_bytes"], shuffle=False,
)
flat = np.fromfile("tokens/ds/pile-00000.ds", np.uint16)
assert flat.max() < data["vocab_size"]
assert len(rows) == len(flat) // 129 > 100
assert np.array_equal(np.concatenate([rows[number]["input_ids"] for number in range(50)]), flat[: 50 * 129])
"""


def test_nanotron_has_its_rows(folder: Path) -> None:
    follow("nanotron", folder, environment("token-readers", TOKEN_READERS), NANOTRON)


OLMO = """
import numpy as np

flat = np.fromfile("tokens/olmo-00000.npy", np.uint16)
assert len(dataset) == len(flat) // 128 > 100
for number in range(0, len(dataset), 5):
    row = dataset[number]
    assert np.array_equal(row["input_ids"].numpy(), flat[128 * number : 128 * (number + 1)])
    ends = np.flatnonzero(flat[128 * number : 128 * (number + 1) - 1] == 0) + 1
    assert row["doc_lens"].tolist() == np.diff([0, *ends, 128]).tolist()
"""


def test_olmo_core_has_its_rows(folder: Path) -> None:
    follow("OLMo-core", folder, environment("olmo-core", OLMO_CORE), OLMO)


LITGPT = """
import torch
from litgpt import GPT, Config
from pilekit import PileStream
from transformers import AutoModelForCausalLM
from pile_data import Pile

data = Pile()
data.connect(batch_size=2, max_seq_length=64)
stream = PileStream("data/train", tokenizer="tokenizer.json", packing="concat", seq_len=65, batch_size=2)
for _, rows, batch in zip(range(3), data.train_dataloader(), stream):
    assert rows.shape == (2, 65) and torch.equal(rows, batch["input_ids"])

model = GPT(Config.from_name("pythia-14m"))
model.load_state_dict(torch.load("runs/run/model/lit_model.pth"))
theirs = AutoModelForCausalLM.from_pretrained("runs/run/model")
with torch.no_grad():
    assert torch.allclose(model(rows), theirs(rows).logits, atol=1e-4)
"""


def test_litgpt_trains_on_the_stream_and_takes_the_model(folder: Path) -> None:
    follow("litgpt", folder, environment("hand-over", HAND_OVER), LITGPT)
    assert (folder / "runs" / "litgpt" / "final" / "lit_model.pth").exists()


TRL = """
import torch
from transformers import AutoModelForCausalLM

assert trainer.state.global_step == 1
assert -20 < trainer.state.log_history[-1]["reward"] <= 0
before, after = (AutoModelForCausalLM.from_pretrained(run + "/model") for run in ("runs/run", "runs/grpo"))
assert before.config.architectures == after.config.architectures
"""


def test_trl_trains_the_model_and_pilekit_scores_it(folder: Path) -> None:
    follow("TRL", folder, environment("hand-over", HAND_OVER), TRL)
    assert bits_per_byte(folder / "runs" / "grpo" / "model", folder / "data" / "val.jsonl").overall.bpb > 0


def test_the_harness_scores_its_task_as_pilekit_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
    programs = environment("lm-eval", LM_EVAL, "--constraint", str(ROOT / "constraints.txt"))
    follow("lm-evaluation-harness", folder, programs)
    (written,) = (folder / "runs" / "lm-eval").rglob("results_*.json")
    found = json.loads(written.read_text())
    ours = bits_per_byte(folder / "runs" / "run" / "model", folder / "data" / "val.jsonl").overall
    assert found["n-samples"]["pile_val"]["effective"] == ours.documents == 3
    assert found["results"]["pile_val"]["bits_per_byte,none"] == pytest.approx(ours.bpb, rel=1e-6)


def test_the_folder_has_what_servers_of_models_read(folder: Path) -> None:
    """No server runs here: vLLM needs a GPU, llama.cpp's converter an older transformers."""
    model_dir = folder / "runs" / "run" / "model"
    config = json.loads((model_dir / "config.json").read_text())
    assert config["architectures"] == ["GPTNeoXForCausalLM"]
    assert config["eos_token_id"] == 0
    assert (config["rotary_pct"], config["rotary_emb_base"]) == (0.25, 10_000)
    tokenizer = json.loads((model_dir / "tokenizer_config.json").read_text())
    assert tokenizer["eos_token"] == "<|endoftext|>"
    assert (model_dir / "tokenizer.json").exists()
    assert (model_dir / "generation_config.json").exists()
    wanted = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_dir)).state_dict()
    with safe_open(model_dir / "model.safetensors", "pt") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    shapes = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    assert found == {name.replace("lm_head", "embed_out"): shape for name, shape in shapes.items()}  # as published


def test_every_section_has_a_row_in_the_table_of_the_page() -> None:
    listed = set(re.findall(r"^\| \[[^\]]*\]\(#([\w-]+)\)", PAGE, re.MULTILINE))
    assert listed == {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in SECTIONS}


def test_every_yaml_of_the_page_is_yaml() -> None:
    for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        assert isinstance(yaml.safe_load(block), dict)
