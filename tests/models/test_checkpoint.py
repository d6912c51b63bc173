"""The converted weights on disk."""

import numpy as np
import pytest
import safetensors.numpy

from speculax.models import checkpoint

SHAPES = {"a": (3, 5), "layers.0.b": (7,), "c": (1, 2, 3)}
VALUES = {
    name: np.random.default_rng(0).standard_normal(shape, np.float32)
    for name, shape in SHAPES.items()
}
INFO = {"format": 3, "list": [1, 2.5, None, "ü"], "nested": {"x": 9.999999974752427e-07}}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.safetensors"
    # In pieces, one of them transposed in memory.
    pieces = {
        "a": [VALUES["a"][:1], np.asfortranarray(VALUES["a"][1:])],
        "layers.0.b": [VALUES["layers.0.b"]],
        "c": [VALUES["c"].astype(np.float64)],
    }
    sizes = []
    checkpoint.write(path, SHAPES, pieces.__getitem__, INFO, sizes.append)
    assert sizes == [20, 40, 28, 24]
    return path


def test_reads_what_was_written(path):
    tensors, info = checkpoint.read(path)
    assert info == INFO
    assert list(tensors) == list(SHAPES)
    for name, value in VALUES.items():
        np.testing.assert_array_equal(tensors[name], value)
        assert tensors[name].dtype == np.float32
        assert tensors[name].ctypes.data % 64 == 0


def test_is_a_safetensors_file(path):
    tensors = safetensors.numpy.load_file(path)
    assert tensors.keys() == VALUES.keys()
    for name, value in VALUES.items():
        np.testing.assert_array_equal(tensors[name], value)


def test_every_damaged_byte_is_noticed(path):
    data = path.read_bytes()
    for at in range(len(data)):
        for mask in (1, 0x80):
            path.write_bytes(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
            with pytest.raises(checkpoint.DamagedError):
                checkpoint.read(path)


def test_every_missing_end_is_noticed(path):
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(checkpoint.DamagedError):
            checkpoint.read(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(checkpoint.DamagedError):
        checkpoint.read(path)


def test_another_safetensors_file_is_no_checkpoint(tmp_path):
    safetensors.numpy.save_file(VALUES, tmp_path / "other.safetensors")
    with pytest.raises(checkpoint.DamagedError, match="unreadable header"):
        checkpoint.read(tmp_path / "other.safetensors")
