"""The API as a page: what notebooks import, with signatures and docstrings, read from the sources, so that nothing is imported."""

import ast
from collections.abc import Iterator
from html import escape

import trainlean
from trainlean.site.lessons import Page
from trainlean.site.markdown import html_of
from trainlean.workspace import COURSE

API = "api.html"
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def api_page() -> Page:
    """What `from trainlean import ...` offers, by the file that has it. LookupError: a file has not what EXPORTS says."""
    parts = [
        "<h1>API</h1><p>What <code>from trainlean import ...</code> offers, by the file that has it.</p>"
    ]
    headings = []
    for file, names in trainlean.EXPORTS.items():
        tree = _parsed(file)
        about = (ast.get_docstring(tree) or "").partition("\n\n")[0]
        headings.append((2, file, file))
        parts.append(f'<h2 id="{file}">{file}</h2><div class="prose">{html_of(about)}</div>')
        parts += [_entry(name, _definition(tree, name), 3) for name in names]
    return Page(API, "API", "".join(parts), headings)


def _parsed(file: str) -> ast.Module:
    source = COURSE / "trainlean" / f"{file.replace('.', '/')}.py"
    return ast.parse(source.read_text(encoding="utf-8"))


def _definition(tree: ast.Module, name: str) -> ast.stmt:
    """Where a name of a file is made: there, or in the file of the course that it comes from."""
    for node in tree.body:
        if name in _names(node):
            return node
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return _definition(_parsed(str(node.module).removeprefix("trainlean.")), name)
    raise LookupError(f"trainlean.EXPORTS names {name}, which its file has not.")


def _names(node: ast.stmt) -> list[str]:
    """The names that a statement of a file's top level makes."""
    if isinstance(node, Definition):
        return [node.name]
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return [
        part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
    ]


def _entry(name: str, node: ast.stmt, level: int) -> str:
    says = (ast.get_docstring(node) or "") if isinstance(node, Definition) else ""
    text = "".join(
        [
            f'<h{level} id="{name}"><code>{name}</code></h{level}>',
            f'<pre class="signature">{escape(_signature(name, node))}</pre>',
            f'<div class="prose">{html_of(says)}</div>',
        ]
    )
    if isinstance(node, ast.ClassDef):
        text += "".join(
            _entry(f"{name}.{method.name}", method, level + 1) for method in _methods(node)
        )
    return text


def _methods(node: ast.ClassDef) -> Iterator[Definition]:
    """Public methods and properties, in the order of the file."""
    for inner in node.body:
        if isinstance(inner, Definition) and not inner.name.startswith("_"):
            yield inner


def _signature(name: str, node: ast.stmt) -> str:
    """How it is called: of a class, its `__init__`, or its fields where a decorator writes that; of a value, how it is made."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        given = ast.unparse(node.args)
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        if any(ast.unparse(one).endswith("property") for one in node.decorator_list):
            return name + returns.replace(" -> ", ": ")
        inside = name.count(".") and "staticmethod" not in map(ast.unparse, node.decorator_list)
        return f"{name}({_without_self(given) if inside else given}){returns}"
    if isinstance(node, ast.ClassDef):
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                return f"{name}({_without_self(ast.unparse(inner.args))})"
        fields = [ast.unparse(inner) for inner in node.body if isinstance(inner, ast.AnnAssign)]
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"{name}({', '.join(fields)})" if fields else f"class {name}({bases})"
    text = ast.unparse(node)
    return text if len(text) < 300 else text[:300] + " ..."


def _without_self(given: str) -> str:
    return given.partition(", ")[2]
