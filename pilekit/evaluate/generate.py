"""`generate`: how a model continues prompts, through transformers' own `generate`.

Greedy continuations are made in batches of prompts of one length, so nothing is padded and nothing masked. A drawn
continuation is made alone, from a seed of its own that depends on `seed` and on the prompt's place in the list. So no
continuation depends on the other prompts. generation_config.json in the folder is ignored, because its penalties and
beams would change what "greedy" means.

A prompt begins as a document does for `bits_per_byte`: behind the token BOS, or else EOS, if the tokenizer has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from pilekit.artifacts.checked import checked
from pilekit.artifacts.settings import Count, Seed
from pilekit.corpus import Corpus, Described, subsets_or_all
from pilekit.corpus.shuffle import mix
from pilekit.display.progress import Reached
from pilekit.errors import PilekitError, counted, shortened
from pilekit.evaluate.score_plan import prefix_token
from pilekit.evaluate.score_ranks import single_rank
from pilekit.evaluate.settings import Data
from pilekit.models.causal import CausalLM, as_causal_lm, check_vocabulary, load_causal_lm, predicting
from pilekit.models.device import device_of, dtype_of
from pilekit.models.load import stored_dtype
from pilekit.shards.read.reader import OnError, read
from pilekit.tokenize import Tokenizer, load_tokenizer

_AT_A_TIME = 16
"""Prompts of a batch."""


@dataclass(frozen=True)
class Prompt:
    """A text to continue.

    tokens   the ids of `text`; None: as the tokenizer divides it. The beginning of a document has its ids here, because
             the tokenizer may divide the text of a beginning otherwise
    shard, number, subset   the document that begins so, if it is from a corpus
    """

    text: str
    tokens: tuple[int, ...] | None = None
    shard: str | None = None
    number: int | None = None
    subset: str | None = None


@dataclass(frozen=True)
class Continuation:
    """A prompt and how a model continues it.

    text     the text that follows the prompt, without the end-of-document token
    tokens   the ids of `text`
    ended    whether the model ended the document; else it has `max_new_tokens`
    model    the folder, or "the model" for one in memory
    """

    prompt: Prompt
    text: str
    tokens: tuple[int, ...]
    ended: bool
    model: str

    def to_dict(self) -> dict[str, Any]:
        """{prompt, text, model, tokens, ended}, and the document of a prompt from a corpus; JSON types."""
        prompt = asdict(self.prompt)
        document = {name: prompt[name] for name in ("shard", "number", "subset") if prompt[name] is not None}
        continuation = {"prompt": self.prompt.text, "text": self.text, "model": self.model, "tokens": len(self.tokens)}
        return {**continuation, "ended": self.ended, **document}


def generate(
    model: str | Path | PreTrainedModel,
    prompts: Sequence[str | Prompt],
    *,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    tokenizer: Any = None,
    dtype: str = "auto",
    device: str = "auto",
    reached: Reached | None = None,
) -> list[Continuation]:
    """Continue each prompt, in their order.

    model            a folder with config.json, safetensors and tokenizer.json, or a model of transformers
    max_new_tokens   the most tokens of a continuation; the model may end the document earlier
    temperature      0: always the likeliest token; else tokens are drawn from the softmax of logits / temperature
    top_p            draw only from the likeliest tokens that together have this probability
    seed             of the draws
    tokenizer        an argument of `load_tokenizer`; None: the folder's
    dtype, device    as for `bits_per_byte`
    reached          called with the numbers of prompts continued and of all

    PilekitError for a model that is not causal, and for a prompt that leaves no room in the model's positions.
    """
    checked(max_new_tokens, Count, "max_new_tokens")
    checked(seed, Seed, "seed")
    if not 0 <= temperature < float("inf") or not 0 < top_p <= 1:
        raise PilekitError(f"temperature is 0 or more and top_p over 0 and up to 1, not {temperature} and {top_p}")
    in_memory = isinstance(model, PreTrainedModel)
    if in_memory and tokenizer is None:
        raise PilekitError("a model in memory needs its tokenizer; give it as tokenizer=")
    name = "the model" if in_memory else str(model)
    loaded = load_tokenizer(model if tokenizer is None else tokenizer)
    if isinstance(model, PreTrainedModel):
        lm = as_causal_lm(model)
    else:
        where = device_of(device, single_rank())
        lm = load_causal_lm(model, dtype=dtype_of(dtype, where, stored_dtype(model)), device=where)
    check_vocabulary(lm.model, loaded, name)
    rules: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "seed": seed, "reached": reached}
    return continued(lm, loaded, prompts, name, max_new_tokens=max_new_tokens, **rules)


def continued(
    lm: CausalLM,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Prompt],
    name: str,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    reached: Reached | None = None,
    in_step: bool = False,
) -> list[Continuation]:
    """`generate` for a loaded model called `name`.

    in_step   all processes of the job make this call and as many forward passes, because parameters are sharded
    """
    prompt_list = [Prompt(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    inputs = [_input_ids(prompt, lm, tokenizer, max_new_tokens) for prompt in prompt_list]
    end = tokenizer.eos_id
    settings = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=max_new_tokens,
        do_sample=temperature > 0,
        **({"temperature": temperature, "top_p": top_p, "top_k": 0} if temperature > 0 else {}),
        eos_token_id=end,
        pad_token_id=0 if end is None else end,  # behind the end of a continuation, where it is cut off
    )
    continuations: dict[int, Continuation] = {}
    by_length = sorted(range(len(prompt_list)), key=lambda place: len(inputs[place]))
    for _, same_length in groupby(by_length, key=lambda place: len(inputs[place])):
        places, size = list(same_length), 1 if temperature > 0 else _AT_A_TIME
        for batch in (places[begin : begin + size] for begin in range(0, len(places), size)):
            draw = int(mix(seed, batch[0])) >> 1
            new_ids = _continued_ids(lm, [inputs[place] for place in batch], settings, draw, in_step=in_step)
            for place, ids in zip(batch, new_ids, strict=True):
                ended = end is not None and end in ids
                tokens = tuple(ids[: ids.index(end)] if ended and end is not None else ids)
                continuations[place] = Continuation(prompt_list[place], tokenizer.decode(tokens), tokens, ended, name)
            if reached is not None:
                reached(len(continuations), len(prompt_list))
    return [continuations[place] for place in range(len(prompt_list))]


def prompts_of(
    data: Data,
    tokenizer: Any,
    *,
    tokens: int = 32,
    per_subset: int = 1,
    subsets: Sequence[str] | None = None,
    manifest: Described = None,
    most: int | None = None,
    on_error: OnError = "raise",
) -> list[Prompt]:
    """The first tokens of documents of a corpus, in its order.

    data         a path, glob or URL, several of them, a `Corpus`, or None, as for `bits_per_byte`
    tokenizer    an argument of `load_tokenizer`
    tokens       tokens of each prompt; documents that are not longer are left out
    per_subset   documents of each subset, from the first
    subsets      only documents of these subsets; None: all
    manifest     describes the corpus at a path, as for `Corpus`
    most         the most prompts; None: any number
    """
    checked(tokens, Count, "tokens")
    checked(per_subset, Count, "per_subset")
    loaded, corpus = load_tokenizer(tokenizer), Corpus.of(data, manifest).only_held_out()
    exact_subsets = subsets_or_all(subsets, corpus.manifest)
    missing_prompts = dict.fromkeys(exact_subsets or [subset.name for subset in corpus.manifest.subsets], per_subset)
    chosen_prompts = []
    for shard in corpus.shards:
        with read(shard, exact_subsets, on_error, manifest=corpus.manifest) as reader:
            for batch in reader:
                for text, subset, number in zip(batch.texts, batch.subsets, batch.numbers.tolist(), strict=True):
                    if not missing_prompts.setdefault(subset, per_subset):
                        continue
                    ids = loaded.encode_batch([text])[0][: tokens + 1].tolist()
                    if len(ids) > tokens:
                        missing_prompts[subset] -= 1
                        prompt_ids = tuple(ids[:tokens])
                        chosen_prompts.append(
                            Prompt(loaded.decode(prompt_ids), prompt_ids, batch.shard, number, subset)
                        )
                        if len(chosen_prompts) == most:
                            return chosen_prompts
                if missing_prompts and not any(missing_prompts.values()):
                    return chosen_prompts
    if not chosen_prompts:
        raise PilekitError(
            f"{corpus.root}: no document selected is longer than {counted(tokens, 'token')}; give fewer tokens"
        )
    return chosen_prompts


def _input_ids(prompt: Prompt, lm: CausalLM, tokenizer: Tokenizer, new: int) -> list[int]:
    """The ids that the model sees; PilekitError if there are none, or if its positions do not suffice."""
    prefix = prefix_token("auto", tokenizer, lm.model) if (tokenizer.bos_id, tokenizer.eos_id) != (None, None) else None
    ids = tokenizer.encode_batch([prompt.text])[0].tolist() if prompt.tokens is None else list(prompt.tokens)
    ids = ids if prefix is None else [prefix, *ids]
    if not ids:
        raise PilekitError("a prompt is empty, and the tokenizer has no token to begin a document with")
    if lm.max_length is not None and len(ids) + new > lm.max_length:
        raise PilekitError(
            f'the prompt "{shortened(prompt.text, 40)}" has {counted(len(ids), "token")}, and {new:,} more do not fit '
            f"into the model's {lm.max_length:,} positions; give a shorter prompt, or fewer new tokens"
        )
    return ids


def _continued_ids(
    lm: CausalLM, inputs: list[list[int]], settings: GenerationConfig, seed: int, *, in_step: bool
) -> list[list[int]]:
    """The ids that follow each of `inputs`, which have one length."""
    ids = torch.tensor(inputs, device=lm.model.device)
    generator: Any = lm.model
    devices = [ids.device] if ids.device.type == "cuda" else []
    model_config, generator.generation_config = generator.generation_config, settings  # else its fields fill unset ones
    try:
        with predicting(lm.model), torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            mask = torch.ones_like(ids)
            sequences = generator.generate(ids, attention_mask=mask, generation_config=settings, synced_gpus=in_step)
    finally:
        generator.generation_config = model_config
    return [row[ids.shape[1] :] for row in sequences.tolist()]
