"""Take trace.png, a picture of the page of a trace: needs chromium and its driver."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By

from speculax.trace import read_trace

GENERATE = "generate --draft-model demo-draft --draft-length 5 --temperature 0.8 --seed 3"
SIZE = (1000, 1150)


def main() -> None:
    """Run the commands, open the page, point at a correction, and take the picture."""
    speculax = Path(sys.executable).with_name("speculax")
    with tempfile.TemporaryDirectory() as folder:
        trace, page = f"{folder}/run.jsonl", f"{folder}/run.html"
        made = [*GENERATE.split(), "--max-new-tokens=120", "--trace", trace, "class Stack:"]
        for command in (made, ["trace", trace, "--html", page]):
            subprocess.run([speculax, *command], check=True, stdout=subprocess.DEVNULL)
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
            options.add_argument(argument)
        options.add_argument(f"--window-size={SIZE[0]},{SIZE[1]}")
        browser = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            browser.get(f"file://{page}")
            kinds = [
                [token["kind"] for token in step["emitted"]]
                for step in read_trace(Path(trace)).steps
            ]
            number = next(i for i, of in enumerate(kinds) if of[2:] == ["accepted", "correction"])
            last = sum(map(len, kinds[: number + 1])) - 1
            browser.find_elements(By.CSS_SELECTOR, "#text .token")[last].click()
            browser.save_screenshot(str(Path(__file__).with_name("trace.png")))
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
