"""DeepSpeed under the optimisation loop: ZeRO 1 to 3, with weights and moments read and written
whole, by name.

DeepSpeed keeps optimizer states (1), gradients too (2), or weights too (3) in parts, one on each
rank. Everything that leaves this module is whole again: a saved state has the same names and shapes
under every ZeRO stage and number of ranks, so that a run goes on under another, and there is no
conversion of checkpoints and no pickle.

Gradients are sums over ranks, as everywhere here: DeepSpeed takes means, which the loss is scaled
up for.
"""

import copy
import functools
import logging
import warnings
from typing import Any, Generic, cast

import torch
from torch import nn

from tracerl import distributed
from tracerl.errors import TrainingError
from tracerl.settings.models import Launch
from tracerl.settings.training import Optimizer
from tracerl.training.master_weights import Model, adamw, trainable_parameters

_MOMENTS = ("exp_avg", "exp_avg_sq")
_GATHER_SIZE = 16  # parameters gathered together
MAX_WHOLE_NUMBERS = 100_000  # parameters of no more numbers stay whole under ZeRO 3


class Sharded(Generic[Model]):
    """A model under ZeRO. `model` is what losses are computed with: the given one, or under ZeRO 3
    a copy of it that is kept in parts."""

    def __init__(self, model: Model, settings: Optimizer, launch: Launch) -> None:
        self.full_model, self.zero = model, launch.zero
        self.model = copy.deepcopy(model) if self.zero == 3 else model
        self.stale = False
        kind = next(model.parameters()).dtype
        zero: dict[str, Any] = {"stage": self.zero}
        if self.zero == 3:
            zero["stage3_param_persistence_threshold"] = MAX_WHOLE_NUMBERS
        if launch.offload:
            zero["offload_optimizer"] = {"device": "cpu"}
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": settings.clip_norm,
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "bf16": {"enabled": kind == torch.bfloat16},
        }
        optimizer = adamw(trainable_parameters(self.model).values(), settings)
        self.engine = _import_deepspeed().initialize(
            model=self.model, optimizer=optimizer, config=config
        )[0]
        self.parameters = trainable_parameters(self.model)

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Adds the gradients of a micro-batch; on the last one of a step they are complete on every
        rank."""
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss * distributed.size(), scale_wrt_gas=False)
        # DeepSpeed would do this in its forward, which the losses do not go through: the next
        # micro-batch adds to this one's gradients.
        self.engine.optimizer.clear_backward_seen_flag()

    def step(self, rate: float) -> float:
        """One optimizer step; the norm of the gradients before clipping."""
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        self.engine.step()
        self.stale = True
        return float(self.engine.get_global_grad_norm())

    def sync_model(self) -> None:
        """Copies ZeRO-3 shards back into the full model. All ranks must call it."""
        if self.zero == 3 and self.stale:
            pairs = list(zip(self.model.parameters(), self.full_model.parameters(), strict=True))
            gather = _import_deepspeed().zero.GatheredParameters
            for first in range(0, len(pairs), _GATHER_SIZE):
                part = pairs[first : first + _GATHER_SIZE]
                with gather([source for source, _ in part]), torch.no_grad():
                    for source, target in part:
                        target.copy_(source)
        self.stale = False

    def state(self) -> dict[str, torch.Tensor]:
        """Trained weights in float32 or wider and moments, whole, on the first rank; nothing on the
        others. All ranks must call it."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        tensors: dict[str, torch.Tensor] = {}
        states = list(self.engine.optimizer.optimizer.state.values())
        begun = bool(states) and float(states[0]["step"]) > 0
        for name, parameter in self.parameters.items():
            whole = {f"model.{name}": safe_get_full_fp32_param(parameter)}
            for key in _MOMENTS if begun else ():
                whole[f"optimizer.{key}.{name}"] = safe_get_full_optimizer_state(parameter, key)
            if distributed.is_first():
                tensors |= {key: tensor.cpu() for key, tensor in whole.items()}
                tensors |= {f"optimizer.step.{name}": states[0]["step"].clone()} if begun else {}
        return tensors

    def load_state(self, tensors: dict[str, torch.Tensor], num_steps: int) -> None:
        """Continues from what `state` returned, whatever the ZeRO stage and the number of ranks
        were."""
        if num_steps:
            self._make_moments()
        for name, parameter in self.parameters.items():
            value = tensors[f"model.{name}"].to(parameter.device)
            self._set(parameter, value)
            if self.zero == 3:
                with (
                    _import_deepspeed().zero.GatheredParameters([parameter], modifier_rank=0),
                    torch.no_grad(),
                ):
                    parameter.copy_(value)
            for key in _MOMENTS if num_steps else ():
                # A state of plain AdamW has no moments of parameters that no loss has reached yet.
                moment = (
                    tensors[f"optimizer.{key}.{name}"]
                    if f"optimizer.step.{name}" in tensors
                    else torch.zeros_like(value)
                )
                self._set(parameter, moment.to(parameter.device), key)
        for state in self.engine.optimizer.optimizer.state.values():
            state["step"].fill_(num_steps)
        if self.zero < 3:  # the weights that forward passes use follow the wide ones
            self.engine.optimizer.update_lp_params()
        self.stale = True

    def _make_moments(self) -> None:
        """Makes the moments, of any value, that DeepSpeed would make in its first step."""
        if self.zero == 3:
            for part in self.engine.optimizer.fp32_partitioned_groups_flat:
                moments = {key: torch.zeros_like(part) for key in _MOMENTS}
                self.engine.optimizer.optimizer.state[part] = {"step": torch.tensor(0.0), **moments}
        else:  # a zero-gradient step makes DeepSpeed allocate and link the moments
            self.backward(
                sum(
                    (parameter.sum() * 0 for parameter in self.parameters.values()), torch.zeros(())
                ),
                last=True,
            )
            self.step(0.0)

    def _set(self, parameter: nn.Parameter, value: torch.Tensor, moment: str | None = None) -> None:
        """Puts a whole tensor into the parts of a parameter's wide weights, or of one of its
        moments."""
        from deepspeed.utils import (
            safe_set_full_fp32_param,
            safe_set_full_optimizer_state,
            safe_set_local_fp32_param,
            safe_set_local_optimizer_state,
        )

        if self.zero < 3:
            set_weights, set_moment = safe_set_full_fp32_param, safe_set_full_optimizer_state
        else:  # its way for whole tensors fails where the number of ranks does not divide them
            set_weights, set_moment = safe_set_local_fp32_param, safe_set_local_optimizer_state
            size = cast(Any, parameter).ds_tensor.numel()
            padded = torch.cat(
                [value.flatten(), value.new_zeros(size * distributed.size() - value.numel())]
            )
            value = padded[size * distributed.rank() :][:size]
        if moment is None:
            set_weights(parameter, value)
        else:
            set_moment(parameter, value, moment)


@functools.cache
def _import_deepspeed() -> Any:
    """The package, told where it runs. Imported here: it costs seconds and is optional."""
    try:
        import deepspeed
    except ImportError as error:
        raise TrainingError(
            "DeepSpeed is not installed",
            where="launch.zero",
            got=error,
            wanted="launch.zero: 0, or the package",
            do="pip install 'tracerl[deepspeed]'",
        ) from error
    deepspeed.utils.logger.setLevel(logging.ERROR)
    # Of functions that DeepSpeed calls by their old names.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.", FutureWarning)
    if not torch.cuda.is_available():
        # Its shared-memory collectives are compiled at first use, for a minute; gloo's do.
        compatible = getattr(deepspeed.ops, "__compatible_ops__", {})
        compatible["deepspeed_shm_comm"] = False
    return deepspeed
