"""The engines that can make a run's steps: pilekit's own, and adapters around DeepSpeed and accelerate.

`protocol.py` says what an engine does. The adapters are for who has those packages, their launch scripts or their
habits: same config, same stream, same metrics, same checkpoints. Neither package is needed by pilekit, and none is
imported before a run asks for it.

What an adapter cannot do, `config.check` refuses by name, what it cannot do on a device or in a job, `build_engine`:
both before any memory is taken for a model.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

from pilekit.engine.ranks import Ranks
from pilekit.errors import PilekitError
from pilekit.evaluate.masked.model import MaskedLM
from pilekit.evaluate.model.causal import CausalLM
from pilekit.train.config import TrainConfig
from pilekit.train.engines.protocol import TrainEngine


def check_engine(config: TrainConfig, device: torch.device | None = None) -> None:
    """PilekitError where the package of `parallel.engine` is not installed, or cannot do it on `device` (if given)."""
    engine = config.parallel.engine
    if engine == "native":
        return
    if find_spec(engine) is None:
        raise PilekitError(
            f"parallel.engine = \"{engine}\": the package {engine} is not installed; pip install 'pilekit[{engine}]', "
            'or set "native"'
        )
    if engine == "accelerate" and config.parallel.zero and device is not None and device.type == "cpu":
        raise PilekitError(
            f"parallel.zero = {config.parallel.zero}: accelerate shards on GPUs only; set it to 0, or set "
            'parallel.engine = "native" or "deepspeed"'
        )


def build_engine(lm: CausalLM | MaskedLM, config: TrainConfig, ranks: Ranks) -> TrainEngine:
    """The engine of `parallel.engine`, which takes `lm` over: see `TrainEngine`. `check_engine` has passed."""
    if config.parallel.engine == "deepspeed":
        from pilekit.train.engines.deepspeed import DeepSpeedEngine

        return DeepSpeedEngine(lm, config, ranks)
    if config.parallel.engine == "accelerate":
        from pilekit.train.engines.accelerate import AccelerateEngine

        return AccelerateEngine(lm, config, ranks)
    from pilekit.train.step.engine import Engine

    return Engine(lm, config, ranks)
