"""The converted weights: one safetensors file, read straight into memory that JAX can use as it is.

The format is safetensors (a length, a JSON header, then the tensors end to end; all float32 here),
so other tools can open the file. The few lines below write and read it because they do two things
that the library does not: a tensor is written piece by piece, so no float32 model has to fit in
memory during a conversion, and it is read into 64-byte aligned memory of its own, which
`jax.device_put` uses on CPU without a copy.

Whatever else there is to say about the model is JSON under `__metadata__`, beside one CRC-32 of the
header (with the checksum's own digits as zeros) and of all values: enough to notice a torn write
or a bad disk, in a fraction of the time it takes to read the file.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

_ALIGNMENT = 64


class DamagedError(Exception):
    """A file that is not what `write` wrote."""


def write(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    pieces: Callable[[str], Iterable[np.ndarray]],
    info: Mapping[str, Any],
    progress: Callable[[int], object],
) -> None:
    """Write float32 tensors and `info` to `path`.

    Args:
        path: The file to make.
        shapes: The shape of each tensor by name, in the order of the file.
        pieces: Gives a tensor's values, in order, as float32 arrays that follow one another.
        info: JSON values that `read` gives back.
        progress: Called with the number of bytes just written.
    """
    checksum = 0
    header = _header(shapes, info, checksum)
    with open(path, "wb") as file:
        file.write(header)
        checksum = crc32(header)
        for name in shapes:
            for piece in pieces(name):
                values = np.ascontiguousarray(piece, dtype=np.float32)
                checksum = crc32(values.data, checksum)
                file.write(values.data)
                progress(values.nbytes)
        file.seek(0)
        file.write(_header(shapes, info, checksum))


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The tensors and the info that `write` put into `path`.

    Returns:
        The float32 tensors by name, each in aligned memory that nothing else refers to, and `info`.

    Raises:
        OSError: The file cannot be read.
        DamagedError: The file is cut short, or not what was written.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(prefix := file.read(8), "little")
        if length > size:
            raise DamagedError(f"{path} has no header")
        header = prefix + file.read(length)
        try:
            entries = json.loads(header[8:])
            metadata = entries.pop("__metadata__")
            info = json.loads(metadata["info"])
            shapes = {name: tuple(entry["shape"]) for name, entry in entries.items()}
            written = int(metadata["checksum"], 16)
            blank = _header(shapes, info, 0)
            num_bytes = sum(4 * math.prod(shape) for shape in shapes.values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{path} has an unreadable header") from error
        # Before anything is allocated: a wrong digit in a shape could ask for any amount.
        if _header(shapes, info, written) != header or len(header) + num_bytes != size:
            raise DamagedError(f"{path} has another size than its header says")
        checksum = crc32(blank)
        tensors = {}
        for name, shape in shapes.items():
            values = _aligned(shape)
            file.readinto(values.data)
            checksum = crc32(values.data, checksum)
            tensors[name] = values
    if checksum != written:
        raise DamagedError(f"{path} has other contents than were written")
    return tensors, info


def _header(shapes: Mapping[str, tuple[int, ...]], info: Mapping[str, Any], checksum: int) -> bytes:
    """The bytes before the first tensor; as many for any checksum."""
    metadata = {"checksum": f"{checksum:08x}", "info": json.dumps(info)}
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _aligned(shape: tuple[int, ...]) -> np.ndarray:
    """An uninitialised float32 array on a 64-byte boundary, as XLA wants its buffers."""
    num_bytes = 4 * math.prod(shape)
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + num_bytes].view(np.float32).reshape(shape)
