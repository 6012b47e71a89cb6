// The step-by-step player: draws what frames.py has recorded, a picture that stands still and the shapes that each step changes.

// The pictures' greys, as the page's theme has them; colours that mean something stay.
const INKS = {
  "#24292f": "currentColor", "#6b7280": "var(--tl-soft)", "#9aa0a8": "var(--tl-soft)", "#a8adb4": "var(--tl-soft)",
  "#7a828e": "var(--tl-soft)", "#d0d4da": "var(--tl-pale)", "#eef0f2": "var(--tl-wash)", "#ffffff": "var(--tl-paper)",
};
const ink = (colour) => INKS[colour] || colour;

/** The shapes at a step (from 1): everything that was said up to it. */
export function shapesAt(frames, step) {
  const shapes = {};
  for (const frame of frames.slice(0, step))
    for (const [name, changes] of Object.entries(frame)) shapes[name] = { ...shapes[name], ...changes };
  return Object.entries(shapes)
    .sort(([a], [b]) => a - b)
    .map(([, shape]) => shape)
    .filter((shape) => shape.kind);
}

/** Whether a text stands on a colour that means something: then it keeps its own, in every theme. */
const onColour = ({ x, y }, shapes) =>
  shapes.some((box) => box.kind === "rect" && !INKS[box.fill] && !box.opacity && !box.hatch &&
    box.x <= x && x <= box.x + box.width && box.y <= y && y <= box.y + box.height);

function draw({ kind, text, hatch, fill, stroke, ...attributes }, shapes) {
  const element = make(kind, attributes);
  if (fill) element.style.fill = kind === "text" && onColour(attributes, shapes) ? fill : ink(fill);
  if (stroke) element.style.stroke = ink(stroke);
  if (kind === "text") {
    element.textContent = text;
    element.style.fontSize = `${attributes["font-size"]}px`;
  }
  if (!hatch) return [element];
  const { x, y, width, height } = attributes;
  let d = "";
  for (let at = 5 - height; at < width; at += 5) {
    const from = Math.max(at, 0), to = Math.min(at + height, width);
    if (to > from) d += `M${x + from},${y + height - (from - at)}L${x + to},${y + height - (to - at)}`;
  }
  return [element, make("path", { d, style: `stroke:${ink(stroke)}` })];
}

const SIGNS = {
  first: "M2,2V14M14,2L5,8L14,14Z", back: "M13,2L4,8L13,14Z", play: "M3,2L14,8L3,14Z", pause: "M5,2V14M11,2V14",
  forward: "M3,2L12,8L3,14Z", last: "M14,2V14M2,2L11,8L2,14Z",
};
const sign = (name) => make("svg", { width: 16, height: 16, viewBox: "0 0 16 16", "aria-hidden": "true", class: `tl-sign tl-${name}` }, make("path", { d: SIGNS[name] }));

const PACE = 700; // milliseconds of a step
const LEAST = 0.9; // of its width, and the picture is not made smaller

function render({ model, el }) {
  const recording = model.get("recording"), last = recording.frames.length;
  const root = make("div", { class: "trainlean tl-player", role: "group", "aria-label": "Step-by-step player" });
  const button = (words, name, go) => {
    const element = make("button", { type: "button", class: "tl-button", "aria-label": words, title: words }, sign(name));
    element.addEventListener("click", go);
    return element;
  };
  let step = model.get("step"), clock = null;
  const play = button("play", "play", () => (clock ? pause() : start()));
  const slider = make("input", { type: "range", min: 1, max: last, step: 1, "aria-label": "step" });
  const bar = make(
    "div", { class: "tl-bar-of-player" },
    button("first step", "first", () => (pause(), go(1))),
    button("one step back", "back", () => (pause(), go(step - 1))),
    play,
    button("one step forward", "forward", () => (pause(), go(step + 1))),
    button("last step", "last", () => (pause(), go(last))),
    slider,
  );
  const picture = make("div", { class: "tl-frame", role: "img" });
  picture.innerHTML = recording.background.replace(/#[0-9a-f]{6}/g, ink);
  const svg = picture.querySelector("svg");
  svg.setAttribute("aria-hidden", "true");
  svg.removeAttribute("height");
  const { width, height, fold } = recording, scale = 96 / 72; // points to pixels
  svg.setAttribute("width", Math.round(width * scale));
  const shapes = make("g"), all = make("g", { id: unique("player") });
  all.append(...svg.childNodes, shapes);
  svg.append(all);
  // On a narrow page what is right of the fold stands below: side by side, letters would be too small to read.
  const rest = make("svg", { "aria-hidden": "true" }, make("use", { href: `#${all.id}` }));
  const lay = (room) => {
    const folded = Boolean(fold) && room < LEAST * width * scale, [right, low] = folded ? fold : [width, height];
    svg.setAttribute("viewBox", `0 0 ${right} ${low}`);
    svg.setAttribute("width", Math.round(right * scale));
    if (!folded) return rest.remove();
    rest.setAttribute("viewBox", `${right} 0 ${width - right} ${height}`);
    rest.setAttribute("width", Math.round((width - right) * scale));
    picture.append(rest);
  };
  const words = make("p", { class: "tl-note" });
  root.append(bar, picture, words);
  el.append(root);

  function show() {
    const now = shapesAt(recording.frames, step);
    shapes.replaceChildren(...now.flatMap((shape) => draw(shape, now)));
    const said = recording.words[step - 1];
    slider.value = step;
    slider.setAttribute("aria-valuetext", said);
    picture.setAttribute("aria-label", said);
    words.textContent = said;
  }
  function go(to) {
    step = Math.min(Math.max(to, 1), last);
    show();
    model.set("step", step);
    model.save_changes();
  }
  function name(words) {
    play.replaceChildren(sign(words));
    play.setAttribute("aria-label", words);
    play.title = words;
  }
  function pause() {
    clearInterval(clock);
    clock = null;
    name("play");
  }
  function start() {
    if (step === last) go(1);
    clock = setInterval(() => (step < last ? go(step + 1) : pause()), PACE);
    name("pause");
  }
  slider.addEventListener("input", () => (pause(), go(Number(slider.value))));
  const elsewhere = () => {
    if (model.get("step") === step) return;
    step = model.get("step");
    show();
  };
  model.on("change:step", elsewhere);
  show();
  lay(root.clientWidth);
  const size = new ResizeObserver(([{ contentRect }]) => lay(contentRect.width));
  size.observe(root);
  const forget = followTheme(root);
  return () => {
    pause();
    size.disconnect();
    forget();
    model.off("change:step", elsewhere);
  };
}

export default { render };
