"""The peers of the stream's benchmark: Hugging Face `datasets` and MosaicML's MDS, their scripts and requirements.

A script follows the names that bench_stream.py defines, and has a `prepare(path)` that returns numbers of tokens.
"""

from __future__ import annotations

DATASETS = """
import datasets, tokenizers, torch
tokenizer = tokenizers.Tokenizer.from_file(TOKENIZER)
tokenizer.encode_special_tokens = True
eos_id = tokenizer.token_to_id("<|endoftext|>")

def rows(texts):
    flat = []
    for encoding in tokenizer.encode_batch_fast(texts["text"], add_special_tokens=False):
        flat += encoding.ids
        flat.append(eos_id)
    return {"input_ids": [flat[i : i + SEQ_LEN] for i in range(0, len(flat) - SEQ_LEN + 1, SEQ_LEN)]}

def prepare(path):
    data = datasets.load_dataset("json", data_files=path, split="train", streaming=True)
    data = data.map(rows, batched=True, batch_size=256, remove_columns=["text", "meta"])
    return (torch.tensor(batch["input_ids"]).numel() for batch in data.iter(BATCH_SIZE))
"""
DATASETS_REQUIREMENTS = ["datasets==5.2.0", "tokenizers==0.23.3", "torch==2.13.0", "numpy==2.4.6", "zstandard==0.25.0"]

ROWS = """
import numpy
from pilekit import PileStream
settings = {"seq_len": SEQ_LEN, "batch_size": BATCH_SIZE, "packing": "concat", "epochs": 1, "shuffle": False}
stream = PileStream(SHARD, tokenizer=TOKENIZER, **settings)
numpy.save(FOLDER + "/rows.npy", numpy.concatenate([batch["input_ids"].numpy().astype("int32") for batch in stream]))
print(0)
"""

WRITE_MDS = """
import numpy
from streaming import MDSWriter
rows = numpy.load(FOLDER + "/rows.npy", mmap_mode="r")
for path, part in ((WARM_UP, rows[:64]), (SHARD, rows)):
    with MDSWriter(out=path + ".mds", columns={"input_ids": "ndarray:int32:%d" % SEQ_LEN}) as writer:
        for row in part:
            writer.write({"input_ids": numpy.ascontiguousarray(row)})
print(0)
"""

MOSAIC = """
import torch
from streaming import StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

def collate(samples):
    return torch.stack([torch.from_numpy(sample["input_ids"].astype("int64")) for sample in samples])

def prepare(path):
    clean_stale_shared_memory()
    dataset = StreamingDataset(local=path + ".mds", batch_size=BATCH_SIZE, shuffle=False)
    return (batch.numel() for batch in DataLoader(dataset, batch_size=BATCH_SIZE, collate_fn=collate))
"""

# Its own requirements pin old transformers and xxhash, on which pip searches for minutes. So it gets, with --no-deps,
# the packages that its import needs; but torchvision, for its image datasets, is a stand-in, because each version fits
# one build of torch only.
MOSAIC_STAND_IN = """
import types
import transformers.feature_extraction_utils  # looks for torchvision too, and must not find the stand-in
vision = {name: types.ModuleType(name) for name in (
    "torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional")}
vision["torchvision.datasets"].VisionDataset = object
vision["torchvision.transforms.functional"].to_tensor = None
sys.modules.update(vision)
"""
MOSAIC_REQUIREMENTS = [
    "mosaicml-streaming==0.13.0",
    "annotated-doc==0.0.7",
    "anyio==4.16.0",
    "brotli==1.2.1",
    "catalogue==2.0.10",
    "certifi==2026.10.18",
    "click==8.5.1",
    "cramjam==2.14.0",
    "filelock==4.2.11",
    "fsspec==2026.9.0",
    "h11==0.16.0",
    "hf-xet==1.8.0",
    "httpcore2==2.16.2",
    "httpx2==2.16.2",
    "huggingface_hub==2.4.0",
    "idna==3.20",
    "Jinja2==3.1.6",
    "MarkupSafe==3.0.4",
    "mpmath==1.3.0",
    "networkx==3.6.1",
    "numpy==2.4.6",
    "packaging==26.3",
    "pillow==13.0.0",
    "python-snappy==0.7.3",
    "PyYAML==6.0.3",
    "regex==2026.11.15",
    "safetensors==0.8.0",
    "sympy==1.14.0",
    "tokenizers==0.23.3",
    "torch==2.13.0",
    "tqdm==4.70.1",
    "transformers==5.23.0",
    "truststore==0.10.5",
    "typer==0.29.2",
    "typing_extensions==4.16.0",
    "xxhash==4.1.0",
    "zstd==1.5.7.2",
]
