"""The page of a trace in a browser: Debian's chromium, driven by Selenium.

It needs chromium with its driver: `apt-get install chromium-driver`.
"""

import shutil

import numpy as np
import pytest

import speculax as sx
from speculax.trace import FORMAT, VERSION, Trace
from speculax.viewer import step_page, trace_page

pytestmark = pytest.mark.slow

KINDS = ["accepted", "accepted", "correction"]
RESULTS = ["accepted", "accepted", "refused", "untested"]
MANY = 20_000


def token(i):
    return {"token": i, "text": f" w{i}" if i % 11 else "\n", "kind": KINDS[i % 3]}


def draft(i, result):
    return {
        "token": i, "text": "<i>draft</i>", "target": 0.25, "draft": 0.5, "uniform": 0.4,
        "result": result,
    }  # fmt: skip


def step(number):
    first = 3 * number
    return {
        "type": "step",
        "number": number,
        "emitted": [token(first + i) for i in range(3)],
        "draft": [draft(i, result) for i, result in enumerate(RESULTS)],
        "sample_uniform": 0.125,
        "candidates": [
            {"token": first + 2, "text": " w", "draw": 0.75, "target": 0.6, "draft": 0.0},
            {"token": 7, "text": "<script>", "draw": 0.25, "target": 0.3, "draft": 0.1},
        ],
    }  # fmt: skip


RUN = {
    "type": "run", "format": FORMAT, "version": VERSION, "model": "toy", "drafter": "ngram",
    "verify": "token", "temperature": 0.7, "seed": 3, "prompt": "",
}  # fmt: skip
END = {"type": "end", "stop_reason": "length", "stats": {}}


def made(num_tokens):
    return Trace(RUN, [step(i) for i in range(num_tokens // 3)], END)


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as browser:
        yield browser


@pytest.fixture
def show(browser, tmp_path):
    def open_page(trace, width=1200):
        path = tmp_path / "run.html"
        path.write_text(trace_page(trace), "utf-8")
        browser.set_window_size(width, 900)
        browser.get(path.as_uri())
        return browser

    yield open_page
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def read(browser, selector):
    return browser.execute_script(
        "return document.querySelector(arguments[0]).textContent", selector
    )


def press(browser, key):
    from selenium.webdriver.common.by import By

    browser.find_element(By.CSS_SELECTOR, "#text [tabindex='0']").send_keys(key)


def test_the_text_is_shown_with_its_marks(show):
    trace = made(30)
    browser = show(trace)
    tokens = [token for one in trace.steps for token in one["emitted"]]
    assert read(browser, "#text") == "".join(token["text"] for token in tokens)
    classes = browser.execute_script(
        "return [...document.querySelectorAll('#text .token')].map((one) => one.classList[1])"
    )
    assert classes == [token["kind"] for token in tokens]


def test_what_looks_like_markup_is_shown_and_not_run(show):
    hostile = made(6)
    hostile.steps[0]["emitted"][0]["text"] = "<script>document.title = 'run'</script>"
    hostile.steps[0]["emitted"][1]["text"] = "<img src=x onerror=\"document.title='run'\">"
    browser = show(hostile)
    assert browser.title == "speculax trace"
    assert "<script>document.title = 'run'</script><img src=x" in read(browser, "#text")
    assert browser.execute_script("return document.querySelectorAll('#text *').length") == 6
    assert "<script>" in read(browser, "#detail")
    assert "<i>draft</i>" in read(browser, "#detail")


def test_keys_go_from_token_to_token_and_from_step_to_step(show):
    from selenium.webdriver.common.keys import Keys

    browser = show(made(1500))
    assert "Step 1 of 500" in read(browser, "#detail")
    for key, number in [
        (Keys.ARROW_RIGHT, 1), (Keys.ARROW_RIGHT, 1), (Keys.ARROW_RIGHT, 2), (Keys.ARROW_LEFT, 1),
        (Keys.ARROW_DOWN, 2), (Keys.ARROW_DOWN, 3), (Keys.ARROW_UP, 2), (Keys.END, 500),
        (Keys.ARROW_RIGHT, 500), (Keys.HOME, 1), (Keys.ARROW_LEFT, 1), (Keys.ARROW_UP, 1),
        (Keys.PAGE_DOWN, 167), (Keys.PAGE_UP, 1),
    ]:  # fmt: skip
        press(browser, key)
        assert f"Step {number} of 500" in read(browser, "#detail"), (key, number)
        # The focus is on the token that is shown.
        assert browser.execute_script("return document.activeElement.classList.contains('here')")


def test_pointing_at_a_token_shows_its_step(show):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    browser = show(made(60))
    spans = browser.find_elements(By.CSS_SELECTOR, "#text .token")
    ActionChains(browser).move_to_element(spans[16]).perform()
    assert "Step 6 of 20" in read(browser, "#detail")
    detail = read(browser, "#detail")
    for piece in (
        "2 of 4 drafted accepted, then a correction",
        "min(1, target / draft)",
        "max(target - draft, 0)",
        "refused",
        "untested",
        "0.250",
        "0.400",
        "0.125",
    ):
        assert piece in detail
    bars = browser.find_elements(By.CSS_SELECTOR, "#timeline i")
    assert len(bars) == 20
    bars[9].click()
    assert "Step 10 of 20" in read(browser, "#detail")


def test_a_long_text_keeps_few_nodes(show):
    from selenium.webdriver.common.keys import Keys

    browser = show(made(MANY))
    count = """
        const walker = document.createTreeWalker(document, NodeFilter.SHOW_ALL);
        let count = 0;
        while (walker.nextNode()) count += 1;
        return count;
    """
    for key in (None, Keys.PAGE_DOWN, Keys.END):
        if key:
            press(browser, key)
        assert browser.execute_script(count) <= 3000
    assert read(browser, "#page") == "page 40 of 40"
    assert browser.execute_script("return document.getElementById('after').disabled")


@pytest.mark.parametrize("width", [360, 800, 1200])
def test_nothing_is_wider_than_the_window(show, width):
    browser = show(made(600), width)
    # Chromium's windows have a least width; a frame has none.
    browser.execute_script(
        "const page = document.documentElement.outerHTML; document.body.replaceChildren();"
        "const frame = document.createElement('iframe'); frame.style = `border:0;height:900px;"
        "width:${arguments[0]}px`; document.body.append(frame); frame.srcdoc = page;",
        width,
    )
    browser.implicitly_wait(2)
    browser.switch_to.frame(0)
    from selenium.webdriver.common.by import By

    browser.find_element(By.CSS_SELECTOR, "#text .token")
    wide, seen = browser.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    browser.switch_to.default_content()
    assert wide <= seen <= width


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (Trace(RUN, [], END), "This run made no tokens."),
        (
            Trace(RUN, [{"type": "step", "number": 0, "emitted": [token(1)], "draft": None,
                         "sample_uniform": None, "candidates": None}], None),
            "No probabilities were recorded",
        ),
    ],
    ids=["no tokens", "no probabilities"],
)  # fmt: skip
def test_what_is_missing_is_said(show, trace, words):
    browser = show(trace)
    assert words in read(browser, "main")


def test_without_javascript_the_text_is_shown(show, browser):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(made(30))
        from selenium.webdriver.common.by import By

        shown = browser.find_element(By.CSS_SELECTOR, "noscript pre").text
        assert "w1 w2" in shown
        assert not browser.find_element(By.CSS_SELECTOR, "main").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


# --- One step to play with


def random_case(number):
    rng = np.random.default_rng([8, number])
    length, size = rng.integers(1, 4), rng.integers(2, 6)
    draft, target = (
        rng.dirichlet(np.full(size, 0.7), length + extra).astype(np.float32) for extra in (0, 1)
    )
    tokens = np.array([rng.choice(size, p=row / row.sum(dtype=np.float64)) for row in draft])
    accept, sample = rng.random(length), rng.random()
    return tokens, draft, target, accept, sample


CONTRACT = (
    np.array([3, 2]),
    np.array([[0.2, 0.59, 0.04, 0.17], [0.12, 0.43, 0.42, 0.03]]),
    np.array([[0.04, 0.44, 0.24, 0.28], [0.27, 0.36, 0.23, 0.14], [0.19, 0.34, 0.07, 0.4]]),
    np.array([0.27, 0.79]),
    0.92,
)


@pytest.fixture
def play(browser, tmp_path):
    def open_page(*case, **kwargs):
        path = tmp_path / "step.html"
        path.write_text(step_page(*case, **kwargs), "utf-8")
        browser.get(path.as_uri())
        return browser

    yield open_page
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_the_page_judges_as_the_rules_do(play):
    browser = play(*CONTRACT)
    verifiers = {"token": sx.verify_token, "block": sx.verify_block}
    for number in range(60):
        tokens, draft, target, accept, sample = random_case(number)
        case = {
            "tokens": tokens.tolist(), "draft": draft.tolist(), "target": target.tolist(),
            "accept": accept.tolist(), "sample": sample,
        }  # fmt: skip
        for rule, verify in verifiers.items():
            found = browser.execute_script(
                "const found = judge(arguments[0], arguments[1]);return [found.kept, found.drawn]",
                case,
                rule,
            )
            verdict = verify(
                tokens[None], draft[None], target[None], accept[None].astype(np.float32),
                np.array([sample], np.float32),
            )  # fmt: skip
            kept = int(verdict["num_accepted"][0])
            assert found == [kept, int(verdict["tokens"][0, kept])], (number, rule)


def test_it_begins_with_the_case_and_follows_what_is_moved(play):
    browser = play(*CONTRACT)
    assert read(browser, "#verdict").startswith("num_accepted 1, tokens [3, 3]")
    move = """
        const input = document.querySelector(`[aria-label="${arguments[0]}"]`);
        input.value = arguments[1];
        input.dispatchEvent(new Event(input.tagName === "SELECT" ? "change" : "input"));
    """
    browser.execute_script(move, "uniform of test 2", 0.3)
    assert read(browser, "#verdict").startswith("num_accepted 2, tokens [3, 2, 3]")
    browser.execute_script(move, "uniform of test 1", 0.99)
    browser.execute_script(move, "draft token 1", 1)
    assert read(browser, "#verdict").startswith("num_accepted 0, tokens [3]")
    browser.execute_script("document.getElementById('reset').click()")
    assert read(browser, "#verdict").startswith("num_accepted 1, tokens [3, 3]")
