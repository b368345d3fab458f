"""attach: the one call that turns a DDP model's dense exchange into Deep Gradient Compression."""

from __future__ import annotations

from typing import Literal

from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from elastic_dgc.ddp.checks import check_model, check_scaler, trained_parameters
from elastic_dgc.ddp.config import DGC
from elastic_dgc.ddp.exchange import Exchange
from elastic_dgc.ddp.hook import dgc_hook
from elastic_dgc.ddp.optimizer import TakenOver, unwrap
from elastic_dgc.ddp.plan import explain, plan
from elastic_dgc.ddp.state import DGCState
from elastic_dgc.errors import UsageError
from elastic_dgc.log import logger


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
    the loss; None looks for one at the first backward pass, False does not. Changes the param groups and registers
    DDP's communication hook. Raises `UsageError`, with nothing changed, where it cannot be right.
    """
    ddp = check_model(ddp_model)
    if not isinstance(config, DGC):
        raise UsageError(f"config is a {type(config).__name__}; attach needs a DGC, as in DGC(warmup_steps=500)")
    trained = trained_parameters(ddp)
    inner = unwrap(optimizer)
    used = check_scaler(scaler)
    exchange = Exchange(ddp.process_group)
    taken = TakenOver(inner, trained, exchange.world)
    state = DGCState(ddp, trained, config, exchange, taken, used, search_scaler=scaler is None)
    ddp.register_comm_hook(state, dgc_hook)
    if exchange.rank == 0:
        _say(state)
    return state


def _say(state: DGCState) -> None:
    log = logger(worker=0)
    log.info("%s", state.taken.say())
    for line in explain(state.config, state.layout, state.world):
        log.info("%s", line)
    final = plan(state.config, state.layout, state.world, state.config.density)
    if final.whole and state.config.density < 1:
        log.warning("compression is off, whole gradients are exchanged: %s", final.reason)
