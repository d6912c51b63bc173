"""A function in a form of its own, called as the contract has it."""

import inspect
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from speculax.conformance.candidate import Candidate, as_numpy, described
from speculax.conformance.judge.names import Mapping, map_names
from speculax.conformance.judge.reading import Reading, read, readings
from speculax.conformance.verifier.call import PARAMETERS, Arguments
from speculax.conformance.verifier.examples import EXAMPLES
from speculax.conformance.verifier.instances import expected
from speculax.conformance.verifier.rules import Rule


class Form(NamedTuple):
    """How a function is called, and what it returns is read.

    Attributes:
        mapping: Which argument is which.
        has_batch: Whether its arrays begin with an axis of rows.
        reading: What is what in its result.
    """

    mapping: Mapping
    has_batch: bool
    reading: Reading

    def __str__(self) -> str:
        """In words."""
        words = [f"arguments: {self.mapping}"]
        if self.mapping.is_joint:
            words.append("the uniform of the draw comes after those of the tests, in one array")
        if not self.has_batch:
            words.append("one sequence a call, without a batch axis")
        return "; ".join([*words, f"result: {self.reading}"])


class Adapter:
    """A verifier with the signature of the contract, made of a function in another form.

    Attributes:
        own: The function as it is.
        form: How it is called and read; settled by the examples of the contract.
        error: What it raises for the examples in whichever form; None if it does not.
        returned: The type of what it returns for them.
        is_read: Whether that can be read.
    """

    def __init__(self, own: Candidate, mapping: Mapping):
        self.own = own
        self.form = Form(mapping, True, Reading(0))
        self.error: Exception | None = None
        self.returned = ""
        self.is_read = False
        self._settled_for = ""
        self._mapping = mapping
        self.__wrapped__ = own.function
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(name, kind) for name in PARAMETERS]
        if own.accepts("draft_lengths"):
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter("draft_lengths", keyword, default=None))
        self.__signature__ = inspect.Signature(parameters)
        self.__name__ = own.name

    def __call__(self, *arrays: Any, **named: Any) -> dict[str, Any]:
        """The verdict, arrays (B,) and (B, G+1)."""
        values: dict[str, Any] = dict(zip(PARAMETERS, arrays, strict=False)) | named
        if not self.own.compiled:
            values = {k: v if v is None else as_numpy(v) for k, v in values.items()}
        drafts = values["draft_tokens"].shape[1]
        if not drafts:
            values = self._with_certain_draft(values)
        n, tokens = self._rows(values) if not self.form.has_batch else self._batch(values)
        if not drafts:
            n, tokens = n - 1, tokens[:, 1:]
        return {"num_accepted": n, "tokens": tokens}

    def settle(self, rule: Rule) -> None:
        """Find the form in which the function gets most rows of the examples right."""
        if self._settled_for == rule.name:
            return
        self._settled_for, self.error, self.returned, self.is_read = rule.name, None, "", False
        best = (-1, -1)
        for mapping in self._mapping.alternatives():
            for has_batch in (True, False):
                try:
                    results = [self._raw(mapping, has_batch, example) for example, _ in EXAMPLES]
                except Exception as error:
                    self.error = self.error or error
                    continue
                self.returned = self.returned or described(results[0][0])
                for reading in readings(results[0][0], int(has_batch)):
                    form = Form(mapping, has_batch, reading)
                    score = _score(form, results, rule)
                    if score > best:
                        best, self.form, self.is_read = score, form, True
        if self.returned:
            self.error = None

    def _raw(self, mapping: Mapping, has_batch: bool, example: Arguments) -> list[Any]:
        """What the function itself returns, never compiled; a result a row without a batch axis."""
        values = {role: getattr(example, role) for role in PARAMETERS}
        if has_batch:
            return [self._call(mapping, values)]
        rows = range(len(example.draft_tokens))
        return [self._call(mapping, {k: v[b] for k, v in values.items()}) for b in rows]

    def _call(self, mapping: Mapping, values: dict[str, Any]) -> Any:
        """The function called with its own names."""
        arrays = dict(values)
        if mapping.is_joint:
            last = arrays.pop("sample_uniforms")[..., None]
            xp = jnp if isinstance(last, jax.Array) else np
            arrays["accept_uniforms"] = xp.concatenate([arrays["accept_uniforms"], last], axis=-1)
        sizes = {"G": values["draft_tokens"].shape[-1], "V": values["target_probs"].shape[-1]}
        named = {mapping.names.get(k, k): self.own.convert(v) for k, v in arrays.items()}
        return self.own.function(**named, **{k: sizes[v] for k, v in mapping.numbers.items()})

    def _batch(self, values: dict[str, Any]) -> tuple[Any, Any]:
        result = self._call(self.form.mapping, values)
        return read(result, self.form.reading, values["draft_tokens"])

    def _rows(self, values: dict[str, Any]) -> tuple[Any, Any]:
        def one(values: dict[str, Any]) -> tuple[Any, Any]:
            return self._batch(values)

        if self.own.compiled:
            return jax.vmap(one)(values)
        rows = range(len(values["draft_tokens"]))
        found = [one({k: None if v is None else v[b] for k, v in values.items()}) for b in rows]
        n, tokens = zip(*found, strict=True)
        return np.stack(n), np.stack(tokens)

    def _with_certain_draft(self, values: dict[str, Any]) -> dict[str, Any]:
        """Steps without drafts: the exercise has none, so they get one that is sure to be kept."""
        xp = jnp if self.own.compiled else np
        target = values["target_probs"]
        batch, _, vocab = target.shape
        sure = xp.broadcast_to(xp.eye(1, vocab, dtype=target.dtype), (batch, 1, vocab))
        return values | {
            "draft_tokens": xp.zeros((batch, 1), np.int32),
            "draft_probs": sure,
            "target_probs": xp.concatenate([sure, target], axis=1),
            "accept_uniforms": xp.zeros((batch, 1), target.dtype),
        }


def _score(form: Form, results: list[list[Any]], rule: Rule) -> tuple[int, int]:
    """How many rows of the examples are right, and how many are verdicts at all."""
    right = sound = 0
    for (example, _), parts in zip(EXAMPLES, results, strict=True):
        rows = range(len(example.draft_tokens))
        for b in rows:
            try:
                if form.has_batch:
                    n, tokens = (a[b] for a in read(parts[0], form.reading, example.draft_tokens))
                else:
                    n, tokens = read(parts[b], form.reading, example.draft_tokens[b])
                verdict = int(n), np.asarray(tokens).tolist()
            except Exception:
                return -1, -1
            right += verdict == expected(rule, example.row(b))
            sound += _is_sound(*verdict, example.draft_tokens[b].tolist())
    return right, sound


def _is_sound(n: int, tokens: list[int], ids: list[int]) -> bool:
    """Whether it can be a verdict: n draft tokens, another one, then -1."""
    return (
        0 <= n <= len(ids)
        and tokens[:n] == ids[:n]
        and len(tokens) == len(ids) + 1
        and tokens[n] >= 0
        and all(x == -1 for x in tokens[n + 1 :])
    )


def adapt(candidate: Candidate) -> Candidate:
    """A function in a form of its own as a candidate for the stages of a verifier.

    Raises:
        MisuseError: If its arguments cannot be mapped.
    """
    mapping = map_names(candidate.function, candidate.name)
    return replace(candidate, function=Adapter(candidate, mapping))
