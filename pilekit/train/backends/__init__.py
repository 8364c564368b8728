"""The packages that can make a run's steps: pilekit itself, and engines around DeepSpeed and accelerate.

`StepEngine` (step/step_engine.py) defines the calls. `package_engine.py` has the code that both share. Users of these
packages keep the same config, stream, metrics and checkpoints. Neither package is imported before a run asks for it.
`config.check` refuses settings that a package does not support, and `check_backend` a missing package or an unfit
device.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

from pilekit.errors import PilekitError, shortened
from pilekit.models.causal import CausalLM
from pilekit.models.masked import MaskedLM
from pilekit.train.config.backend_file import read_backend_file
from pilekit.train.config.sections import TrainConfig
from pilekit.train.model.attention import choose_attention
from pilekit.train.step.step_engine import StepEngine
from pilekit.train.step.teacher import Teacher
from pilekit.workers.ranks import Ranks


def check_backend(config: TrainConfig, device: torch.device | None = None) -> None:
    """Raise PilekitError if a package is missing that the run needs, or a feature of `device`, if that is given."""
    backend = config.parallel.backend
    on_gpu = device is not None and device.type == "cuda"
    if on_gpu and config.precision.dtype == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        name = shortened(torch.cuda.get_device_name(device), 60)
        raise PilekitError(f'precision.dtype = "bf16": {name} has no bfloat16; set "fp16" or "fp32"')
    fast, rank = config.model.attention_implementation, config.lora.rank
    attention = f'model.attention_implementation = "{fast}"'
    for is_needed, setting, package, install, instead in (
        (fast == "flash_attention_2", attention, "flash_attn", "install it", '"sdpa"'),
        (rank > 0, f"lora.rank = {rank}", "peft", "pip install 'pilekit[peft]'", "0"),
        (
            backend != "native",
            f'parallel.backend = "{backend}"',
            backend,
            f"pip install 'pilekit[{backend}]'",
            '"native"',
        ),
    ):
        if is_needed and find_spec(package) is None:
            raise PilekitError(f"{setting}: the package {package} is not installed; {install}, or set {instead}")
    if fast not in ("auto", "sdpa", "varlen") and device is not None and not on_gpu:
        raise PilekitError(f'{attention}: trains on a GPU only, and there is none; set "sdpa"')
    if backend == "accelerate" and config.parallel.zero and device is not None and device.type == "cpu":
        raise PilekitError(
            f"parallel.zero = {config.parallel.zero}: accelerate shards on GPUs only; set it to 0, or set "
            'parallel.backend = "native" or "deepspeed"'
        )
    if backend == "accelerate" and on_gpu and read_backend_file(config).get("use_cpu"):
        file = config.parallel.backend_config or ""
        raise PilekitError(f"{file}: use_cpu = true, but the run has a GPU; change it, or hide the GPU from the run")


def build_engine(
    lm: CausalLM | MaskedLM, config: TrainConfig, ranks: Ranks, teacher: CausalLM | MaskedLM | None = None
) -> StepEngine:
    """The `StepEngine` of `parallel.backend`, which takes over `lm` and `teacher`. Call `check_backend` first."""
    backend = config.parallel.backend
    if backend != "native" and not all(parameter.requires_grad for parameter in lm.model.parameters()):
        raise ranks.error(f'parallel.backend = "{backend}": frozen parameters are not supported there; set "native"')
    if backend == "deepspeed":
        from pilekit.train.backends.deepspeed import DeepSpeedEngine

        return DeepSpeedEngine(lm, config, ranks)
    if backend == "accelerate":
        from pilekit.train.backends.accelerate import AccelerateEngine

        return AccelerateEngine(lm, config, ranks)
    engine = StepEngine(lm, config, ranks, None if teacher is None else Teacher(teacher, config, ranks))
    choose_attention(engine, config)
    return engine
