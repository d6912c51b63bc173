"""The command line as a process of its own: terminals, signals, pipes, missing packages."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.slow import slow_but

pty = pytest.importorskip("pty")

ROOT = Path(__file__).parents[2]
TOY = [sys.executable, "-m", "tests.cli.toy", "generate", "--draft-length=3"]
PROMPT = "\tsix_é [b]\n\tsix"
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in ("XLA_FLAGS", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE")
} | {"JAX_ENABLE_COMPILATION_CACHE": "false"}


def run(
    *args: str, stdin=None, stdout=subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        args,
        cwd=ROOT,
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | environment,
        timeout=120,
        check=False,
    )


def on_terminal(*args: str, **environment: str) -> tuple[str, str]:
    """Stdout, a terminal, and stderr, a pipe, of a run of the toy."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*TOY, *args],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT | {"TERM": "xterm-256color"} | environment,
    )
    os.close(follower)
    shown = b""
    try:
        while part := os.read(leader, 65536):
            shown += part
    except OSError:  # how Linux says that the other side was closed
        pass
    os.close(leader)
    _, complaints = process.communicate(timeout=120)
    assert process.returncode == 0, complaints
    return shown.decode().replace("\r\n", "\n"), complaints.decode()


@pytest.fixture(scope="module")
def made():
    """What the toy makes of the prompt, in JSON."""
    return json.loads(run(*TOY, PROMPT, "--max-new-tokens=60", "--json").stdout)


@pytest.mark.parametrize(
    ("environment", "mark", "legend"),
    [
        ({}, "\x1b[4;32m", "green and underlined: draft tokens"),
        pytest.param(
            {"NO_COLOR": "1"}, "\x1b[4m", "underlined: draft tokens", marks=pytest.mark.slow
        ),
        ({"TERM": "dumb"}, None, None),
    ],
    ids=["colour", "no colour", "dumb"],
)
def test_accepted_drafts_are_marked_on_a_terminal(environment, mark, legend, made):
    shown, complaints = on_terminal(PROMPT, "--max-new-tokens=60", **environment)
    assert re.sub(r"\x1b\[[\d;]*m", "", shown) == made["text"] + "\n"
    if mark is None:
        assert "\x1b" not in shown
        assert complaints.count("\n") == 1
        return
    assert complaints.startswith(legend)
    assert complaints.count("\n") == 2
    styles = set(re.findall(r"\x1b\[[\d;]*m", shown))
    assert styles == {mark, "\x1b[0m"}
    # Bytes are tokens here, so what is marked can be told from the flags.
    marked = re.findall(re.escape(mark) + r"(.*?)\x1b\[0m", shown)
    accepted = [
        character
        for character, last in zip(made["text"], last_bytes(made["text"]), strict=True)
        if made["accepted"][last] and character != "\n"
    ]
    assert accepted
    assert "".join(marked) == "".join(accepted)


def last_bytes(text: str) -> list[int]:
    """Where in the UTF-8 of `text` each character ends."""
    ends, end = [], -1
    for character in text:
        end += len(character.encode())
        ends.append(end)
    return ends


def test_json_on_a_terminal_is_plain():
    shown, complaints = on_terminal(PROMPT, "--max-new-tokens=20", "--json")
    assert shown.startswith("{")
    assert "\x1b" not in shown
    assert complaints == ""


def test_ctrl_c():
    process = subprocess.Popen(
        [*TOY, PROMPT, "--max-new-tokens=900"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT | {"TOY_SECONDS": "60"},
    )
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 65536)
    time.sleep(0.5)  # until it waits for the second chunk
    process.send_signal(signal.SIGINT)
    rest, complaints = process.communicate(timeout=30)
    assert process.returncode == 130
    [num_tokens] = re.fullmatch(rb"(\d+) tokens in .*, interrupted\n", complaints).groups()
    assert (first + rest) == ("_é [b]\n\tsix" * 900).encode()[: int(num_tokens)]


def test_ctrl_c_in_a_callback_is_remembered():
    program = """
import gc, signal
from speculax.cli import interrupt

def press(phase, info):
    gc.callbacks.clear()
    signal.raise_signal(signal.SIGINT)

interrupt.listen()
gc.callbacks.append(press)
gc.collect()
try:
    interrupt.check()
except KeyboardInterrupt:
    print("interrupted")
"""
    result = run(sys.executable, "-c", program)
    assert (result.stdout, result.stderr) == ("interrupted\n", "")


def test_the_interpreter_does_not_tidy_up_after_ctrl_c():
    program = """
import atexit, sys
import speculax as sx
from speculax.cli import main

def load(name):
    print("loading", end="")
    raise KeyboardInterrupt

atexit.register(print, "tidying up")
sx.load = load
sys.argv = ["speculax", "generate", "a"]
main()
"""
    result = run(sys.executable, "-c", program)
    assert (result.returncode, result.stdout) == (130, "loading")
    assert result.stderr == "interrupted\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    "args", slow_but([["info"]], [["generate", "a"], ["generate", "a", "--json"], ["info"]])
)
def test_an_output_that_is_full(args):
    with open("/dev/full", "w") as full:
        result = run(*TOY[:3], *args, stdout=full)
    assert result.returncode == 2
    assert result.stderr == (
        f"error: the output cannot be written: {os.strerror(errno.ENOSPC)}.\n\n"
        "hint: write it elsewhere, or make room\n"
    )


def test_an_output_without_some_characters(made):
    result = run(*TOY, PROMPT, "--max-new-tokens=60", PYTHONIOENCODING="ascii")
    assert result.stdout == made["text"].replace("é", "?")
    assert (result.returncode, result.stderr.count("\n")) == (0, 1)


def test_a_closed_stdin():
    result = run("sh", "-c", 'exec "$@" <&-', "sh", *TOY, "--prompt-file=-")
    assert result.returncode == 2
    assert result.stderr.startswith("error: the prompt on stdin could not be read: ")
    assert result.stderr.count("\n") == 3


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_leaves_is_no_error(options):
    process = subprocess.Popen(
        [*TOY, PROMPT, "--max-new-tokens=900", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, complaints = process.communicate(timeout=60)
    assert "Traceback" not in complaints
    assert "Exception" not in complaints


def test_compiled_programs_are_kept_and_read_again(made, tmp_path):
    def run_with_cache():
        return run(
            *TOY,
            PROMPT,
            "--max-new-tokens=60",
            SPECULAX_CACHE=str(tmp_path),
            JAX_ENABLE_COMPILATION_CACHE="true",
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        )

    results = [run_with_cache()]
    programs = list((tmp_path / "compiled").iterdir())
    results.append(run_with_cache())
    assert programs
    assert list((tmp_path / "compiled").iterdir()) == programs
    for program in programs:  # a torn write
        program.write_bytes(program.read_bytes()[:100])
    results.append(run_with_cache())
    for result in results:
        assert result.stdout == made["text"]
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_cli_extra(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; import speculax.cli; speculax.cli.main()"
    result = run(sys.executable, "-c", code)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == (
        f"error: the command line needs the package {missing}, which is not installed.\n\n"
        "hint: pip install 'speculax[cli]', or -e '.[cli]' in a clone\n"
    )


def test_the_console_script_shows_its_version():
    script = Path(sys.executable).with_name("speculax")
    result = run(str(script), "--version")
    assert re.fullmatch(r"speculax \d+\.\d+\.\d+\n", result.stdout)
    assert (result.returncode, result.stderr) == (0, "")
