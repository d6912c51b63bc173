"""`speculax info` and the app around it."""

import json
from importlib.metadata import version

import jax
import pytest
from typer.testing import CliRunner

from speculax.cli.app import app


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setenv("SPECULAX_CACHE", str(tmp_path))
    model = tmp_path / "toy"
    model.mkdir()
    (model / "model.safetensors").write_bytes(bytes(3_000_000))
    (model / "tokenizer.json").write_bytes(bytes(500_000))
    (tmp_path / "toy.lock").touch()
    (tmp_path / "half.tmp").mkdir()
    (tmp_path / "half.tmp" / "model.safetensors").write_bytes(bytes(1_000_000))


def test_info(tmp_path):
    result = CliRunner().invoke(app, ["info"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    for name in ("speculax", "jax", "jaxlib", "numpy"):
        assert f"{name:<10}{version(name)}" in lines
    assert str(jax.devices()[0]) in result.stdout
    assert lines[-2:] == [f"cache     {tmp_path}", "          toy: 4 MB"]
    assert result.stderr == ""


def test_info_as_json(tmp_path):
    result = CliRunner().invoke(app, ["info", "--json"])
    shown = json.loads(result.stdout)
    assert shown["versions"]["jax"] == version("jax")
    assert len(shown["devices"]) == len(jax.devices())
    assert shown["cache"] == {"directory": str(tmp_path), "model_bytes": {"toy": 3_500_000}}


def test_info_without_a_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECULAX_CACHE", str(tmp_path / "none"))
    assert CliRunner().invoke(app, ["info"]).stdout.endswith("no models yet\n")


def test_help_names_the_commands():
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "generate" in result.stdout
    assert "info" in result.stdout
