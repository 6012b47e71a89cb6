// The memory-against-speed explorer. Everything that needs no training happens here, with a kernel and without one.
//
// `data` is what Python hands over (explorer_data.py says it), `chosen` is the state that a person moves. The rules above the
// drawing are also those of explorer_state.py and costs/links.py, which make the static picture:
// tests/browser/test_same_rules.py runs both on the same states.

const MiB = 2 ** 20;
const FIXED_BATCH = "fixed batch", FIXED_MEMORY = "fixed memory";

// ---------------------------------------------------------------- words

const group = (text) => text.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
const commas = (number, digits = 0) => {
  const [whole, rest] = number.toFixed(digits).split(".");
  return group(whole) + (rest ? "." + rest : "");
};
export const three = (number) => {
  const [whole, rest] = String(Number(number.toPrecision(3))).split(".");
  return group(whole) + (rest ? "." + rest : "");
};
export const mib = (size) =>
  (size >= 99.95 * MiB ? commas(size / MiB) : commas(size / MiB, 1).replace(/\.0$/, "")) + " MiB";

export function duration(seconds) {
  for (const [unit, name] of [[1, "s"], [1e-3, "ms"]])
    if (seconds >= 0.9995 * unit)
      return (seconds < 999.5 * unit ? three(seconds / unit) : commas(seconds / unit)) + " " + name;
  return three(seconds * 1e6) + " µs";
}

function linkWords({ name, latency, bandwidth }) {
  const late = latency < 1e-3 ? three(latency * 1e6) + " µs" : three(latency * 1e3) + " ms";
  const [unit, word] = [[1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"]].find(([u]) => bandwidth >= u) || [1, "B/s"];
  return `${name ? name + ", " : ""}${late}, ${three(bandwidth / unit)} ${word}`;
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

// ---------------------------------------------------------------- rules: the time of a step on a link

function traffic(kind, payload, ranks) {
  const others = ranks - 1, deep = Math.ceil(Math.log2(ranks));
  if (kind === "all-reduce") return [2 * others, (2 * others / ranks) * payload];
  if (kind === "reduce-scatter") return [others, (others / ranks) * payload];
  if (kind === "all-gather") return [others, others * payload];
  if (kind === "all-to-all") return [others, (others * payload) / ranks];
  if (kind === "barrier") return [deep, 0];
  if (kind === "send") return [Math.min(1, others), others ? payload : 0];
  return [deep, deep * payload];
}

const sending = (kind, calls, payload, ranks, link) => {
  const [messages, sent] = traffic(kind, payload, ranks);
  return calls * messages * link.latency + sent / link.bandwidth;
};

// Buckets leave one after the other, each when its share of the last backward pass (two thirds of a micro-batch) is done.
function ddpSeconds(compute, buckets, ranks, link, accumulation) {
  const backward = ((2 / 3) * compute) / accumulation, whole = buckets.reduce((a, b) => a + b, 0) || 1;
  let filled = 0, done = 0;
  for (const size of buckets) {
    filled += size;
    done = Math.max(done, compute - backward * (1 - filled / whole)) + sending("all-reduce", 1, size, ranks, link);
  }
  return Math.max(compute, done);
}

/** Seconds of one optimizer step: { compute, communication }; null where nothing was timed. */
export function stepTime(run, ranks, link) {
  if (run.compute === null) return null;
  const compute = run.compute, steps = Math.max(1, run.steps);
  let communication = 0;
  for (const [kind, { calls, payload }] of Object.entries(run.collectives))
    communication += sending(kind, calls, payload, ranks, link);
  communication /= steps;
  const reduce = run.collectives["all-reduce"];
  if (run.local === null && reduce) {
    const buckets = Array(Math.max(1, Math.round(reduce.calls / steps))).fill(reduce.payload / reduce.calls);
    const seconds = ddpSeconds(compute, buckets, ranks, link, run.accumulation);
    const alone = buckets.reduce((sum, size) => sum + sending("all-reduce", 1, size, ranks, link), 0);
    communication = Math.max(0, communication - (alone - (seconds - compute)));
  }
  return { compute, communication, seconds: compute + communication };
}

// ---------------------------------------------------------------- rules: which runs are shown, compared, chosen

const octaves = (a, b) => Math.abs(Math.log2(Math.max(a, 0.5)) - Math.log2(Math.max(b, 0.5)));
const speedOf = (run) => (run.seconds && run.samples ? run.samples / run.seconds : null);
const batchOf = (run, devices) =>
  run.batch === null ? null : run.batch * (run.collectives ? devices : run.devices);

function distance(data, chosen, run) {
  const alone = data.communicates && chosen.devices === 1;
  let sum = 0;
  for (const { setting } of data.controls) {
    if (setting === "local_steps" && alone) continue; // one device has nobody to average with
    const wanted = chosen.values[setting], has = run.values[setting];
    sum += typeof wanted === "number" && typeof has === "number" ? octaves(wanted, has) : 1.5 * (wanted !== has);
  }
  return sum + 1.5 * (data.communicates && alone === Boolean(run.collectives));
}

/** The run as the chosen network would make it; null where one device has nobody to talk to. */
function modelled(run, chosen) {
  if (!run.collectives) return run;
  if (chosen.devices === 1) return null;
  const time = stepTime(run, chosen.devices, chosen.link);
  return { ...run, seconds: time ? time.seconds * run.steps : null, time, origin: "predicted" };
}

/** The short label of a point: micro-batch × accumulation steps, and what differs from the usual. */
function pointLabel(data, chosen) {
  const { micro_batch: size, accumulation_steps: steps } = chosen.values;
  const parts = data.controls
    .filter((c) => c.setting !== "local_steps" || (data.communicates && chosen.devices > 1))
    .map((c) => ({ order: c.order, text: c.labels[c.options.indexOf(chosen.values[c.setting])] || "" }));
  return `${size}×${steps}` + parts.sort((a, b) => a.order - b.order).map((p) => p.text).join("");
}

/** The indices of points { x: speed, y: bytes } that no other beats, slowest first. */
export function paretoFront(points) {
  const order = points.map((_, i) => i).sort((a, b) => points[b].x - points[a].x || points[a].y - points[b].y);
  const front = [];
  let least = Infinity;
  for (const i of order) {
    const last = points[front[front.length - 1]];
    if (points[i].y < least || (last && last.x === points[i].x && last.y === points[i].y)) {
      front.push(i);
      least = points[i].y;
    }
  }
  return front.reverse();
}

const sum = (parts) => parts.reduce((total, [, size]) => total + size, 0);

/** The memory of a point that was not run, on the line through two runs that differ from it in nothing but the micro-batch. */
function onTheLine(data, chosen, shown) {
  const alike = shown.filter(
    (run) =>
      run.origin !== "published" &&
      data.controls.every((c) => c.setting === "micro_batch" || run.values[c.setting] === chosen.values[c.setting]),
  );
  const wanted = chosen.values.micro_batch;
  for (const origin of ["measured", "predicted"]) {
    const by = new Map(alike.filter((run) => run.origin === origin).map((run) => [run.values.micro_batch, run]));
    const near = [...by.keys()].sort((a, b) => Math.abs(a - wanted) - Math.abs(b - wanted)).slice(0, 2);
    if (near.length < 2) continue;
    const [a, b] = near.map((size) => by.get(size)), share = (wanted - near[0]) / (near[1] - near[0]);
    const other = new Map(b.parts);
    if (a.parts.length !== b.parts.length || a.parts.some(([name]) => !other.has(name))) continue;
    const parts = a.parts.map(([name, size]) => [name, Math.max(0, size + (other.get(name) - size) * share)]);
    return { parts, through: [a.label, b.label], peak: sum(parts) };
  }
  return null;
}

/** Everything that a state shows: runs by their role, the front, and the sentences. */
export function look(data, chosen) {
  const shown = data.runs
    .filter((run) => run.model === chosen.model)
    .map((run) => modelled(run, chosen))
    .filter(Boolean)
    .map((run) => ({ ...run, speed: speedOf(run) }));
  const places = new Map(shown.map((run) => [run.index, run.speed]));
  for (const run of shown) run.at = run.speed ?? places.get(run.twin) ?? null; // an untimed run stands at its timed twin
  const known = new Map();
  for (const { origin, label } of shown) known.set(origin + label, (known.get(origin + label) || 0) + 1);
  for (const run of shown) run.shown = known.get(run.origin + run.label) > 1 ? run.name : run.label;

  const local = chosen.values.micro_batch * chosen.values.accumulation_steps;
  const batch = local * (data.communicates ? chosen.devices : 1);
  const free = chosen.mode === FIXED_MEMORY;
  const compared = free ? shown : shown.filter((run) => batchOf(run, chosen.devices) === batch);
  const order = { measured: 0, published: 1, predicted: 2 };
  const far = new Map(shown.map((run) => [run, distance(data, chosen, run)]));
  const first = (runs, key) => runs.reduce((best, run) => (best === null || key(run) < key(best) ? run : best), null);
  const run = first(shown.filter((one) => far.get(one) === 0), (one) => order[one.origin]);
  const nearest = run || first(shown, (one) => far.get(one));
  const fits = compared.filter((one) => one.peak <= chosen.budget);
  const timed = fits.filter((one) => one.speed);
  const front = paretoFront(timed.map((one) => ({ x: one.speed, y: one.peak }))).map((i) => timed[i]);

  const words = free ? "any batch" : `effective batch ${batch}`;
  let sentence = `${chosen.mode}, ${words}: no run yet`;
  if (compared.length) {
    sentence = `${chosen.mode}, ${words}: ${fits.length} of ${compared.length} runs fit into ${mib(chosen.budget)}`;
    const best = first(timed, (one) => -one.speed);
    if (best) sentence += `; the fastest of them is ${best.shown} with ${three(best.speed)} samples/s`;
  }
  const label = pointLabel(data, chosen);
  const line = run ? null : onTheLine(data, chosen, shown);
  let title = `${label} was not run`;
  if (run) title = run.collectives ? `${run.shown}, time modelled` : `${run.shown}, ${run.origin}`;
  else if (nearest) title += `; nearest: ${nearest.shown}, ${nearest.origin}`;

  let rows = [], above = "";
  if (data.communicates) {
    rows = shown
      .filter((one) => nearest && one.collectives && one.seconds && one.alike === nearest.alike)
      .sort((a, b) => (a.local || 0) - (b.local || 0));
    above = rows.length
      ? `Time of a step, ${commas(chosen.devices)} devices, ${linkWords(chosen.link)}`
      : chosen.devices === 1 ? "This run does not communicate." : "No run of this point has communicated.";
  }
  return { shown, compared, fits, front, run, nearest, line, label, sentence: capital(sentence) + ".", title, rows, above };
}

/** The state after one control was moved. At a fixed batch the accumulation steps give way to the micro-batch. */
export function moved(data, chosen, setting, value) {
  const values = { ...chosen.values, [setting]: value };
  if (setting === "micro_batch" && chosen.mode === FIXED_BATCH) {
    const wanted = (chosen.values.micro_batch * chosen.values.accumulation_steps) / value;
    const { options } = data.controls.find((control) => control.setting === "accumulation_steps");
    const off = (steps) => Math.abs(Math.log2(steps) - Math.log2(wanted));
    values.accumulation_steps = options.reduce((best, steps) => (off(steps) < off(best) ? steps : best));
  }
  return { ...chosen, values };
}

/** The state in which a run's point is chosen. */
export const choose = (data, chosen, run) => ({
  ...chosen,
  values: { ...run.values },
  devices: data.communicates ? (run.collectives ? chosen.devices : run.devices) : chosen.devices,
});

/** The limits of the axes: from all runs that may be shown, so that the picture stands still while controls move. */
function limits(data, chosen) {
  const own = data.runs.filter((run) => run.model === chosen.model);
  const free = { latency: 0, bandwidth: Infinity };
  const speeds = [];
  for (const run of own) {
    if (speedOf(run)) speeds.push(speedOf(run));
    const time = run.collectives && stepTime(run, chosen.devices, free);
    if (time && run.samples) speeds.push(run.samples / (time.seconds * run.steps));
  }
  const top = 1.12 * Math.max(MiB, ...own.map((run) => run.peak)) / MiB;
  if (!speeds.length) return { left: 0, right: 1.14, top, untimed: 0.03 };
  const most = Math.max(...speeds), least = data.communicates ? 0 : Math.min(...speeds);
  const spread = most - least, width = spread ? Math.max(spread, most / 4) : most;
  const untimed = own.some((run) => !speedOf(run) && run.twin === null);
  const right = most + 0.14 * width;
  const left = data.communicates ? -0.015 * right : Math.max(0, least - width * (untimed ? 0.6 : 0.2));
  return { left, right, top, untimed: left + 0.03 * (right - left) };
}

// ---------------------------------------------------------------- drawing

function ticks(low, high, wanted) {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((nice) => nice * power).find((nice) => nice >= rough);
  const first = Math.ceil(low / step), count = Math.floor(high / step) - first + 1;
  const digits = Math.max(0, -Math.floor(Math.log10(step)) + (step / power === 2.5 ? 1 : 0));
  return Array.from({ length: count }, (_, i) => [(first + i) * step, commas((first + i) * step, digits)]);
}

const overlap = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
const LETTER = 7.7, BOLD = 8.6, LINE = 15; // pixels of a label of 12 pixels: the digits and the × are its widest letters

/** Where labels can stand beside their points without covering anything: [x, y] of the baseline's start, or null. */
function placeLabels(spots, box, obstacles) {
  const taken = [...obstacles];
  return spots.map(({ x, y, label, gap, letter }, i) => {
    const wide = letter * label.length + 2, high = LINE;
    const marks = spots.filter((_, j) => j !== i).map((p) => [p.x - 6, p.y - 6, p.x + 6, p.y + 6]);
    for (const [left, top] of [
      [x + gap, y - high / 2], [x - wide / 2, y - gap - high], [x - gap - wide, y - high / 2], [x - wide / 2, y + gap],
      [x + gap * 0.7, y - gap * 0.7 - high], [x - gap * 0.7 - wide, y - gap * 0.7 - high],
      [x + gap * 0.7, y + gap * 0.7], [x - gap * 0.7 - wide, y + gap * 0.7],
    ]) {
      const area = [left - 2, top, left + wide + 2, top + high];
      const inside = area[0] >= box[0] && area[1] >= box[1] && area[2] <= box[2] && area[3] <= box[3];
      if (inside && ![...taken, ...marks].some((other) => overlap(area, other))) {
        taken.push(area);
        return [left, top + high - 4];
      }
    }
    return null;
  });
}

const MARKS = {
  measured: "M-4.5,0a4.5,4.5 0 1,0 9,0a4.5,4.5 0 1,0 -9,0",
  predicted: "M0,-5.5L5.5,0L0,5.5L-5.5,0Z",
  published: "M-4.5,-4.5h9v9h-9Z",
};

const describe = (run) =>
  `${run.shown}, ${run.collectives ? "time modelled" : run.origin}: ${mib(run.peak)}` +
  (run.speed ? `, ${three(run.speed)} samples/s` : ", not timed");

class Figure {
  /** The points, the memory of one of them, and the times of a step. `pick(run)` and `budget(bytes)` take what a hand does. */
  constructor(pick, budget) {
    this.id = unique("explorer");
    this.pick = pick;
    this.sentence = make("p", { class: "tl-sentence", role: "status" });
    this.plot = make("svg", { class: "tl-plot", role: "group", "aria-label": "Memory against speed" });
    this.under = make("g", { "aria-hidden": "true" });
    this.points = make("g", { role: "listbox", tabindex: "0", "aria-label": "runs, by speed and memory", class: "tl-points" });
    this.over = make("g", { "aria-hidden": "true", "pointer-events": "none" });
    this.handle = make("rect", { class: "tl-budget", "aria-hidden": "true" });
    this.plot.append(this.under, this.handle, this.points, this.over);
    this.tip = make("div", { class: "tl-tip", hidden: true, "aria-hidden": "true" });
    this.title = make("p", { class: "tl-title" });
    this.note = make("p", { class: "tl-note" });
    this.stack = make("svg", { class: "tl-stack", role: "img" });
    this.above = make("p", { class: "tl-title" });
    this.steps = make("svg", { class: "tl-steps", role: "img" });
    this.legend = make("p", { class: "tl-legend" });
    this.element = make(
      "div", { class: "tl-figure" },
      make("div", { class: "tl-left" }, this.sentence, this.plot, this.legend, this.tip),
      make("div", { class: "tl-right" }, this.title, this.stack, this.note),
      make("div", { class: "tl-below" }, this.above, this.steps),
    );
    this.points.addEventListener("click", (event) => {
      // Where the points were drawn anew under the finger, the event's target is none of them.
      const onPoint = event.target !== this.points;
      this.picked(onPoint ? event.target : this.plot.getRootNode().elementFromPoint(event.clientX, event.clientY));
    });
    this.points.addEventListener("pointerover", (event) => this.hover(event.target));
    this.points.addEventListener("pointerout", () => (this.tip.hidden = true));
    this.points.addEventListener("keydown", (event) => this.walk(event));
    const drag = (event) => budget(this.bytesAt(event.clientY));
    this.handle.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      this.handle.setPointerCapture(event.pointerId);
      this.handle.addEventListener("pointermove", drag);
    });
    for (const end of ["pointerup", "pointercancel"])
      this.handle.addEventListener(end, () => this.handle.removeEventListener("pointermove", drag));
  }

  runOf(target) {
    const point = target.closest("[role=option]");
    return point && this.seen.shown.find((run) => String(run.index) === point.dataset.run);
  }

  picked(target) {
    const run = target && this.runOf(target);
    if (run) this.pick(run);
  }

  hover(target) {
    const run = this.runOf(target);
    this.tip.hidden = !run;
    if (!run) return;
    this.tip.textContent = describe(run);
    const [x, y] = this.spots.get(run.index);
    const right = x > this.width / 2;
    this.tip.style.cssText = `top:${y + this.plot.getBoundingClientRect().top - this.plot.parentElement.getBoundingClientRect().top + 10}px;` +
      (right ? `right:${this.width - x}px` : `left:${x}px`);
  }

  walk(event) {
    const keys = { ArrowRight: ["x", 1], ArrowLeft: ["x", -1], ArrowUp: ["y", 1], ArrowDown: ["y", -1] };
    const by = keys[event.key] ? keys[event.key][0] : "x";
    const value = (run) => (by === "x" ? this.spots.get(run.index)[0] : run.peak);
    const order = [...this.seen.shown].sort((a, b) => value(a) - value(b));
    if (!order.length) return;
    const at = order.findIndex((run) => run === this.seen.nearest);
    let next = null;
    if (keys[event.key]) next = order[Math.min(order.length - 1, Math.max(0, at + keys[event.key][1]))];
    else if (event.key === "Home") next = order[0];
    else if (event.key === "End") next = order[order.length - 1];
    else return;
    event.preventDefault();
    event.stopPropagation(); // a notebook would move to the next cell
    this.pick(next);
  }

  bytesAt(clientY) {
    const top = this.plot.getBoundingClientRect().top;
    const share = 1 - (clientY - top - this.box[1]) / (this.box[3] - this.box[1]);
    return Math.max(0, Math.min(1, share)) * this.frame.top * MiB;
  }

  draw(data, chosen, seen, width) {
    this.seen = seen;
    this.frame = limits(data, chosen);
    const wide = width >= 680, right = wide ? 250 : width;
    this.element.classList.toggle("tl-wide", wide);
    this.width = wide ? width - right - 16 : width;
    this.sentence.textContent = seen.sentence;
    this.drawPoints(data, chosen, seen, Math.max(this.width, 240), wide ? 330 : 290);
    this.drawStack(data, seen, right, wide ? 330 : 190, wide ? this.frame.top : (1.1 * (seen.nearest ? seen.nearest.peak : MiB)) / MiB);
    this.drawSteps(seen, width);
    const origins = ["measured", "predicted", "published"].filter((o) => seen.shown.some((run) => run.origin === o));
    const words = { measured: "● measured", predicted: "◇ predicted or modelled", published: "■ published" };
    this.legend.hidden = !seen.shown.length;
    this.legend.textContent = [...origins.map((o) => words[o]), "× out of memory", "— Pareto front"].join("   ");
  }

  drawPoints(data, chosen, seen, width, height) {
    const { left, right, top, untimed } = this.frame, levels = ticks(0, top, 6);
    const digits = Math.max(...levels.map(([, words]) => words.length)); // long ones need room beside the axis' name
    const box = (this.box = [Math.max(58, 32 + 7 * digits), 8, width - 8, height - 42]);
    const X = (speed) => box[0] + ((speed - left) / (right - left)) * (box[2] - box[0]);
    const Y = (bytes) => box[3] - (bytes / MiB / top) * (box[3] - box[1]);
    this.plot.setAttribute("width", width);
    this.plot.setAttribute("height", height);
    const timed = seen.shown.some((run) => run.speed);
    this.spots = new Map(seen.shown.map((run) => [run.index, [X(run.at ?? untimed), Y(run.peak)]]));

    const below = [];
    const inside = chosen.budget / MiB < top, line = inside ? Y(chosen.budget) : box[1];
    if (seen.shown.length) below.push(make("rect", { class: "tl-beyond", x: box[0], y: box[1], width: box[2] - box[0], height: line - box[1] }));
    if (seen.shown.length)
      for (const [value, words] of levels) {
        const y = Y(value * MiB);
        below.push(make("line", { class: "tl-grid", x1: box[0], x2: box[2], y1: y, y2: y }));
        below.push(make("text", { class: "tl-tick", x: box[0] - 6, y: y + 4, "text-anchor": "end" }, words));
      }
    if (timed)
      for (const [value, words] of ticks(Math.max(left, 0), right, Math.max(3, width / 95))) {
        below.push(make("line", { class: "tl-axis", x1: X(value), x2: X(value), y1: box[3], y2: box[3] + 4 }));
        below.push(make("text", { class: "tl-tick", x: X(value), y: box[3] + 17, "text-anchor": "middle" }, words));
      }
    below.push(make("path", { class: "tl-axis", d: `M${box[0]},${box[1]}V${box[3]}H${box[2]}` }));
    below.push(make("text", { class: "tl-name", x: (box[0] + box[2]) / 2, y: height - 6, "text-anchor": "middle" },
      "samples/second" + (data.communicates ? " of one device" : "")));
    below.push(make("text", { class: "tl-name", transform: `translate(12,${(box[1] + box[3]) / 2}) rotate(-90)`, "text-anchor": "middle" }, "peak memory (MiB)"));
    if (inside) below.push(make("line", { class: "tl-limit", x1: box[0], x2: box[2], y1: line, y2: line }));
    const stairs = [];
    seen.front.forEach((run, i) => {
      const [x, y] = this.spots.get(run.index);
      if (i) stairs.push([stairs[stairs.length - 1][0], y]);
      stairs.push([x, y]);
    });
    if (stairs.length) below.push(make("path", { class: "tl-front", d: "M" + stairs.map((p) => p.join(",")).join("L") }));
    if (!timed)
      below.push(make("text", { class: "tl-name", x: (box[0] + box[2]) / 2, y: (box[1] + box[3]) / 2, "text-anchor": "middle" },
        seen.shown.length ? "No run here has been timed." : "No runs yet: measure one first."));
    this.under.replaceChildren(...below);
    for (const [name, value] of Object.entries({ x: box[0], y: line - 7, width: box[2] - box[0], height: 14 })) this.handle.setAttribute(name, value);

    const compared = new Set(seen.compared), fits = new Set(seen.fits), front = new Set(seen.front);
    // What is compared lies above what is not, so that it can be hit.
    const order = [...seen.shown].sort((a, b) => compared.has(a) - compared.has(b));
    const options = order.map((run) => {
      const [x, y] = this.spots.get(run.index);
      const state = !compared.has(run) ? "others" : fits.has(run) ? "fits" : "out";
      const point = make("g", {
        role: "option", id: `${this.id}-${run.index}`, class: `tl-point tl-${state} tl-${run.origin}`, "data-run": run.index,
        "aria-selected": String(run === seen.nearest), transform: `translate(${x},${y})`,
        "aria-label": describe(run) + { others: ", not compared", fits: "", out: ", out of memory" }[state],
      }, make("circle", { class: "tl-hit", r: 12 }), make("path", { d: MARKS[run.origin] }));
      if (state === "out") point.append(make("path", { class: "tl-cross", d: "M-6,-6L6,6M-6,6L6,-6" }));
      return point;
    });
    this.points.replaceChildren(...options);
    if (seen.nearest) this.points.setAttribute("aria-activedescendant", `${this.id}-${seen.nearest.index}`);
    else this.points.removeAttribute("aria-activedescendant");

    const above = [];
    const ring = seen.nearest && this.spots.get(seen.nearest.index);
    if (ring) {
      above.push(make("line", { class: "tl-guide", x1: ring[0], x2: box[2], y1: ring[1], y2: ring[1] }));
      above.push(make("circle", { class: `tl-ring${seen.run ? "" : " tl-stand-in"}`, cx: ring[0], cy: ring[1], r: 10 }));
    }
    const words = `budget ${mib(chosen.budget)}${inside ? "" : " ↑"}` + (seen.compared.length > seen.fits.length ? ", above it: out of memory" : "");
    const around = [...this.spots.values()].map(([x, y]) => [x - 6, y - 6, x + 6, y + 6]);
    const wordsWide = 7 * words.length;
    const where = [[box[2] - wordsWide, line - LINE], [box[0] + 6, line - LINE], [box[2] - wordsWide, line + 2], [box[0] + 6, line + 2]]
      .filter(([, y]) => y >= box[1] - 8 && y + LINE <= box[3]);
    const area = ([x, y]) => [x, y, x + wordsWide, y + LINE];
    const place = where.find((spot) => !around.some((mark) => overlap(area(spot), mark))) || where[0];
    const taken = seen.shown.length && place ? [area(place)] : [];
    if (taken.length) above.push(make("text", { class: "tl-limit-words", x: place[0], y: place[1] + LINE - 4 }, words));
    let named = [seen.nearest, ...seen.front.filter((run) => run !== seen.nearest)].filter(Boolean);
    const rest = seen.compared.filter((run) => !named.includes(run));
    if (rest.length <= 10) named = [...named, ...rest];
    const spots = named.map((run) => {
      const [x, y] = this.spots.get(run.index);
      const chosen = run === seen.nearest;
      return { x, y, label: run.shown, gap: chosen ? 13 : 8, letter: chosen ? BOLD : LETTER, run };
    });
    const unnamed = seen.shown.filter((run) => !named.includes(run)).map((run) => this.spots.get(run.index)).map(([x, y]) => [x - 5, y - 5, x + 5, y + 5]);
    const walls = [...taken, ...unnamed, [box[0], line - 1, box[2], line + 1]];
    stairs.slice(1).forEach(([x, y], i) => {
      const [a, b] = stairs[i];
      walls.push([Math.min(a, x) - 1, Math.min(b, y) - 1, Math.max(a, x) + 1, Math.max(b, y) + 1]);
    });
    placeLabels(spots, box, walls).forEach((spot, i) => {
      if (!spot) return;
      const { run } = spots[i];
      const kind = run === seen.nearest ? "tl-chosen" : front.has(run) ? "" : "tl-soft";
      above.push(make("text", { class: `tl-label ${kind}`, x: spot[0], y: spot[1] }, run.shown));
    });
    this.over.replaceChildren(...above);
  }

  /** `top`: MiB at the upper edge, those of the plot where it stands beside it. */
  drawStack(data, seen, width, height, top) {
    const run = seen.nearest, line = seen.line;
    this.title.textContent = seen.title;
    this.note.textContent = line
      ? `On the line through ${line.through.join(" and ")} it would need ${mib(line.peak)}.`
      : "";
    this.stack.setAttribute("width", width);
    this.stack.setAttribute("height", height);
    const parts = run ? run.parts : [];
    this.stack.setAttribute("aria-label", run
      ? `${run.shown} needs ${mib(run.peak)}: ${parts.map(([name, size]) => `${name} ${mib(size)}`).join(", ")}`
      : "no run");
    const box = [8, 22, height - 42], Y = (bytes) => box[2] - (bytes / MiB / top) * (box[2] - 8);
    const marks = [];
    let below = 0;
    const middles = [];
    for (const [name, size] of parts) {
      const end = below + size;
      marks.push(make("rect", { class: seen.run ? "tl-bar" : "tl-bar tl-faded", x: box[0], width: 56, y: Y(end), height: Math.max(0, Y(below) - Y(end)), fill: data.colours[name] || data.colours[""] }));
      middles.push(Y((below + end) / 2));
      below = end;
    }
    const heights = [...middles];
    heights.forEach((y, i) => (heights[i] = Math.min(y, i ? heights[i - 1] - 16 : box[2] - 6)));
    for (let i = heights.length - 1; i >= 0; i--)
      heights[i] = Math.max(heights[i], i === heights.length - 1 ? 8 : heights[i + 1] + 16);
    parts.forEach(([name, size], i) => {
      marks.push(make("path", { class: "tl-leader", d: `M${box[0] + 57},${middles[i]}L${box[0] + 72},${heights[i]}` }));
      marks.push(make("text", { class: seen.run ? "tl-label" : "tl-label tl-soft", x: box[0] + 76, y: heights[i] + 4 }, `${name}  ${mib(size)}`));
    });
    if (run) {
      marks.push(make("text", { class: "tl-label tl-total", x: box[0], y: Math.max(10, Math.min(Y(below) - 5, heights[heights.length - 1] - 10)) }, mib(run.peak)));
      marks.push(make("path", { class: "tl-axis", d: `M${box[0] - 4},${box[2]}h64` }));
    }
    this.stack.replaceChildren(...marks);
  }

  drawSteps(seen, width) {
    this.above.textContent = seen.above;
    this.above.hidden = this.above.parentElement.hidden = !seen.above;
    const high = 22, most = Math.max(1e-12, ...seen.rows.map((run) => run.time.seconds)), scale = (width - 76) * 0.45 / most;
    this.steps.setAttribute("width", width);
    this.steps.setAttribute("height", seen.rows.length ? seen.rows.length * high + 24 : 0);
    const marks = [];
    seen.rows.forEach((run, i) => {
      const y = i * high, kind = run === seen.nearest ? "tl-chosen" : "tl-soft", { compute, communication, seconds } = run.time;
      const faded = run === seen.nearest ? 1 : 0.6;
      marks.push(make("text", { class: `tl-label ${kind}`, x: 62, y: y + 15, "text-anchor": "end" }, run.local ? `H = ${run.local}` : "DDP"));
      marks.push(make("rect", { class: "tl-computing", x: 70, y: y + 4, width: compute * scale, height: 14, opacity: faded }));
      marks.push(make("rect", { class: "tl-sending", x: 70 + compute * scale, y: y + 4, width: communication * scale, height: 14, opacity: faded }));
      marks.push(make("text", { class: `tl-label ${kind}`, x: 76 + seconds * scale, y: y + 15 }, `${duration(seconds)}: ${run.sent}`));
    });
    if (seen.rows.length) {
      const y = seen.rows.length * high + 4;
      marks.push(make("rect", { class: "tl-computing", x: 70, y, width: 12, height: 12 }), make("text", { class: "tl-label tl-soft", x: 87, y: y + 11 }, "computing, measured"));
      marks.push(make("rect", { class: "tl-sending", x: 230, y, width: 12, height: 12 }), make("text", { class: "tl-label tl-soft", x: 247, y: y + 11 }, "communicating, modelled"));
    }
    this.steps.replaceChildren(...marks);
    this.steps.setAttribute("aria-label", seen.above + seen.rows.map((run) => `; ${run.local ? "H = " + run.local : "DDP"}: ${duration(run.time.seconds)}, ${run.sent}`).join(""));
  }
}

// ---------------------------------------------------------------- controls

/** A row of label, control and value; `set(value)` shows a value, `moved(value)` is called with the one that a person chose. */
function slider(id, label, options, shown, moved) {
  const input = make("input", { type: "range", id, min: 0, max: options.length - 1, step: 1 });
  const output = make("output", { for: id });
  const tell = () => {
    const words = shown(options[Number(input.value)]);
    output.textContent = words;
    input.setAttribute("aria-valuetext", words);
  };
  input.addEventListener("input", () => (tell(), moved(options[Number(input.value)])));
  const element = make("div", { class: "tl-row" }, make("label", { for: id }, label), input, output);
  const set = (value) => ((input.value = options.indexOf(value)), tell());
  return { element, set };
}

function scale(id, label, { min, max, step }, shown, moved) {
  const input = make("input", { type: "range", id, min, max, step });
  const output = make("output", { for: id });
  const tell = (value) => {
    output.textContent = shown(value);
    input.setAttribute("aria-valuetext", shown(value));
  };
  input.addEventListener("input", () => (tell(Number(input.value)), moved(Number(input.value))));
  const element = make("div", { class: "tl-row" }, make("label", { for: id }, label), input, output);
  return { element, set: (value) => ((input.value = value), tell(value)) };
}

function select(id, label, options, moved) {
  const input = make("select", { id }, ...options.map((words, i) => make("option", { value: i }, words)));
  input.addEventListener("change", () => moved(Number(input.value)));
  const element = make("div", { class: "tl-row" }, make("label", { for: id }, label), input);
  return { element, set: (index) => (input.value = index) };
}

function toggle(id, label, options, moved) {
  const inputs = options.map((value, i) => make("input", { type: "radio", name: id, id: `${id}-${i}`, value: i }));
  inputs.forEach((input, i) => input.addEventListener("change", () => moved(options[i])));
  const labels = options.map((value, i) => make("label", { for: `${id}-${i}` }, inputs[i], String(value)));
  const element = make("fieldset", { class: "tl-row" }, make("legend", {}, label), make("div", { class: "tl-toggle" }, ...labels));
  return { element, set: (value) => inputs.forEach((input, i) => (input.checked = options[i] === value)) };
}

const OWN = "your own";

function controlsOf(data, id, get, change) {
  const parts = [];
  const add = (part, show) => (parts.push({ ...part, show }), part.element);
  const left = make("div", { class: "tl-column" }), right = make("div", { class: "tl-column" });
  if (data.models.length > 1)
    left.append(add(select(`${id}-model`, "model", data.models, (i) => change({ ...get(), ...data.starts[i], model: i })), (c) => c.model));
  for (const { setting, label, options, words, offered } of data.controls) {
    if (!offered) continue;
    const go = (value) => change(moved(data, get(), setting, value));
    const kind = words ? toggle(`${id}-${setting}`, label, options, go) : slider(`${id}-${setting}`, label, options, String, go);
    left.append(add(kind, (c) => c.values[setting]));
  }
  right.append(add(toggle(`${id}-mode`, "compare at", [FIXED_BATCH, FIXED_MEMORY], (mode) => change({ ...get(), mode })), (c) => c.mode));
  const peaks = data.runs.filter((run) => run.model === get().model).map((run) => run.peak / MiB);
  const most = Math.max(peaks.length ? Math.max(...peaks) : 100, 0.1), step = 10 ** Math.max(-1, String(Math.trunc(most)).length - 3);
  const top = Math.max(1.15 * most, get().budget / MiB);
  right.append(add(scale(`${id}-budget`, "budget", { min: 0, max: top, step }, (value) => mib(value * MiB), (value) => change({ ...get(), budget: value * MiB })), (c) => c.budget / MiB));
  if (data.communicates) {
    const names = [...data.links.map((link) => link.name), OWN];
    const own = (more) => change({ ...get(), link: { ...get().link, name: "", ...more } });
    right.append(
      add(slider(`${id}-devices`, "devices", data.counts, commas, (devices) => change({ ...get(), devices })), (c) => c.devices),
      add(select(`${id}-link`, "link", names, (i) => data.links[i] ? change({ ...get(), link: data.links[i] }) : own({})),
        (c) => { const i = data.links.findIndex((link) => link.name === c.link.name); return i < 0 ? names.length - 1 : i; }),
      add(scale(`${id}-latency`, "latency", { min: -3, max: 3, step: 0.05 }, (power) => duration(10 ** power / 1e3), (power) => own({ latency: 10 ** power / 1e3 })), (c) => Math.log10(c.link.latency * 1e3)),
      add(scale(`${id}-bandwidth`, "bandwidth", { min: -2, max: 6, step: 0.05 }, (power) => three(10 ** power) + " MB/s", (power) => own({ bandwidth: 10 ** power * 1e6 })), (c) => Math.log10(c.link.bandwidth / 1e6)),
    );
  }
  const element = make("div", { class: "tl-controls" }, left, right);
  return { element, right, set: (chosen) => parts.forEach((part) => part.set(part.show(chosen))) };
}

// ---------------------------------------------------------------- measuring, which needs the kernel

const NO_KERNEL = "Measuring needs the kernel: open this notebook in JupyterLab and run its cells.";
const NO_ANSWER = "No kernel answers: it was restarted, is not there, or is busy. Run this cell again to measure; everything else works without.";

function measuring(model, get) {
  const button = make("button", { type: "button", class: "tl-button" }, "measure this point");
  const bar = make("progress", { max: 1, value: 0, hidden: true, "aria-label": "measuring" });
  const words = make("p", { class: "tl-status", role: "status" });
  const element = make("div", { class: "tl-measure" }, make("div", {}, button, bar), words);
  if (!model.send || model.static) {
    button.disabled = true;
    words.textContent = NO_KERNEL;
    return { element, end() {} };
  }
  let clock = null, waiting = null, alive = false;
  const stop = () => (clearInterval(clock), (clock = null));
  const unanswered = () => {
    alive = false;
    stop();
    button.disabled = false;
    bar.hidden = true;
    words.textContent = NO_ANSWER;
  };
  const ask = (message, milliseconds) => {
    clearTimeout(waiting);
    waiting = setTimeout(unanswered, milliseconds);
    try {
      model.send(message);
    } catch (error) {
      clearTimeout(waiting);
      unanswered();
    }
  };
  const show = () => {
    const status = model.get("status");
    const busy = status.state === "measuring" && alive;
    button.disabled = busy;
    if (!busy) stop();
    bar.hidden = !busy;
    if (busy && !clock) {
      const start = performance.now();
      const tick = () => {
        const spent = (performance.now() - start) / 1e3;
        bar.value = Math.min(0.95, spent / status.expected);
        words.textContent = `Measuring ${status.point}: ${spent.toFixed(0)} s of about ${Math.max(status.expected, 1).toFixed(0)} s. Interrupt the kernel to stop it.`;
      };
      tick();
      clock = setInterval(tick, 250);
    } else if (!busy && status.state !== "measuring") words.textContent = status.words || "";
  };
  const heard = (message) => {
    if (message.kind !== "here") return;
    clearTimeout(waiting);
    alive = true;
    show();
  };
  const changed = () => (clearTimeout(waiting), (alive = true), show());
  const again = () => ask({ kind: "hello" }, 3000);
  button.addEventListener("click", () => {
    button.disabled = true; // a second click finds it so
    words.textContent = "Asking the kernel to measure …";
    ask({ kind: "measure", chosen: get(), after: model.get("status").count }, 6000);
  });
  model.on("msg:custom", heard);
  model.on("change:status", changed);
  model.on("comm_live_update", again);
  again();
  return {
    element,
    end() {
      stop();
      clearTimeout(waiting);
      model.off("msg:custom", heard);
      model.off("change:status", changed);
      model.off("comm_live_update", again);
    },
  };
}

// ---------------------------------------------------------------- put together

function render({ model, el }) {
  const root = make("div", { class: "trainlean tl-explorer", role: "group", "aria-label": "Memory-against-speed explorer" });
  el.append(root);
  let data = model.get("data"), chosen = model.get("chosen"), controls = null, saving = null, width = 0;
  const save = () => {
    saving = null;
    model.set("chosen", chosen);
    model.save_changes();
  };
  const change = (next) => {
    const other = next.model !== chosen.model;
    chosen = next;
    if (other) {
      chosen = { ...chosen, budget: data.starts[chosen.model].budget };
      build();
    }
    draw();
    clearTimeout(saving);
    saving = setTimeout(save, 150); // the kernel, if there is one, hears where the hand came to rest
  };
  const figure = new Figure((run) => change(choose(data, chosen, run)), (budget) => change({ ...chosen, budget }));
  const measure = data.measures ? measuring(model, () => chosen) : null;

  function build() {
    const focused = controls && controls.element.contains(document.activeElement) ? document.activeElement.id : null;
    const next = controlsOf(data, figure.id, () => chosen, change);
    if (measure) next.right.append(measure.element);
    if (controls) controls.element.replaceWith(next.element);
    else root.append(next.element, figure.element);
    controls = next;
    if (focused) document.getElementById(focused)?.focus();
  }

  function draw() {
    controls.set(chosen);
    if (width) figure.draw(data, chosen, look(data, chosen), width);
  }

  const fresh = () => {
    data = model.get("data");
    chosen = model.get("chosen");
    build();
    draw();
  };
  const elsewhere = () => {
    const said = model.get("chosen");
    if (saving) return; // the hand has moved on since
    if (JSON.stringify(said) === JSON.stringify(chosen)) return;
    chosen = said;
    build();
    draw();
  };
  model.on("change:data", fresh);
  model.on("change:chosen", elsewhere);
  const size = new ResizeObserver(([{ contentRect }]) => {
    if (Math.round(contentRect.width) === width) return;
    width = Math.round(contentRect.width);
    draw();
  });
  build();
  width = root.clientWidth; // asked once: after each change it would lay the page out twice
  draw();
  size.observe(root);
  const forget = followTheme(root);
  return () => {
    size.disconnect();
    forget();
    if (measure) measure.end();
    model.off("change:data", fresh);
    model.off("change:chosen", elsewhere);
  };
}

export default { render };
