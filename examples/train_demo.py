"""Train the embedded pair, `speculax.load("demo")` and `load("demo-draft")`, from nothing.

The corpus is the source of Python's standard library (PSF licence), as this Python has it; what
becomes of it depends on the seed and the versions alone. First a byte-level BPE tokenizer is
trained, then the target on the text, then the draft on the target's laws. On two cores it takes
about an hour, and goes on where it was broken off:

    python examples/train_demo.py build/demo
"""

import argparse
import hashlib
import json
import math
import platform
import sysconfig
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from speculax.models.config import DecoderConfig
from speculax.models.decoder import Decoder
from speculax.training import Schedule, fit

END = "<|end|>"
VOCAB_SIZE = 2048
SKIPPED = {"site-packages", "test", "tests", "idle_test", "idlelib", "lib2to3", "ensurepip"}
WINDOW, BATCH_SIZE = 256, 16


def read_corpus() -> dict[str, str]:
    """The text of each file, by its name, in the order of names."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts = {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not SKIPPED & set(name.parts) and not any("config-" in part for part in name.parts):
            texts[name.as_posix()] = path.read_text("utf-8", errors="ignore")
    return texts


def digest(texts: dict[str, str]) -> str:
    whole = hashlib.sha256()
    for name, text in texts.items():
        whole.update(f"{name}\0{text}\0".encode())
    return whole.hexdigest()


def is_held_out(name: str) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] < 13  # one in twenty


def train_tokenizer(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def config(hidden_size: int, num_layers: int, mlp_size: int) -> DecoderConfig:
    head_dim = 32
    return DecoderConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=hidden_size // head_dim,
        num_kv_heads=1,
        head_dim=head_dim,
        mlp_size=mlp_size,
        context_length=4096,
        norm_eps=1e-6,
        query_scale=head_dim**-0.5,
        embed_scale=math.sqrt(hidden_size),
        rope_base=1e4,
        local_rope_base=1e4,
        sliding_window=WINDOW * 3 // 4,  # a quarter of a window's tokens saw as far as that
        global_layers=(),
    )


TARGET = config(hidden_size=192, num_layers=7, mlp_size=512)
DRAFT = config(hidden_size=128, num_layers=1, mlp_size=384)


def logits_along(network: Decoder, params: dict, tokens: jax.Array) -> jax.Array:
    """Float32 (B, T, V), about the token after each."""
    batch, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), tokens.shape)
    hidden, _ = network.score(params, tokens, positions, network.init_cache(batch, length))
    return network.head(params, hidden)


def batches(ids: np.ndarray, seed: int):
    """Windows from random places, a function of seed and number."""

    def batch_of(i: int) -> np.ndarray:
        starts = np.random.default_rng([seed, i]).integers(0, len(ids) - WINDOW, BATCH_SIZE)
        return np.stack([ids[start : start + WINDOW + 1] for start in starts])

    return batch_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="for the pair, and checkpoints on the way")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target-steps", type=int, default=2000)
    parser.add_argument("--draft-steps", type=int, default=2000)
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)

    corpus = read_corpus()
    train = [text for name, text in corpus.items() if not is_held_out(name)]
    held_out = [text for name, text in corpus.items() if is_held_out(name)]
    tokenizer = train_tokenizer(train)
    tokenizer.save(str(options.directory / "tokenizer.json"))
    ids, held_out_ids = (
        np.concatenate([[0, *encoding.ids] for encoding in tokenizer.encode_batch(texts)])
        for texts in (train, held_out)
    )
    print(
        f"corpus: Python {platform.python_version()}, {len(corpus)} files, sha256 "
        f"{digest(corpus)}; {len(ids)} tokens to train on, {len(held_out_ids)} held out"
    )
    network = Decoder(TARGET)

    def loss(params, batch):
        logits = logits_along(network, params, batch[:, :-1])
        return jnp.mean(
            optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:])
        )

    target = fit(
        loss,
        network.init_params(jax.random.key(options.seed)),
        batches(ids, options.seed),
        Schedule(options.target_steps, learning_rate=3e-3),
        directory=options.directory / "target",
        save_every=100,
    )


if __name__ == "__main__":
    main()
