"""A training loop around optax: schedule, accumulation, averaging, checkpoints, resuming.

Everything that happens is a function of the step's number, so a run that was broken off and resumed
ends with the same parameters as one that was not.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Schedule:
    """How to train: AdamW with warm-up, cosine decay, clipping and averaged parameters.

    Attributes:
        num_steps: Updates of the parameters.
        learning_rate: The highest, after the warm-up.
        warmup_steps: Updates in which it rises from 0.
        final_share: The share of the highest that is left at the end.
        weight_decay: Of matrices; vectors (norms, biases) are not decayed.
        max_norm: Gradients are clipped to this global norm.
        accumulate: Batches that make one update.
        average: Decay of the exponential moving average of the parameters, below 1. At first it
            forgets faster, so that the random start does not linger.
    """

    num_steps: int
    learning_rate: float
    warmup_steps: int = 100
    final_share: float = 0.05
    weight_decay: float = 0.1
    max_norm: float = 1.0
    accumulate: int = 1
    average: float = 0.999

    def __post_init__(self) -> None:
        for name in ("num_steps", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")


class Fit(NamedTuple):
    """What training made.

    Attributes:
        params: The averaged parameters: those to use.
        last_params: The parameters of the last update.
        losses: float32 (num_steps,), the mean loss of each update's batches.
    """

    params: Any
    last_params: Any
    losses: np.ndarray


class _State(NamedTuple):
    """All that the next update needs."""

    params: Any
    average: Any
    optimizer: Any


def fit(
    loss: Callable[[Any, Any], jax.Array],
    params: Any,
    batch_of: Callable[[int], Any],
    schedule: Schedule,
    *,
    directory: str | os.PathLike[str] | None = None,
    save_every: int = 200,
    about: str = "",
) -> Fit:
    """Minimise a loss. Shows a progress bar where stderr is a terminal.

    Args:
        loss: `loss(params, batch)`, float (): compiled once, so batches must have one shape.
        params: Where to start, a pytree of floating arrays.
        batch_of: `batch_of(i)`, the batch number i: must always give the same for the same number.
        schedule: How to train.
        directory: Where to keep a checkpoint, the losses (`losses.json`) and their plot
            (`losses.png`, if matplotlib is installed). A checkpoint found there is resumed; None
            keeps nothing.
        save_every: Updates between checkpoints.
        about: What is trained on what (model, data, batches, seed), in words of your own: kept with
            the checkpoint, and one about something else is refused.

    Returns:
        The parameters and the losses.

    Raises:
        ValueError: If `save_every` is below 1, or the checkpoint there is damaged, of other
            parameters or another schedule.
        FloatingPointError: If the loss or its gradient is no longer finite.
        ModuleNotFoundError: Without `pip install 'speculax[train]'`.
    """
    if save_every < 1:
        raise ValueError(f"save_every must be at least 1, got {save_every}.")
    try:
        import optax
    except ModuleNotFoundError as error:
        message = (
            "training needs optax; pip install 'speculax[train]', or -e '.[train]' in a clone."
        )
        raise ModuleNotFoundError(message) from error
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn

    rate = optax.warmup_cosine_decay_schedule(
        0.0,
        schedule.learning_rate,
        min(schedule.warmup_steps, schedule.num_steps - 1),
        schedule.num_steps,
        schedule.final_share * schedule.learning_rate,
    )
    optimizer = optax.MultiSteps(
        optax.chain(
            optax.clip_by_global_norm(schedule.max_norm),
            optax.adamw(
                rate,
                b2=0.95,
                weight_decay=schedule.weight_decay,
                mask=partial(jax.tree.map, lambda x: x.ndim > 1),
            ),
        ),
        schedule.accumulate,
    ).gradient_transformation()

    @partial(jax.jit, donate_argnums=0)
    def update(state: _State, batch: Any, decay: jax.Array) -> tuple[_State, jax.Array, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(state.params, batch)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
        new = optax.apply_updates(state.params, updates)
        average = optax.incremental_update(new, state.average, 1.0 - decay)
        return _State(new, average, optimizer_state), value, optax.tree.norm(gradient)

    own = jax.tree.map(jnp.array, params)  # the caller's are not given away
    # Averages of narrow numbers would not move.
    average = jax.tree.map(lambda x: jnp.array(x, jnp.promote_types(x.dtype, jnp.float32)), own)
    state = _State(own, average, optimizer.init(own))
    losses = np.zeros(0, np.float32)
    path = None if directory is None else Path(directory) / _CHECKPOINT
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            state, losses = _restore(path, state, schedule, about)
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:-1], TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("training", total=schedule.num_steps, completed=len(losses))
        for i in range(len(losses), schedule.num_steps):
            total = 0.0
            decay = min(schedule.average, (1 + i) / (10 + i))
            for j in range(schedule.accumulate):
                # The average moves with the last batch of an update, when the parameters do.
                is_last = j == schedule.accumulate - 1
                batch = batch_of(i * schedule.accumulate + j)
                state, value, norm = update(state, batch, jnp.float32(decay if is_last else 1.0))
                total += float(value)
                if not np.isfinite(total) or not np.isfinite(norm):
                    raise FloatingPointError(
                        f"the loss of update {i} is {float(value)} and the norm of its gradient "
                        f"{float(norm)}; lower the learning rate, or look at the batch."
                    )
            losses = np.append(losses, np.float32(total / schedule.accumulate))
            bar.update(task, advance=1, description=f"loss {losses[-50:].mean():.3f}")
            if path is not None and ((i + 1) % save_every == 0 or i + 1 == schedule.num_steps):
                _save(path, state, losses, schedule, about)
    average = jax.tree.map(lambda x, like: x.astype(like.dtype), state.average, state.params)
    return Fit(average, state.params, losses)


def _save(path: Path, state: _State, losses: np.ndarray, schedule: Schedule, about: str) -> None:
    """Write a checkpoint under another name first, so that nobody ever finds half of one."""
    from safetensors.numpy import save_file

    leaves = {name: np.asarray(leaf) for name, leaf in _named(state).items()}
    scratch = path.with_suffix(".tmp")
    save_file(leaves | {"losses": losses}, scratch, {"schedule": repr(schedule), "about": about})
    os.replace(scratch, path)
    path.with_name("losses.json").write_text(json.dumps([round(float(x), 5) for x in losses]))
    _plot(losses, path.with_name("losses.png"))


def _restore(path: Path, like: _State, schedule: Schedule, about: str) -> tuple[_State, np.ndarray]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
            written = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"the checkpoint {path} is damaged ({error}); remove it.") from error
    for name, wanted in (("schedule", repr(schedule)), ("about", about)):
        if written.get(name) != wanted:
            raise ValueError(
                f"the checkpoint {path} must be of the {name} asked for, {wanted!r}, it is of "
                f"{written.get(name)!r}; remove it, or choose another directory."
            )
    named = _named(like)
    shapes = {name: leaf.shape for name, leaf in named.items()}
    losses = tensors.pop("losses", None)
    if losses is None or shapes != {name: tensor.shape for name, tensor in tensors.items()}:
        raise ValueError(
            f"the checkpoint {path} must have the parameters that are to be trained, it has "
            "others; remove it, or choose another directory."
        )
    leaves = [jnp.asarray(tensors[name], leaf.dtype) for name, leaf in named.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves), losses


def _named(state: _State) -> dict[str, jax.Array]:
    """The arrays of a state by the way to them, in the order of its leaves."""
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]
    }


def _plot(losses: np.ndarray, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    axes = (figure := Figure(figsize=(6, 3.5), layout="constrained")).subplots()
    axes.plot(losses, color="0.8", linewidth=0.5, label="each update")
    window = max(1, len(losses) // 50)
    smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
    axes.plot(np.arange(len(smooth)) + window - 1, smooth, color="C0", label=f"mean of {window}")
    axes.set(xlabel="update", ylabel="loss")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
