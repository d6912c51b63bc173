"""A model for tests of the command line: the next byte depends on the last one, and texts repeat.

Run as a program it is `speculax` with this model in the place of any other.
"""

import codecs
import itertools
import time

import jax
import jax.numpy as jnp

import speculax as sx
from tests.toy import Markov

CYCLE = "\tsix_é [b]\n".encode()
BOS, EOS = 256, 257


class ByteTokenizer:
    def encode(self, text):
        return [BOS, *text.encode()]

    def decode(self, ids):
        return bytes(id for id in ids if id < 256).decode("utf-8", "replace")

    def stream(self):
        return ByteStream()


class ByteStream:
    def __init__(self):
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id):
        return self.decoder.decode(bytes([id]) if id < 256 else b"")

    def flush(self):
        return self.decoder.decode(b"", final=True)


def model(*, damaged=False):
    following = jnp.full(258, CYCLE[0])
    for byte, after in itertools.pairwise(CYCLE):
        following = following.at[byte].set(after)
    noise = jax.random.normal(jax.random.key(0), (258, 258))
    logits = noise + 8 * jax.nn.one_hot(following, 258)
    if damaged:
        logits = logits * jnp.nan
    network = Markov(vocab_size=258, context_length=1024)
    return sx.Model(network, logits, tokenizer=ByteTokenizer(), eos_ids=(EOS,), name="toy")


class Slow:
    """A stream that takes its time, so that a test can interrupt it."""

    def __init__(self, stream, seconds):
        self.stream, self.seconds = stream, seconds

    def __iter__(self):
        for chunk in self.stream:
            yield chunk
            time.sleep(self.seconds)

    def results(self):
        return self.stream.results()


if __name__ == "__main__":
    import os

    from speculax.cli import main

    sx.load = lambda name: model()
    if seconds := float(os.environ.get("TOY_SECONDS", "0")):
        stream = sx.stream
        sx.stream = lambda *args, **kwargs: Slow(stream(*args, **kwargs), seconds)
    main()
