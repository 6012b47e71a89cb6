// What if: the memory of a training, predicted for the sliders' micro-batch, length and layers from a table of a few traces.

/** 1, b, s, bs, s², bs² of micro-batch and length, and each of them times the groups of every stack above two. */
const terms = (b, s, layers) => {
  const sizes = [1, b, s, b * s, s * s, b * s * s];
  return [...sizes, ...layers.flatMap((count) => sizes.map((size) => size * (count - 2)))];
};

/** The bytes by category at the fullest operation, and the FLOPs of an optimizer step; the rules of `Scaling.run`. */
export function predict(way, { micro_batch, sequence_length, layers }) {
  const at = terms(micro_batch, sequence_length || 0, layers), kinds = way.categories.length;
  let most = -1, peak = [];
  for (const row of way.rows) {
    const bytes = new Array(kinds).fill(0);
    row.forEach((categories, term) => categories.forEach((value, kind) => { bytes[kind] += value * at[term]; }));
    const total = bytes.reduce((a, b) => a + b, 0);
    if (total > most) [most, peak] = [total, bytes];
  }
  return { peak: peak.map(Math.round), flops: Math.round(way.flops.reduce((sum, value, term) => sum + value * at[term], 0)) };
}

const size = (bytes) => (bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(2)} GiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`);
const WIDE = 700, HIGH = 44;

function render({ model, el }) {
  const { ways, largest, colours, counted, budget, model: name } = model.get("tables");
  let chosen = { ...model.get("chosen") };
  const first = ways[0], categories = first.categories;
  const root = make("div", { class: "trainlean tl-what-if", role: "group", "aria-label": `What if: memory of ${name}` });
  const controls = make("div", { class: "tl-controls" });
  const marks = [];
  const slider = (label, low, high, read, write) => {
    const input = make("input", { type: "range", min: low, max: high, step: 1, "aria-label": label }), value = make("output");
    input.addEventListener("input", () => (write(Number(input.value)), changed()));
    controls.append(make("div", { class: "tl-row" }, make("label", {}, label), input, value));
    marks.push(() => { input.value = read(); value.textContent = read(); });
  };
  slider("micro-batch", Math.max(...ways.map((way) => way.smallest)), largest, () => chosen.micro_batch, (to) => { chosen.micro_batch = to; });
  if (first.lengths[0] !== null && first.lengths[0] < first.lengths[1])
    slider("sequence length", first.lengths[0], first.lengths[1], () => chosen.sequence_length, (to) => { chosen.sequence_length = to; });
  first.layers.forEach((count, stack) =>
    slider(first.layers.length > 1 ? `groups of layers ${stack + 1}` : "groups of layers", 2, 2 * count, () => chosen.layers[stack],
      (to) => { chosen.layers = chosen.layers.map((old, i) => (i === stack ? to : old)); }));
  const way = make("select", { "aria-label": "checkpointing" }, ...ways.map((one, i) => make("option", { value: i }, one.name)));
  way.addEventListener("change", () => { chosen.way = Number(way.value); changed(); });
  controls.append(make("div", { class: "tl-row" }, make("label", {}, "checkpointing"), way));
  const picture = make("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, width: WIDE, "aria-hidden": "true", style: "max-width:100%" });
  const words = make("p", { class: "tl-note", role: "status" });
  root.append(controls, picture, words, make("p", { class: "tl-note" }, counted));
  el.append(root);

  const show = () => {
    marks.forEach((mark) => mark());
    way.value = chosen.way;
    const { peak, flops } = predict(ways[chosen.way], chosen), total = peak.reduce((a, b) => a + b, 0);
    // The scale stays while the hand moves: that of the fullest corner would hide small models, so it is the next power of two.
    const scale = WIDE / 2 ** Math.ceil(Math.log2(Math.max(total, budget || 0)));
    let left = 0;
    picture.replaceChildren(...peak.map((bytes, kind) => {
      const rect = make("rect", { x: left, y: 4, width: bytes * scale, height: HIGH - 8, fill: colours[categories[kind]] });
      left += bytes * scale;
      return rect;
    }));
    if (budget) picture.append(make("rect", { x: budget * scale - 1, y: 0, width: 2, height: HIGH, fill: "currentColor" }));
    const parts = peak.flatMap((bytes, kind) => {
      if (!bytes) return [];
      const swatch = make("span", { style: `display:inline-block;margin-left:4px;width:10px;height:10px;background:${colours[categories[kind]]}` });
      return [", ", swatch, ` ${categories[kind]} ${size(bytes)}`];
    });
    const fits = budget ? `, ${total <= budget ? "within" : "beyond"} the budget of ${size(budget)} (the line)` : "";
    words.replaceChildren(`${size(total)}${fits}:`, ...parts.slice(1), `; ${(flops / 1e9).toPrecision(3)} GFLOP a step. The bar's full width is ${size(WIDE / scale)}.`);
  };
  const changed = () => {
    show();
    model.set("chosen", { ...chosen });
    model.save_changes();
  };
  const elsewhere = () => {
    chosen = { ...model.get("chosen") };
    show();
  };
  model.on("change:chosen", elsewhere);
  show();
  const forget = followTheme(root);
  return () => {
    forget();
    model.off("change:chosen", elsewhere);
  };
}

export default { render };
