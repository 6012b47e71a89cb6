"""How long Chromium takes from a moved control of the explorer, or a step of the player, to the new picture: median against the limit of 50 ms.

python benchmarks/explorer_redraw.py [--short]
"""

import argparse
import statistics
from dataclasses import replace

from chromium import browser

from trainlean.costs.links import traffic
from trainlean.costs.runs import CATEGORIES, Run
from trainlean.pictures.explorer import explorer
from trainlean.pictures.player import player
from trainlean.pictures.widget import script, style
from trainlean.recordings.loops import record

LIMIT = 0.050


def run(micro_batch: int, accumulation_steps: int, checkpointing: str) -> Run:
    """A made-up run with a plausible shape: memory grows with the micro-batch, throughput levels off."""
    kept, pace = (1.0, 1.0) if checkpointing == "off" else (0.3, 0.75)
    peak = (8, 8, 16, 6 * micro_batch * kept, 2 + 0.2 * micro_batch)
    speed = 360 * pace * (1 - 0.5 / micro_batch) - accumulation_steps
    samples = micro_batch * accumulation_steps
    settings = {
        "micro_batch": micro_batch,
        "accumulation_steps": accumulation_steps,
        "checkpointing": checkpointing,
    }
    sizes = {category: int(size * 2**20) for category, size in zip(CATEGORIES, peak, strict=True)}
    return Run(f"{settings}", settings, sizes, (samples / speed,), samples)


def communicating(micro_batch: int, local_steps: int | None) -> Run:
    """The same on two devices: DDP, or Local SGD with an average after every `local_steps` of 32 steps."""
    base = run(micro_batch, 16 // micro_batch, "off")
    sends = 32 // (local_steps or 1)
    messages, sent = traffic("all-reduce", sends * 5_000_000, 2)
    count = {
        "calls": sends,
        "payload": sends * 5_000_000,
        "messages": sends * messages,
        "sent": sent,
    }
    settings = base.settings | {"devices": 2, "local_steps": local_steps}
    return replace(
        base,
        name=f"{settings}",
        settings=settings,
        optimizer_steps=32,
        samples=32 * 16,
        seconds=(32 * base.seconds[0],),
        collectives={"all-reduce": count},
    )


def loop(batches, k):
    weight = 2.0
    gradient = 0.0
    for i, x in enumerate(batches):
        gradient += x / k
        if (i + 1) % k == 0:
            weight -= 0.1 * gradient
            gradient = 0.0
    return weight


MOVES = """async ([source, state, selector, count]) => {
  const { default: widget } = await import(URL.createObjectURL(new Blob([source], { type: 'text/javascript' })));
  const place = document.body.appendChild(document.createElement('div'));
  const model = { static: true, get: (name) => state[name], set() {}, save_changes() {}, send() {}, on() {}, off() {} };
  widget.render({ model, el: place });
  const input = place.querySelector(selector), taken = [];
  for (let i = 0; i < count; i++) {
    const before = place.innerHTML, start = performance.now();
    const value = Number(input.value) + Number(input.step);
    input.value = value > Number(input.max) ? input.min : value;
    input.dispatchEvent(new Event('input'));
    place.getBoundingClientRect(); // lays the new picture out
    taken.push((performance.now() - start) / 1e3);
    if (place.innerHTML === before) throw Error(selector + ' changes nothing');
  }
  place.remove();
  return taken;
}"""


def report(name: str, taken: list[float]) -> float:
    """Print a control's times; the median's share of the limit."""
    median = statistics.median(taken)
    share = median / LIMIT
    print(
        f"{name:28} median {median * 1e3:6.1f} ms, slowest {max(taken) * 1e3:6.1f} ms, {share:5.2f} of the limit"
    )
    return share


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description="How long moving a control of the explorer takes.")
    parser.add_argument("--short", action="store_true", help="two moves of each control")
    count = 2 if parser.parse_args(arguments).short else 40
    grid = [
        run(m, a, c)
        for m in (1, 2, 4, 8, 16, 32)
        for a in (1, 2, 4, 8, 16)
        for c in ("off", "every layer")
    ]
    talking = [communicating(m, h) for m in (1, 2, 4, 8, 16) for h in (None, 1, 2, 4, 8, 16, 32)]
    alone, network = explorer(grid, budget=150 * 2**20), explorer([*grid, *talking])
    network.choose(network.shown_runs()[-1])
    network.chosen = network.chosen | {"devices": 2}
    watch = {
        "weight": lambda v: v["weight"],
        "gradient": lambda v: v["gradient"],
        "micro-batch": lambda v: v["i"],
    }
    replay = player(record(loop, [1.0, 2.0, 0.5, 1.5] * 2, 4, watch=watch), step=1)
    moves = [
        ("micro-batch", alone, "[id$=micro_batch]"),
        ("budget", alone, "[id$=budget]"),
        ("local steps", network, "[id$=local_steps]"),
        ("latency of the link", network, "[id$=latency]"),
        ("devices", network, "[id$=devices]"),
        ("step of the player", replay, "input"),
    ]
    print(
        f"{len(grid)} runs, limit {LIMIT * 1e3:.0f} ms from a control's event to the laid-out picture"
    )
    shares = []
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1300, "height": 1000})
        page.add_style_tag(content=style())
        for name, widget, selector in moves:
            state = {trait: getattr(widget, trait) for trait in widget.handed_over}
            taken = page.evaluate(MOVES, [script(widget.name), state, selector, count])
            shares.append(report(name, taken))
    print(f"the slowest control takes {max(shares):.2f} of the limit of {LIMIT * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
