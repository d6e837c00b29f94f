"""Run in an environment of its own: `python browse.py BROWSER URL` prints the text of the graph that Netron draws."""

from __future__ import annotations

import re
import sys

from playwright.sync_api import sync_playwright

#: Headless as root, and without the background services that look for the network.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip

with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=sys.argv[1], args=FLAGS)
    page = browser.new_page()
    page.goto(sys.argv[2])
    page.click("#message-button")  # Netron asks for consent to its telemetry before it opens the model
    page.wait_for_selector("#canvas text", timeout=30_000, state="attached")
    print(
        "\n".join(re.findall(r"<text[^>]*>([^<]+)</text>", page.content()))
    )  # Netron forbids eval, so read the markup
    browser.close()
