"""Tiny masked language models, and a tokenizer like RoBERTa's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Tokenizer, processors
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    DistilBertConfig,
    IBertConfig,
    MegatronBertConfig,
    MobileBertConfig,
    RobertaConfig,
)

from pilekit.models.load import MASKED, attention_of
from pilekit.models.masked import MaskedLM, as_masked_lm
from pilekit.tokenize import train_tokenizer
from tests.tiny.models import SHAPE

FAMILIES = ("bert", "roberta", "distilbert")
VOCABULARY = SHAPE["vocab_size"]
PAD = 1


def config_of(family: str, *, dropout: float = 0.0) -> Any:
    """The configuration of a tiny model whose predictions are far from uniform; it has positions for 40 tokens."""
    common: dict[str, Any] = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "initializer_range": 0.2}
    if family == "distilbert":
        return DistilBertConfig(
            **common,
            dim=32,
            n_layers=2,
            n_heads=4,
            hidden_dim=64,
            max_position_embeddings=40,
            dropout=dropout,
            attention_dropout=dropout,
        )
    kind: Any = {"bert": BertConfig, "roberta": RobertaConfig, "megatron": MegatronBertConfig, "ibert": IBertConfig}[
        family
    ]
    return kind(
        **SHAPE | common,
        max_position_embeddings=40 if family == "bert" else 40 + PAD + 1,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )


def made_of(config: Any) -> Any:
    auto: Any = AutoModelForMaskedLM
    return auto.from_config(config, attn_implementation=attention_of(config, MASKED))


def mobile_bert() -> Any:
    """A model whose head has more than a last matrix."""
    torch.manual_seed(0)
    config = MobileBertConfig(
        **SHAPE,
        max_position_embeddings=40,
        embedding_size=16,
        intra_bottleneck_size=16,
        initializer_range=0.2,
        pad_token_id=PAD,
    )
    return made_of(config).eval()


def called(model: Any, ids: Tensor) -> Tensor:
    """The logits of a model that is called only with ids, as other libraries call it."""
    with torch.no_grad():
        return cast("Tensor", model.eval()(input_ids=ids).logits)


def tiny(family: str, *, dtype: torch.dtype = torch.float64) -> MaskedLM:
    torch.manual_seed(0)
    model = made_of(config_of(family)).to(dtype).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # which begin at 0, as if there were none
            torch.nn.init.normal_(parameter, std=0.2)
    return as_masked_lm(model)


def roberta_tokenizer(corpus: Path, folder: Path, vocab_size: int = 300) -> Path:
    """A byte-level BPE `tokenizer.json` trained on `corpus`, with RoBERTa's special tokens at its end, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = train_tokenizer(corpus, vocab_size, folder / "tokenizer.json").path
    made: Any = Tokenizer.from_file(str(file))
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<mask>"])
    cls, sep = (("<s>", made.token_to_id("<s>")), ("</s>", made.token_to_id("</s>")))
    made.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=False)
    made.save(str(file))
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    return file


def roberta_dir(corpus: Path, folder: Path) -> Path:
    """A masked model_dir as users have it: config.json, model.safetensors, tokenizer.json and its config."""
    roberta_tokenizer(corpus, folder)
    cast("Any", tiny("roberta", dtype=torch.float32).model).save_pretrained(folder)
    return folder
