"""Programs of the library's functions, not run but read: what is in them, and what they need."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir

import speculax as sx

REALS, COUNTS = ("temperature", "top_p", "min_p"), ("top_k",)


class Sizes(NamedTuple):
    batch: Any
    drafts: int
    vocab: int


class Made(NamedTuple):
    """How laws are made: of logits or of probabilities, in which type, and with which settings."""

    by: Callable | None = None  # None for bare probabilities
    dtype: Any = jnp.float32
    settings: tuple[str, ...] = ()
    order: str = "sequential"
    dense: bool = True  # else the draft's laws are point masses

    def types(self, sizes):
        """Of the settings' values, all traced and one a batch row."""
        batch, _, vocab = sizes
        shapes = dict.fromkeys(REALS, ((batch,), jnp.float32))
        shapes |= dict.fromkeys(COUNTS, ((batch,), jnp.int32))
        shapes |= {"mask": ((batch, vocab), jnp.bool_), "bias": ((batch, vocab), jnp.float32)}
        return {name: jax.ShapeDtypeStruct(*shapes[name]) for name in self.settings}

    def law(self, table, values, **kwargs):
        if self.by is None or table is None:
            return table
        return self.by(table, order=self.order, **values, **kwargs)


def by_logits(*settings, dtype=jnp.float32, **kwargs):
    return Made(sx.law_from_logits, dtype, settings, **kwargs)


CUT = ("temperature", "top_k", "top_p")
ALL = (*CUT, "min_p", "mask", "bias")


# --- The rules, and what they are called with


def _coupled(ids, _, target, accept, sample):
    return sx.verify_coupled(ids, target, ids[:, 0], ids[:, 0])


CHAIN_RULES = {
    "token": sx.verify_token,
    "block": sx.verify_block,
    "greedy": sx.verify_greedy,
    "sampled": sx.verify_sampled,
    "typical": sx.verify_lossy_typical,
    "thresholds": partial(sx.verify_lossy_thresholds, threshold_acc=0.9, threshold_single=0.8),
    "top-k": partial(sx.verify_lossy_top_k, k=3),
    "synthetic": sx.verify_lossy_synthetic,
    "coupled": _coupled,
}
RAGGED_RULES = {f"ragged {rule}": rule for rule in ("token", "block", "greedy", "sampled")}
RULES = (*CHAIN_RULES, *RAGGED_RULES)
SUBTRACTING = ("token", "block", "ragged token", "ragged block")  # those that use draft laws


BARE = Made()


def program(name: str, sizes: Sizes, made: Made = BARE) -> tuple[Callable, tuple]:
    """The function of a rule on laws so made, and the types of its arguments."""
    real, integer = jnp.float32, jnp.int32
    batch, drafts, vocab = sizes
    values = made.types(sizes)
    struct = jax.ShapeDtypeStruct
    if name in CHAIN_RULES:

        def verify(ids, draft, target, accept, sample, values):
            draft, target = made.law(draft, values), made.law(target, values)
            return CHAIN_RULES[name](ids, draft, target, accept, sample)

        return verify, (
            struct((batch, drafts), integer),
            struct((batch, drafts, vocab), made.dtype) if made.dense else None,
            struct((batch, drafts + 1, vocab), made.dtype),
            struct((batch, drafts), real),
            struct((batch,), real),
            values,
        )

    num_tokens = batch * drafts

    def verify_flat(ids, lengths, draft, target, bonus, accept, sample, rows, values):
        rows = None if made.by is None else rows
        bonus = made.law(bonus, values)
        draft, target = (made.law(table, values, rows=rows) for table in (draft, target))
        return sx.verify_ragged(
            ids,
            lengths,
            draft,
            target,
            bonus,
            accept,
            sample,
            max_draft_length=drafts,
            rule=RAGGED_RULES[name],
        )

    return verify_flat, (
        struct((num_tokens,), integer),
        struct((batch,), integer),
        struct((num_tokens, vocab), made.dtype) if made.dense else None,
        struct((num_tokens, vocab), made.dtype),
        struct((batch, vocab), made.dtype),
        struct((num_tokens,), real),
        struct((batch,), real),
        struct((num_tokens,), integer),
        values,
    )


# --- Compiled for this machine


# What LLVM makes of the code changes nothing about buffers, and takes longest.
LITTLE_EFFORT = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def compiled(function, types):
    return jax.jit(function).lower(*types).compile(LITTLE_EFFORT)


def temporary_bytes(function, types):
    return compiled(function, types).memory_analysis().temp_size_in_bytes


# --- Exported, as StableHLO


class Module:
    """The StableHLO of a function, for any platforms."""

    def __init__(self, function, types, platforms):
        exported = jax.export.export(jax.jit(function), platforms=list(platforms))(*types)
        assert exported.platforms == tuple(platforms)
        self._context = make_ir_context()  # lives as long as the module
        self.text = exported.mlir_module()
        self._module = ir.Module.parse(self.text, self._context)
        self._functions = {
            ir.StringAttr(op.attributes["sym_name"]).value: op
            for op in self._module.body.operations
            if op.operation.name == "func.func"
        }

    def loops(self) -> list:
        return [op for op in _inside(self._module.operation) if op.name == "stablehlo.while"]

    def loops_over_rows(self, batch: int) -> list[str]:
        """The loops that go from row to row of a batch, as text.

        `batch` is a prime that divides no other size, so that it tells which arrays hold the whole
        batch. A loop goes over rows if it takes less than a batch out of such an array, or puts
        less into it, at an index that is computed; or if it compares its count with the batch size.
        A loop over positions, candidates or bisection steps has all rows in hand at each turn.
        """
        return [str(loop) for loop in self.loops() if self._goes_over_rows(loop, batch)]

    def largest(self, *kinds: str) -> int:
        """The number of entries of the largest array of these element types."""
        sizes = [0]
        for op in _inside(self._module.operation):
            values = [*op.operands, *op.results]
            values += [x for region in op.regions for block in region for x in block.arguments]
            for value in values:
                if isinstance(value.type, ir.RankedTensorType):
                    kind = str(value.type.element_type)
                    sizes.append(math.prod(value.type.shape) if kind in kinds else 0)
        return max(sizes)

    def _goes_over_rows(self, loop, batch):
        ops = [op for region in loop.regions for block in region for op in self._called(block)]
        bounds = [x for op in ops if op.name == "stablehlo.compare" for x in op.operands]
        return any(_cuts_batch(op, batch) for op in ops) or batch in map(_number, bounds)

    def _called(self, block) -> Iterator:
        """The operations in a block, and those of the functions that it calls."""
        for op in block.operations:
            for inner in _inside(op.operation):
                yield inner
                if inner.name == "func.call":
                    name = ir.FlatSymbolRefAttr(inner.attributes["callee"]).value
                    for called in self._functions[name].regions[0]:
                        yield from self._called(called)


def _inside(op) -> Iterator:
    yield op
    for region in op.regions:
        for block in region:
            for inner in block.operations:
                yield from _inside(inner.operation)


def _cuts_batch(op, batch):
    pieces = {
        "stablehlo.dynamic_slice": lambda: op.results[0],
        "stablehlo.gather": lambda: op.results[0],
        "stablehlo.dynamic_update_slice": lambda: op.operands[1],
        "stablehlo.scatter": lambda: op.operands[2],
    }
    if op.name not in pieces:
        return False
    whole, piece = (math.prod(x.type.shape) for x in (op.operands[0], pieces[op.name]()))
    return whole % batch == 0 and piece % batch != 0


def _number(value):
    """The value of a constant integer, None for anything else."""
    owner = value.owner
    if not isinstance(owner, ir.Operation) or owner.name != "stablehlo.constant":
        return None
    attribute = owner.attributes["value"]
    is_integer = isinstance(value.type.element_type, ir.IntegerType)
    if not is_integer or value.type.shape or not ir.DenseIntElementsAttr.isinstance(attribute):
        return None
    return ir.DenseIntElementsAttr(attribute)[0]
