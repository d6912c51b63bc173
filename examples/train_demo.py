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
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import speculax as sx
from speculax.models.config import DecoderConfig
from speculax.models.decoder import Decoder
from speculax.models.model import hidden_states
from speculax.models.params import flat
from speculax.training import Schedule, fit, losses

END, END_ID = "<|end|>", 0
VOCAB_SIZE = 2048
SKIPPED = {"site-packages", "test", "tests", "idle_test", "idlelib", "lib2to3", "ensurepip"}
WINDOW, BATCH_SIZE = 256, 16
PROMPT, SAMPLES_AT_ONCE = 32, 64  # tokens of a beginning, and how many are continued together


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
    return network.head(params, hidden_states(network, params, tokens))


def windows(ids: np.ndarray, seed: int, num: int, length: int) -> np.ndarray:
    """Pieces of the corpus from random places, int (num, length)."""
    starts = np.random.default_rng(seed).integers(0, len(ids) - length + 1, num)
    return np.stack([ids[start : start + length] for start in starts])


def train_target(ids: np.ndarray, options: argparse.Namespace) -> dict:
    network = Decoder(TARGET)

    def loss(params, batch):
        logits = logits_along(network, params, batch[:, :-1])
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]))

    return fit(
        loss,
        network.init_params(jax.random.key(options.seed)),
        lambda i: windows(ids, [options.seed, i], BATCH_SIZE, WINDOW + 1),
        Schedule(options.target_steps, learning_rate=3e-3),
        directory=options.directory / "target",
        save_every=100,
        about=f"standard library of Python {platform.python_version()}, seed {options.seed}",
    ).params


def texts_path(directory: Path, num: int, seed: int) -> Path:
    return directory / f"texts-{num}-{seed}.npy"  # of the target in the same directory


def sample_texts(target: sx.Model, ids: np.ndarray, num: int, seed: int) -> np.ndarray:
    """What the target makes of beginnings from the corpus, int32 (num, WINDOW)."""
    prompts = windows(ids, seed, num, PROMPT)
    texts = []
    for i in range(0, num, SAMPLES_AT_ONCE):
        some = list(prompts[i : i + SAMPLES_AT_ONCE])
        seeds = [seed + 1 + i + j for j in range(len(some))]
        results = sx.generate(
            target,
            some,
            max_new_tokens=WINDOW - PROMPT,
            temperature=1.0,
            seed=seeds,
            slots=len(some),
            eos_ids=(),
        )
        texts += [np.append(a, b.tokens) for a, b in zip(some, results, strict=True)]
        print(f"sampled {len(texts)} of {num} texts", file=sys.stderr)
    return np.stack(texts).astype(np.int32)


def read_texts(target: sx.Model, texts: np.ndarray) -> np.ndarray:
    """The target's hidden states along its texts, float16 (num, WINDOW, D): read only once."""
    read = jax.jit(partial(hidden_states, target.network, target.params))
    pieces = [read(texts[i : i + BATCH_SIZE]) for i in range(0, len(texts), BATCH_SIZE)]
    return np.concatenate([np.asarray(piece, np.float16) for piece in pieces])


def train_draft(
    target: sx.Model,
    texts: np.ndarray,
    hidden: np.ndarray,
    loss_of: Callable,
    schedule: Schedule,
    seed: int,
    directory: Path | None = None,
) -> dict:
    """The draft's parameters; `loss_of(target_logits, draft_logits, tokens)` is to be small."""
    network = Decoder(DRAFT)
    read = slice(PROMPT - 1, -1)  # the positions whose next token the target drew

    def loss(params, batch):
        tokens, hidden = batch
        wanted = target.network.head(target.params, hidden[:, read].astype(jnp.float32))
        given = logits_along(network, params, tokens)[:, read]
        return jnp.mean(loss_of(wanted, given, tokens[:, PROMPT:]))

    def batch_of(i):
        picks = np.random.default_rng([seed, i]).integers(0, len(texts), BATCH_SIZE)
        return texts[picks], hidden[picks]

    params = network.init_params(jax.random.key(seed + 1))
    about = f"{len(texts)} texts, seed {seed}"
    return fit(
        loss, params, batch_of, schedule, directory=directory, save_every=100, about=about
    ).params


def save(path: Path, config: DecoderConfig, params: dict, info: dict) -> None:
    """Float16 weights, in the form that `speculax.load` reads."""
    metadata = {"config": json.dumps(asdict(config)), "info": json.dumps(info)}
    tensors = {name: np.asarray(array, np.float16) for name, array in flat(params).items()}
    save_file(tensors, path, metadata)
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="for the pair, and checkpoints on the way")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    parser.add_argument("--target-steps", type=int, default=2000, help="updates of the target")
    parser.add_argument("--draft-steps", type=int, default=3000, help="updates of the draft")
    parser.add_argument("--texts", type=int, default=4096, help="sampled to train the draft on")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)

    corpus = read_corpus()
    train, held_out = (
        [text for name, text in corpus.items() if is_held_out(name) == held]
        for held in (False, True)
    )
    backend = train_tokenizer(train)
    backend.save(str(options.directory / "tokenizer.json"))
    ids, held_out_ids = (
        np.concatenate([[END_ID, *encoding.ids] for encoding in backend.encode_batch(texts)])
        for texts in (train, held_out)
    )
    info = {
        "corpus": f"standard library of Python {platform.python_version()}",
        "sha256": digest(corpus),
        "seed": options.seed,
        "jax": jax.__version__,
    }
    print(f"{info['corpus']}: {len(corpus)} files, sha256 {info['sha256']}")
    print(f"{len(ids)} tokens to train on, {len(held_out_ids)} held out")

    target_params = train_target(ids, options)
    save(options.directory / "demo.safetensors", TARGET, target_params, info)
    target = sx.Model(Decoder(TARGET), target_params)
    path = texts_path(options.directory, options.texts, options.seed)
    if not path.exists():
        np.save(path, sample_texts(target, ids, options.texts, options.seed))
    texts = np.load(path)
    draft_params = train_draft(
        target,
        texts,
        read_texts(target, texts),
        lambda wanted, given, tokens: losses.lk_hybrid(wanted, given),
        Schedule(options.draft_steps, learning_rate=4e-3),
        options.seed,
        options.directory / "draft",
    )
    save(options.directory / "demo-draft.safetensors", DRAFT, draft_params, info)
    report(target, sx.Model(Decoder(DRAFT), draft_params), held_out_ids)


def report(target: sx.Model, draft: sx.Model, held_out: np.ndarray) -> None:
    """How well the two know text that neither was trained on."""
    pieces = windows(held_out, 1, 64, WINDOW + 1)
    wanted = logits_along(target.network, target.params, pieces[:, :-1])
    given = logits_along(draft.network, draft.params, pieces[:, :-1])
    for name, logits in (("target", wanted), ("draft", given)):
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, pieces[:, 1:])
        print(f"{name}: {float(jnp.mean(loss)):.3f} nats a token of held-out text")
    print(f"acceptance there, temperature 1: {float(losses.acceptance(wanted, given).mean()):.3f}")
    prompts = list(windows(held_out, 2, 64, PROMPT))
    results = sx.generate(
        target,
        prompts,
        drafter=sx.DraftModel(draft, 4),
        max_new_tokens=128,
        temperature=1.0,
        seed=range(64),
        slots=64,
        eos_ids=(),
    )
    drafted, accepted, steps, emitted = (
        sum(getattr(result.stats, name) for result in results)
        for name in ("drafted", "accepted", "steps", "emitted")
    )
    print(
        f"generating from held-out beginnings, 4 drafts a step: {accepted / drafted:.3f} of the "
        f"draft tokens accepted, {emitted / steps:.2f} tokens a step"
    )


if __name__ == "__main__":
    main()
