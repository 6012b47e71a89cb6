"""What is wrong with a page that a browser shows."""


def violations(page, within: str) -> list[str]:
    """The rules of accessibility (axe) that what is `within` a selector breaks."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, context={"include": [[within]]}).response["violations"]
    return [f"{one['id']}: {node['html'][:150]}" for one in found for node in one["nodes"]]
