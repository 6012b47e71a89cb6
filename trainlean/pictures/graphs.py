"""Figures of recorded graphs: one graph with its operations, and the graphs that a training loop ran."""

import re
from collections.abc import Mapping, Sequence

from matplotlib.patches import FancyBboxPatch, Rectangle

from trainlean.pictures.style import CACHED_GRAPH, INK, NEW_GRAPH, PALE, SOFT, Picture, course_style

_NODE = re.compile(r'^\s*node(\d+) \[label="([^"]*)"', re.MULTILINE)  # an edge has a label, too
_EDGE = re.compile(r"node(\d+) -> node(\d+)")


def graph_layers(
    dot: str,
) -> tuple[dict[int, tuple[int, float]], dict[int, list[str]], list[tuple[int, int]]]:
    """Places (layer, position), labels (lines) and edges of a graph in DOT; a node stands one layer below its last input."""
    labels = {int(number): label.split("\\n") for number, label in _NODE.findall(dot)}
    edges = sorted({(int(tail), int(head)) for tail, head in _EDGE.findall(dot)})
    layer = dict.fromkeys(labels, 0)
    for _ in labels:  # the longest path has fewer edges than there are nodes
        for tail, head in edges:
            layer[head] = max(layer[head], layer[tail] + 1)
    for tail in labels:  # an input stands right above the operation that uses it
        heads = [layer[head] for one, head in edges if one == tail]
        if heads and not any(head == tail for _, head in edges):
            layer[tail] = min(heads) - 1
    places: dict[int, tuple[int, float]] = {}
    for depth in range(max(layer.values(), default=-1) + 1):
        row = [node for node in labels if layer[node] == depth]

        def above(node):
            inputs = [places[tail][1] for tail, head in edges if head == node and tail in places]
            return sum(inputs) / len(inputs) if inputs else 1e3 + node

        row.sort(key=above)
        for position, node in enumerate(row):
            places[node] = depth, position - (len(row) - 1) / 2
    return places, labels, edges


def plot_graph(dot: str) -> Picture:
    """A recorded graph, given in DOT: data in grey, operations in white, what is asked for in bold; read it downwards."""
    places, labels, edges = graph_layers(dot)
    depth = max((place[0] for place in places.values()), default=0) + 1
    widest = max((abs(place[1]) for place in places.values()), default=0) * 2 + 1
    with course_style():
        picture = Picture(
            max(4.2, 1.75 * widest + 0.3),
            0.82 * depth + 0.2,
            f"graph: {len(labels)} nodes, {len(edges)} edges, {depth} layers",
        )
        axes = picture.add_axes((0, 0, 1, 1))
        axes.axis("off")
        axes.set_xlim(-picture.get_figwidth() / 2, picture.get_figwidth() / 2)
        axes.set_ylim(-picture.get_figheight() + 0.45, 0.45)
        at = {node: (1.75 * position, -0.82 * layer) for node, (layer, position) in places.items()}
        for tail, head in edges:
            axes.annotate(
                "",
                (at[head][0], at[head][1] + 0.27),
                (at[tail][0], at[tail][1] - 0.27),
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": SOFT,
                    "lw": 1.1,
                    "shrinkA": 0,
                    "shrinkB": 0,
                },
            )
        for node, (x, y) in at.items():
            operation, shape = (
                labels[node][0],
                next((line for line in labels[node][1:] if "[" in line), ""),
            )
            data, root = (
                "device_data" in operation,
                any(line.startswith("ROOT") for line in labels[node]),
            )
            colour = PALE if data else "white"
            axes.add_patch(
                FancyBboxPatch(
                    (x - 0.72, y - 0.25),
                    1.44,
                    0.5,
                    boxstyle="round,pad=0,rounding_size=0.08",
                    facecolor=colour,
                    edgecolor=INK,
                    lw=1.8 if root else 0.9,
                )
            )
            axes.text(
                x,
                y + 0.09,
                "data" if data else operation.split("::")[-1],
                ha="center",
                va="center",
                size=9,
                weight="bold" if root else "normal",
            )
            axes.text(x, y - 0.11, shape, ha="center", va="center", size=7.5, color=SOFT)
    return picture


def plot_graphs_run(loops: Mapping[str, Sequence[tuple[int, bool]]]) -> Picture:
    """The graphs that training loops ran, in order: `loops` maps a name to (operations, newly compiled) of each graph.

    A block is as wide as its graph is large; those that had to be compiled are dark.
    """
    words = "; ".join(f"{name}: {len(graphs)} graphs" for name, graphs in loops.items())
    with course_style():
        picture = Picture(8.4, 0.75 * len(loops) + 0.75, words)
        axes = picture.add_axes(
            (0.02, 0.62 / picture.get_figheight(), 0.96, 1 - 0.66 / picture.get_figheight())
        )
        for row, (name, graphs) in enumerate(loops.items()):
            x = 0.0
            for size, compiled in graphs:
                axes.add_patch(
                    Rectangle(
                        (x, -row),
                        size,
                        0.42,
                        facecolor=NEW_GRAPH if compiled else CACHED_GRAPH,
                        edgecolor="white",  # parts the blocks and takes no room on the axis
                        lw=1,
                    )
                )
                x += size
            axes.text(
                0,
                0.5 - row,
                f"{name}: {len(graphs)} graphs, {sum(new for _, new in graphs)} of them compiled",
                va="bottom",
                size=9,
            )
        axes.autoscale_view()
        axes.set(
            ylim=(0.9 - len(loops), 0.85),
            yticks=[],
            xlabel="operations in the graphs, one graph after the other (dark: compiled, light: from the cache)",
        )
        axes.spines["left"].set_visible(False)
    return picture
