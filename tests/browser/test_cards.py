"""Cards in VS Code, in both themes."""

import pytest
from seen_pages import violations

from trainlean.pictures.cards import code_html, folding_card, text_card
from trainlean.pictures.colours import BROKEN, GOOD, NEUTRAL, POOR

# Of "Light Modern" and "Dark Modern", as VS Code 1.100 gives them to an output.
THEMES = {
    "light": ("#ffffff", "#3b3b3b", "#f8f8f8", "#3b3b3b", "#0000001f"),
    "dark": ("#1f1f1f", "#cccccc", "#2b2b2b", "#d0d0d0", "#3c3c3c"),
}
# Microsoft's Jupyter extension brings JupyterLab's light colours along, in every theme.
PAGE = """<html lang="en"><title>VS Code</title><style>
:root {{ --jp-layout-color1: white; --jp-layout-color2: #eeeeee; --jp-content-font-color1: black; }}
:root {{ --vscode-editor-background: {0}; --vscode-foreground: {1}; --vscode-textCodeBlock-background: {2}; }}
body {{ background: {0}; color: {1}; }} code {{ color: {3}; background: {4}; }}
</style><main>{5}</main></html>"""


@pytest.mark.parametrize("theme", THEMES)
def test_a_card_has_the_colours_of_vs_codes_theme(theme, open_page):
    cards = [
        folding_card("", ("Wrong", "an exercise"), ["Its loss."], {"more": code_html("x = 1")}, one)
        for one in (GOOD, POOR, BROKEN, NEUTRAL)
    ]
    shown = [*cards, text_card("`loss` is not divided")]
    page = open_page("about:blank", allowed="about:")
    page.set_content(PAGE.format(*THEMES[theme], "".join(one._repr_html_() for one in shown)))
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    seen = page.evaluate(
        "[...document.querySelectorAll('main > div')].map((one) => getComputedStyle(one).backgroundColor)"
    )
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert seen == [paper] * len(shown)
    assert violations(page, "main", ["color-contrast"]) == []
