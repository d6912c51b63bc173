"""`speculax generate`, in process, with a toy model."""

import json
import re

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import speculax as sx
from speculax.cli.app import app
from speculax.models.errors import LoadError
from tests.cli import toy

PROMPT = "\tsix_é [b]\n\tsix"
STATS = re.compile(
    r"(\d+) tokens in (\d+) steps, [\d.]+ tok/s, block efficiency [\d.]+, "
    r"(acceptance rate [\d.]+|no drafts), first token after [\d.]+ s.*"
)


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sx, "load", lambda name: toy.model())
    # A setting of the whole process, which other tests share.
    monkeypatch.setattr("speculax.cli.generate._keep_compiled_programs", lambda: None)


def run(*args: str, **kwargs):
    # Short drafts compile fewer programs.
    return CliRunner().invoke(app, ["generate", "--draft-length=3", *args], **kwargs)


def run_json(*args: str):
    result = run("--json", *args)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def expect_error(result, problem: str):
    assert result.exit_code == 2
    assert result.stdout == ""
    assert re.fullmatch(r"error: [^\n]+\.\n\nhint: [^\n]+\n", result.stderr)
    assert problem in result.stderr


def test_text_alone_is_on_stdout_and_one_line_of_stats_on_stderr():
    result = run(PROMPT, "--max-new-tokens", "60")
    assert result.exit_code == 0
    assert result.stdout == sx.generate(toy.model(), PROMPT, max_new_tokens=60).text
    assert "_é [b]\n\tsix" in result.stdout
    assert STATS.fullmatch(result.stderr.rstrip("\n"))


def test_the_options_reach_generate():
    settings = {
        "max_new_tokens": 50, "temperature": 0.7, "top_k": 200, "top_p": 0.99, "min_p": 0.001,
        "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": -0.1,
    }  # fmt: skip
    options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    shown = run_json(
        PROMPT, *options, "--seed=9", "--draft-length=2", "--max-ngram=2", "--deterministic",
        "--stop=no such text", "--stop-id=5", "--stop-id=6", "--logprobs=1",
        "--order=joint", "--logit-bias=3=0.5", "--logit-bias=4=-inf",
    )  # fmt: skip
    settings |= {"stop": ["no such text"], "stop_ids": [5, 6], "order": "joint"}
    expected = sx.generate(
        toy.model(),
        PROMPT,
        drafter=sx.NGram(draft_length=2, max_ngram=2),
        seed=9,
        deterministic=True,
        log_probs=1,
        logit_bias={3: 0.5, 4: -np.inf},
        **settings,
    )
    assert shown["text"] == expected.text
    assert shown["tokens"] == expected.tokens.tolist()
    assert shown["accepted"] == expected.accepted.tolist()
    assert shown["seed"] == 9
    assert shown["stop_reason"] == expected.stop_reason
    assert shown["stats"]["drafted"] == expected.stats.drafted > 0
    assert shown["log_probs"]["top_tokens"] == expected.log_probs.top_tokens.tolist()
    np.testing.assert_allclose(shown["log_probs"]["model"], expected.log_probs.model)
    assert shown["settings"] == settings | {
        "logit_bias": ["3=0.5", "4=-inf"],
        "model": "demo",
        "drafter": "ngram",
        "verify": "token",
        "deterministic": True,
        "draft_length": 2,
        "max_ngram": 2,
    }


def test_a_text_ends_before_a_stop_string():
    whole = run(PROMPT, "--max-new-tokens=60").stdout
    assert "[b]" in whole
    result = run(PROMPT, "--max-new-tokens=60", "--stop=[b]", "--stop=nowhere")
    assert result.stdout == whole[: whole.index("[b]")]


def test_a_draft_model_and_a_rule_reach_generate():
    shown = run_json(
        PROMPT, "--draft-model=small", "--verify=coupled", "--temperature=0.7", "--seed=3",
        "--max-new-tokens=30",
    )  # fmt: skip
    expected = sx.generate(
        toy.model(),
        PROMPT,
        drafter=sx.DraftModel(toy.model(), 3),
        verify="coupled",
        max_new_tokens=30,
        temperature=0.7,
        seed=3,
    )
    assert shown["tokens"] == expected.tokens.tolist()
    assert shown["stats"]["acceptance_rate"] == 1  # both names load the same toy
    assert (shown["settings"]["drafter"], shown["settings"]["verify"]) == ("small", "coupled")


def test_suffixes_may_draft():
    shown = run_json(PROMPT, "--suffix", "--max-new-tokens=30")
    expected = sx.generate(toy.model(), PROMPT, drafter=sx.Suffix(3), max_new_tokens=30)
    assert shown["accepted"] == expected.accepted.tolist()
    assert shown["settings"]["drafter"] == "suffix"


def test_a_draft_model_proposes_four_tokens_unless_told():
    args = ["generate", "--json", PROMPT, "--draft-model=small", "--max-new-tokens=20"]
    shown = json.loads(CliRunner().invoke(app, args).stdout)
    assert shown["settings"]["draft_length"] == 4
    assert shown["stats"]["steps"] == 4


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--verify=best"], "verify must be one of token, block"),
        (["--verify=greedy", "--temperature=1"], "temperature must be 0"),
        (["--draft-model=small", "--no-draft"], "a drafter was named, which --no-draft forbids"),
        (["--draft-model=small", "--suffix"], "--suffix exclude each other"),
        (["--logit-bias=7"], "--logit-bias must be a token id, =, and a number, got 7"),
        (["--logit-bias=-1=0"], "logit_bias must be for token ids from 0"),
        (["--order=any"], 'order must be "sequential" or "joint", got'),
        (["--draft-model=small", "--draft-length=0"], "draft_length must be an integer from 1"),
    ],
)
def test_rules_and_draft_models_that_cannot_be_are_errors(options, problem):
    expect_error(run(PROMPT, *options), problem)


def test_no_draft_drafts_nothing():
    shown = run_json(PROMPT, "--no-draft", "--max-new-tokens=20")
    assert shown["stats"]["drafted"] == 0
    assert shown["stats"]["acceptance_rate"] is None
    assert not any(shown["accepted"])
    assert "no drafts" in run(PROMPT, "--no-draft", "--max-new-tokens=20").stderr


def test_a_fresh_seed_is_shown_and_repeats_the_text():
    options = (PROMPT, "--temperature=1", "--max-new-tokens=40")
    fresh = run_json(*options)
    again = run_json(*options, f"--seed={fresh['seed']}")
    assert again["tokens"] == fresh["tokens"]
    assert re.search(r", seed \d+$", run(*options).stderr.rstrip("\n"))


def test_compare_tells_speedup_and_that_the_text_is_the_same():
    result = run(PROMPT, "--compare", "--max-new-tokens=60")
    assert result.exit_code == 0
    assert result.stdout == sx.generate(toy.model(), PROMPT, max_new_tokens=60).text
    stats, comparison = result.stderr.splitlines()
    assert STATS.fullmatch(stats)
    assert re.fullmatch(
        r"without speculation: 60 tokens, [\d.]+ tok/s, same text; speedup [\d.]+x "
        r"\(tokens per second of decoding on cpu, one request, both warm\)",
        comparison,
    )


def test_compare_as_json():
    shown = run_json(PROMPT, "--compare", "--max-new-tokens=60")
    comparison = shown["comparison"]
    assert comparison["same_text"] is True
    assert comparison["stats"]["drafted"] == 0
    assert comparison["speedup"] == pytest.approx(
        shown["stats"]["tokens_per_second"] / comparison["stats"]["tokens_per_second"]
    )


def test_compare_admits_another_text(monkeypatch: pytest.MonkeyPatch):
    stream = sx.stream

    def unlike(*args, drafter, **kwargs):
        return stream(*args, drafter=drafter, **kwargs | {"max_new_tokens": 9 if drafter else 8})

    monkeypatch.setattr(sx, "stream", unlike)
    assert "NOT the same text" in run(PROMPT, "--compare").stderr
    assert "the law is the same" in run(PROMPT, "--compare", "--temperature=1").stderr


def test_prompt_from_a_file_or_stdin_is_taken_as_it_is(tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_bytes((PROMPT + "_é [b]\n").encode())
    texts = [
        run(f"--prompt-file={path}").stdout,
        run("--prompt-file=-", input=path.read_bytes()).stdout,
        run(path.read_text(encoding="utf-8")).stdout,
    ]
    assert texts[0].startswith("\tsix")
    assert texts == [texts[0]] * 3


def test_zero_tokens():
    result = run(PROMPT, "--max-new-tokens=0", "--compare")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr.startswith("0 tokens in 0 steps")


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ((), "a prompt is needed"),
        (("a", "--prompt-file=b"), "PROMPT and --prompt-file were both given"),
        (("--prompt-file=missing.txt",), "the prompt file missing.txt could not be read"),
        (("--prompt-file=.",), "the prompt file . could not be read"),
        (("a\udcff",), "PROMPT is not UTF-8 text: byte 1 is 0xff"),
        (("a\ud800",), "PROMPT is not UTF-8 text: character 1 is half a surrogate pair"),
        (
            ("a", "--max-new-tokens=-1"),
            "--max-new-tokens must be at least 0 and at most 2147483647, got -1",
        ),
        (("a", "--temperature=-1"), "--temperature must be at least 0 and at most 1e+30, got -1.0"),
        (("a", "--temperature=nan"), "--temperature must be at least 0 and at most 1e+30, got nan"),
        (("a", "--temperature=1e31"), "must be at least 0 and at most 1e+30, got 1e+31"),
        (("a", "--seed=-1"), "seed must be an integer"),
        (("a", "--draft-length=-2"), "--draft-length must be at least 0, got -2"),
        (("a", "--max-ngram=0"), "--max-ngram must be at least 1, got 0"),
        (("a", "--compare", "--no-draft"), "--compare runs with and without drafts"),
        (("a" * 1100,), "1101"),
        (("a", "--max-new-tokens=2000"), "2000"),
    ],
)
def test_errors(args, problem):
    expect_error(run(*args), problem)


@pytest.mark.parametrize(
    ("args", "content"), [(["--prompt-file=-"], b"ab\xff"), (["--prompt-file=bad.txt"], b"ab\xff")]
)
def test_a_prompt_that_is_not_utf8(args, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.txt").write_bytes(content)
    expect_error(run(*args, input=content), "is not UTF-8 text: byte 2 is 0xff")


@pytest.mark.skipif("os.geteuid() == 0", reason="root may read everything")
def test_a_prompt_file_without_permission(tmp_path):
    path = tmp_path / "prompt.txt"
    path.touch(mode=0)
    expect_error(run(f"--prompt-file={path}"), "Permission denied")


@pytest.mark.parametrize("options", [[], ["--json", "--compare"]])
def test_damaged_weights_are_an_error(monkeypatch, options):
    monkeypatch.setattr(sx, "load", lambda name: toy.model(damaged=True))
    result = run("a", *options)
    expect_error(result, "request 0")
    assert "hint: the weights may be damaged" in result.stderr


def raising(error):
    def raises(*args, **kwargs):
        raise error

    return raises


def test_a_model_that_cannot_be_loaded_is_an_error(monkeypatch):
    error = LoadError("it is [red]cut[/red]\nshort", "get it again")
    monkeypatch.setattr(sx, "load", raising(error))
    result = run("a")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: it is [red]cut[/red] short.\n\nhint: get it again\n"


@pytest.mark.parametrize("place", ["load", "Stream.__iter__"])
def test_too_little_memory_is_an_error(monkeypatch, place):
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nallocating 9 bytes.")
    monkeypatch.setattr(f"speculax.{place}", raising(error))
    result = run("a")
    expect_error(result, "out of memory (RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.)")
    assert "--max-new-tokens" in result.stderr


@pytest.mark.parametrize(
    "error",
    [
        ValueError("shapes"),
        OSError(5, "?"),
        FloatingPointError("?"),
        jax.errors.JaxRuntimeError("INTERNAL: ?"),
    ],
)
@pytest.mark.parametrize("place", ["speculax.load", "speculax.cli.generate.describe"])
def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch, error, place):
    monkeypatch.setattr(place, raising(error))
    result = run("a", "--max-new-tokens=1")
    assert result.exception is error
    assert "error:" not in result.stderr


def test_a_value_error_inside_the_loop_is_a_fault_of_the_program(monkeypatch):
    error = ValueError("Incompatible shapes")
    monkeypatch.setattr(sx.Stream, "__iter__", raising(error))
    assert run("a").exception is error


class Interrupting:
    """A stream in which Ctrl-C is pressed after `num_chunks`."""

    def __init__(self, stream, num_chunks):
        self.stream, self.num_chunks = stream, num_chunks

    def __iter__(self):
        for i, chunk in enumerate(self.stream):
            if i == self.num_chunks:
                raise KeyboardInterrupt
            yield chunk
        raise KeyboardInterrupt

    def results(self):
        return self.stream.results()


@pytest.mark.parametrize("num_chunks", [0, 1])
@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_keeps_what_was_made(monkeypatch, num_chunks, as_json):
    stream = sx.stream
    monkeypatch.setattr(
        sx, "stream", lambda *args, **kwargs: Interrupting(stream(*args, **kwargs), num_chunks)
    )
    result = run(PROMPT, "--max-new-tokens=900", *["--json"] * as_json)
    assert result.exit_code == 130
    if as_json:
        shown = json.loads(result.stdout)
        assert shown["stop_reason"] == "interrupted"
        assert len(shown["tokens"]) < 900
    else:
        [num_tokens] = re.match(r"(\d+) tokens in .*, interrupted\n$", result.stderr).groups()
        full = sx.generate(toy.model(), PROMPT, max_new_tokens=900)
        assert result.stdout == toy.ByteTokenizer().decode(full.tokens[: int(num_tokens)])


def test_ctrl_c_that_was_discarded(monkeypatch):
    def load(name):
        monkeypatch.setattr("speculax.cli.interrupt._pressed", True)
        return toy.model()

    monkeypatch.setattr(sx, "load", load)
    result = run(PROMPT)
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "0 tokens in 0 steps, interrupted\n"


def test_ctrl_c_while_loading(monkeypatch):
    def load(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(sx, "load", load)
    result = run("a")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


def test_stats_do_not_hide_an_empty_run():
    assert np.isnan(sx.generate(toy.model(), PROMPT, max_new_tokens=1).stats.acceptance_rate)
