"""The function under test: found in a file or a module, and called with NumPy arrays."""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

Framework = Literal["jax", "numpy", "torch"]


class MisuseError(Exception):
    """Nothing to check, or not as asked: the `problem`, and a `hint` that says what to do."""

    def __init__(self, problem: str, hint: str):
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


class WrongFormError(Exception):
    """The function returned something that is no result at all; `expected` says what one is."""

    def __init__(self, problem: str, expected: str = "a dict of two arrays"):
        super().__init__(problem)
        self.expected = expected


@dataclass
class Candidate:
    """A function under test.

    Attributes:
        function: The function.
        name: Its name.
        origin: `module:function` or `file.py:function`.
        framework: What its arguments are made of.
        compiled: Whether it is called under `jax.jit`.
        traces: How often it has been traced.
    """

    function: Callable[..., Any]
    name: str
    origin: str
    framework: Framework
    compiled: bool
    traces: int = 0
    _jitted: Callable[..., Any] | None = field(default=None, repr=False)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call it with arrays of its framework; what it returns comes back as it is."""
        return self.callable(*map(self.convert, arguments), **_map(self.convert, named))

    @property
    def callable(self) -> Callable[..., Any]:
        """The function, compiled if it is to be."""
        if not self.compiled:
            return self.function
        if self._jitted is None:

            def counted(*arguments: Any, **named: Any) -> Any:
                self.traces += 1
                return self.function(*arguments, **named)

            self._jitted = jax.jit(counted)
        return self._jitted

    def convert(self, value: Any) -> Any:
        """An array as one of the function's framework; anything else as it is."""
        if not isinstance(value, np.ndarray | jax.Array):
            return value
        if self.framework == "jax":
            return jnp.asarray(value)
        own = np.array(value)  # which the function may write into
        return sys.modules["torch"].from_numpy(own) if self.framework == "torch" else own

    def changed(self, arguments: tuple[Any, ...]) -> list[int]:
        """Which of its arguments a call writes into."""
        given = [self.convert(value) for value in arguments]
        self.function(*given)
        return [
            i
            for i, (before, after) in enumerate(zip(arguments, given, strict=True))
            if isinstance(before, np.ndarray)
            and not np.array_equal(as_numpy(after), before, equal_nan=before.dtype.kind == "f")
        ]

    def accepts(self, name: str) -> bool:
        """Whether the function has a parameter of this name."""
        parameters = inspect.signature(self.function).parameters
        return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _map(function: Callable[[Any], Any], named: dict[str, Any]) -> dict[str, Any]:
    return {name: function(value) for name, value in named.items()}


def described(value: Any) -> str:
    """What something that was returned is, in words."""
    if value is None:
        return "None (is a return missing?)"
    return "a jax.Array" if isinstance(value, jax.Array) else f"a {type(value).__name__}"


def as_numpy(value: Any) -> np.ndarray:
    """What a function returned for an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)


def find(target: str, parameters: tuple[str, ...], use_jit: bool = True) -> Candidate:
    """Find the function that a target names.

    Args:
        target: `file.py`, `file.py:function` or `module:function`.
        parameters: The names of the parameters by which a function is found in a file; none of
            them if it may have any.
        use_jit: Whether it is to run under `jax.jit`.

    Raises:
        MisuseError: If there is none, or more than one.
    """
    place, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    if place.endswith(".py"):
        module = _load_file(Path(place))
    elif name:
        module = _load_module(place)
    else:
        raise MisuseError(
            f"{target!r} is neither a file that ends in .py nor module:function",
            "say my_file.py, my_file.py:function or my_package.module:function",
        )
    function = _named(module, place, name) if name else _by_signature(module, place, parameters)
    if parameters:
        _check_arity(function, f"{place}:{_name_of(function, name)}", parameters)
    framework = _framework(function, module, use_jit)
    return Candidate(
        function=function,
        name=_name_of(function, name),
        origin=f"{place}:{_name_of(function, name)}",
        framework=framework,
        compiled=use_jit,
    )


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise MisuseError(
            f"there is no file {str(path)!r}", "check the path, or begin one with --scaffold"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickles look it up
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise MisuseError(
            f"{path} has a syntax error in line {error.lineno}: {error.msg}",
            "mend it, then check again",
        ) from error
    except Exception as error:
        raise _import_failed(str(path), error) from error
    return module


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            raise MisuseError(
                f"there is no module {error.name!r}",
                "install it in this environment, or start where it can be imported",
            ) from error
        raise _import_failed(name, error) from error
    except Exception as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: BaseException) -> MisuseError:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return MisuseError(
        f"importing {name} fails in line {frame.lineno} of {Path(frame.filename).name}: {said}",
        "make it import alone, with python -c 'import ...', in this environment",
    )


def _named(module: ModuleType, place: str, name: str) -> Callable[..., Any]:
    try:
        found = module
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        others = [n for n, _ in _functions(module)]
        raise MisuseError(
            f"{place} has no {name!r}",
            f"it has {', '.join(others)}" if others else "it defines no function",
        ) from None
    if not callable(found):
        raise MisuseError(
            f"{name!r} in {place} is a {type(found).__name__}, which cannot be called",
            "name a function",
        )
    return found


def _functions(module: ModuleType) -> list[tuple[str, Callable[..., Any]]]:
    """The functions that a module defines itself, jitted ones too."""
    return [
        (name, value)
        for name, value in vars(module).items()
        if callable(value)
        and not inspect.isclass(value)
        and getattr(value, "__module__", None) == module.__name__
        and not name.startswith("_")
    ]


def _by_signature(
    module: ModuleType, place: str, parameters: tuple[str, ...]
) -> Callable[..., Any]:
    functions = _functions(module)
    found = [(n, f) for n, f in functions if set(parameters) <= set(_parameters(f))]
    if not found:
        found = [(n, f) for n, f in functions if len(_required(f)) == len(parameters)]
    if len(found) == 1:
        return found[0][1]
    wanted = ", ".join(parameters)
    if found:
        names = [name for name, _ in found]
        raise MisuseError(
            f"{place} has {len(names)} functions that could be meant: {', '.join(names)}",
            f"say which one: {place}:{names[-1]}",
        )
    raise MisuseError(
        f"{place} has no function with the parameters ({wanted})",
        f"define one, or say which one is meant: {place}:function",
    )


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _required(function: Callable[..., Any]) -> list[str]:
    """The parameters without a default that can be given by position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in positional and p.default is p.empty]


def _check_arity(function: Callable[..., Any], name: str, parameters: tuple[str, ...]) -> None:
    try:
        inspect.signature(function).bind(*parameters)
    except ValueError:  # no signature to be had
        return
    except TypeError:
        has = ", ".join(_parameters(function)) or "none"
        raise MisuseError(
            f"{name} must take {len(parameters)} arguments ({', '.join(parameters)}), and has the "
            f"parameters ({has})",
            "give it these parameters, in this order",
        ) from None


def _name_of(function: Callable[..., Any], name: str) -> str:
    return name or getattr(function, "__name__", type(function).__name__)


def _framework(function: Callable[..., Any], module: ModuleType, use_jit: bool) -> Framework:
    """JAX if it is to be compiled; else what the module imports."""
    if use_jit:
        return "jax"
    owner = sys.modules.get(getattr(inspect.unwrap(function), "__module__", ""), module)
    seen = {
        getattr(value, "__name__", "").partition(".")[0]
        if isinstance(value, ModuleType)
        else str(getattr(value, "__module__", "")).partition(".")[0]
        for value in vars(owner).values()
    }
    for framework in ("torch", "jax"):
        if framework in seen:
            return framework
    return "numpy"
