"""attach: the one call that turns a DDP model's dense exchange into Deep Gradient Compression."""

from __future__ import annotations

from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from elastic_dgc.compression.layout import Layout
from elastic_dgc.ddp.checks import check_kind, check_model, check_scaler, in_words, trained_parameters
from elastic_dgc.ddp.config import DEADLINE_S, DGC
from elastic_dgc.ddp.exchange import Exchange
from elastic_dgc.ddp.hook import dgc_hook
from elastic_dgc.ddp.meeting import together
from elastic_dgc.ddp.optimizer import TakenOver, check_owner, unwrap
from elastic_dgc.ddp.plan import explain, plan
from elastic_dgc.ddp.settings import settings_of
from elastic_dgc.ddp.state import DGCState
from elastic_dgc.errors import UsageError
from elastic_dgc.log import logger

FEEDBACK_DENSITY = 0.25  # AdamW's loss lags little behind from here on (docs/ddp.md)


def attach(
    ddp_model: DistributedDataParallel,
    optimizer: Optimizer,
    config: DGC,
    *,
    scaler: GradScaler | Literal[False] | None = None,
) -> DGCState:
    """Let a DDP model exchange compressed gradients. To be called once by all ranks alike, before the first backward
    pass, after the optimizer is made (and loaded, from a state that was saved without DGC).

    SGD's momentum, nesterov and weight decay are taken over and set to 0 in `optimizer`, momentum that it has already
    becomes u; other optimizers are left as they are and get plain error feedback. `scaler`: the GradScaler that scales
    the loss; None looks for one at the first backward pass, False does not. Changes the param groups, registers DDP's
    communication hook and, where the model has buffers, a forward pre-hook. Raises `UsageError`, with nothing changed,
    where it cannot be right: on all ranks, if on one; and where ranks have not come after `config.deadline_s`;
    `Disagreement`, with nothing changed either, where the ranks' settings differ.
    """
    ddp = check_kind(ddp_model)

    def check() -> tuple[dict[str, Tensor], Layout, Optimizer, Any]:
        check_model(ddp)
        if not isinstance(config, DGC):
            raise UsageError(f"config is {in_words(config)}; attach needs a DGC: make one, as in DGC(warmup_steps=500)")
        trained, inner = trained_parameters(ddp), unwrap(optimizer)
        check_owner(inner, trained)
        layout = Layout.of(trained.items(), config.min_numel, config.small_density, config.small_floor)
        return trained, layout, inner, check_scaler(scaler)

    def settings(checked: tuple[dict[str, Tensor], Layout, Optimizer, Any]) -> str:
        _, layout, inner, used = checked
        return settings_of(config, inner, layout, dist.get_world_size(ddp.process_group), used)

    deadline_s = config.deadline_s if isinstance(config, DGC) else DEADLINE_S
    trained, layout, inner, used = together(ddp.process_group, "attach", deadline_s, check, settings)
    exchange = Exchange(ddp.process_group)
    trained = {segment.name: trained[segment.name] for segment in layout.segments}
    taken = TakenOver(inner, trained, exchange.world)
    state = DGCState(ddp, layout, trained, config, exchange, taken, used, search_scaler=scaler is None)
    ddp.register_comm_hook(state, dgc_hook)
    if exchange.rank == 0:
        _say(state)
    return state


def _say(state: DGCState) -> None:
    log = logger(worker=0)
    if state.taken.corrected or state.config.density >= FEEDBACK_DENSITY:
        log.info("%s", state.taken.say())
    else:
        log.warning(
            "%s. It learns more slowly than with whole gradients, the more so the lower the density, here %g, and "
            "is unstable at high learning rates: use SGD with momentum, or a density of at least %g",
            state.taken.say(), state.config.density, FEEDBACK_DENSITY,
        )  # fmt: skip
    for line in explain(state.config, state.layout, state.world):
        log.info("%s", line)
    final = plan(state.config, state.layout, state.world, state.config.density)
    if final.whole and state.config.density < 1:
        log.warning("compression is off, whole gradients are exchanged: %s", final.reason)
