"""What the kit says of a step and a sampler of transformers; docs/check.md tells more."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from speculax.conformance import check

PEERS = Path(__file__).parents[2] / "examples" / "check_peers.py"


@pytest.mark.slow  # a minute
@pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers is in the group reference only"
)
@pytest.mark.parametrize(
    ("name", "kind"), [("transformers_step", "keys"), ("transformers_sampler", "sampler")]
)
def test_transformers_keeps_the_contract(name, kind):
    report = check(f"{PEERS}:{name}", kind=kind, level="contract", use_jit=False)
    assert report.passed
    assert report.diagnosis is None
