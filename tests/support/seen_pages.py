"""What is wrong with a page that a browser shows."""


def violations(page, within: str, rules: list[str] | None = None) -> list[str]:
    """The rules of accessibility (axe), all or those given, that what is `within` a selector breaks."""
    from axe_playwright_python.sync_playwright import Axe

    # Without reading the style sheets once more, which a page of a folder may not; of what breaks no rule, and of where
    # it stands, nothing is written down, which takes as long as looking.
    options = {
        "preload": False,
        "resultTypes": ["violations"],
        "selectors": False,
        "elementRef": False,
    }
    if rules:
        options["runOnly"] = {"type": "rule", "values": rules}
    found = Axe().run(page, context={"include": [[within]]}, options=options).response["violations"]
    return [f"{one['id']}: {node['html'][:150]}" for one in found for node in one["nodes"]]
