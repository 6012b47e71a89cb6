"""What is wrong with a page that a browser shows."""

# JupyterLab's body is 0 pixels high and hides what is beyond it, so that axe takes all of its text for hidden.
LOOK = """async ([within, options]) => {
  if (!document.body.offsetHeight) document.body.style.minHeight = '100vh';
  const found = await axe.run({ include: [[within]] }, options);
  const said = found.violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html.slice(0, 150)}`));
  const unseen = found.inapplicable.some(({ id }) => id === 'color-contrast');
  return unseen ? [...said, `color-contrast: no text is seen within ${within}`] : said;
}"""


def violations(page, within: str, rules: list[str] | None = None) -> list[str]:
    """The rules of accessibility (axe), all or those given, that what is `within` a selector breaks."""
    from axe_playwright_python.base import AXE_SCRIPT

    # Without reading the style sheets once more, which a page of a folder may not; of what breaks no rule, and of where
    # it stands, nothing is written down, which takes as long as looking.
    options: dict = {
        "preload": False,
        "resultTypes": ["violations"],
        "selectors": False,
        "elementRef": False,
    }
    if rules:
        options["runOnly"] = {"type": "rule", "values": rules}
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(AXE_SCRIPT)
    return page.evaluate(LOOK, [within, options])
