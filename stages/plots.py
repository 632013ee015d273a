"""Fidelity over training as a page that works offline: `python -m stages.plots`.

In: data/plots/fidelity.json, the plots of dvc.yaml. Out: .dvc/page.html (an HTML template for DVC that carries vega
itself, where DVC's own loads it from the network), dvc_plots/index.html.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import vl_convert

from stages.command import Refusal, run, say
from stages.files import DATA, read_json, write_bytes

# Next to .dvc/config.local, which names it: DVC fails if the template that it is told to use is not there.
TEMPLATE = Path(".dvc/page.html")

# DVC's page calls vegaEmbed(place, spec). The link to the online editor is left out of the menu.
SNIPPET = """window.vegaEmbed = (place, spec) =>
    vegaEmbed(place, spec, {renderer: "svg", actions: {editor: false}});"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Lensmill: fidelity over training</title>
<style>body { margin: 2rem; font-family: sans-serif; }</style>
<script>(() => {%s})();</script>
</head>
<body>
{plot_divs}
</body>
</html>
"""


def _dvc(*words: str) -> str:
    """What a DVC command says; its warnings and errors go to stderr as they are."""
    ended = subprocess.run([sys.executable, "-m", "dvc", *words], stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        raise Refusal(f"`dvc {' '.join(words)}` failed: see above")
    return ended.stdout.strip()


def main() -> None:
    """Write the template, have DVC fill it, say where the page is.

    Raises:
        Refusal: there is nothing to plot, or DVC failed.
    """
    rows = DATA / "plots" / "fidelity.json"
    if not rows.exists():
        raise Refusal(f"{rows} is not there: run `make repro`")
    if not read_json(rows):
        raise Refusal(f"{rows} has no model in it: run `make repro`")
    write_bytes(TEMPLATE, (PAGE % vl_convert.javascript_bundle(SNIPPET)).encode())
    if not _dvc("config", "plots.html_template"):
        _dvc("config", "--local", "plots.html_template", TEMPLATE.name)  # for a bare `dvc plots show` or `diff`
    say(f"plots: {_dvc('plots', 'show', '--html-template', str(TEMPLATE))}")


if __name__ == "__main__":
    run("plots", main)
