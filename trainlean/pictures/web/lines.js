// Lines of code to put in order: by mouse (click or drag) and by keyboard, with the known mistakes named.

const STEP = 4; // spaces of an indentation
const MOST = 6; // indentations
const words = (text) => text.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part));
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** What is said of an arrangement: {right, mistake, says}. */
export function judge(puzzle, given) {
  const { lines, accepted, known, wrong } = puzzle;
  const placed = given.map(([line, depth]) => [lines.indexOf(lines[line]), depth]); // which of two equal lines it is does not matter
  if (!placed.length) return { right: false, mistake: "", says: "Nothing is placed yet: press a line above." };
  if (accepted.some((one) => same(one, placed))) return { right: true, mistake: "", says: "Right. Now fold this away and write it yourself." };
  const named = known.find((one) => arrangements(puzzle, one.placed).some((other) => same(other, placed)));
  if (named) return { right: false, mistake: named.name, says: `${capital(named.name)}. ${named.why} ${named.hint}` };
  const first = placed.findIndex(([line]) => wrong.includes(line));
  if (first >= 0) {
    // Its mistake is not told: some mistakes change two lines, and each of these alone, or anywhere else, does something else.
    return { right: false, mistake: "", says: `Line ${first + 1}, \`${lines[placed[first][0]]}\`, is one of the wrong ones: no right order known here has it.` };
  }
  const lasting = (one) => { let i = 0; while (i < placed.length && i < one.length && same(one[i], placed[i])) i++; return i; };
  const best = accepted.reduce((a, b) => (lasting(b) > lasting(a) ? b : a)), good = lasting(best);
  if (good === placed.length) return { right: false, mistake: "", says: `${count(good)} in place. ${best.length - good} more belong to it.` };
  const [line, depth] = placed[good], there = best[good];
  const why = there && there[0] === line && there[1] !== depth
    ? `is indented ${depth > there[1] ? "further" : "less"} than in the nearest order that is known here: in which block should it run?`
    : "is not the next one in any order that is known here.";
  // Not every right order can be known.
  const doubt = placed.length === accepted[0].length ? " Where you think that yours is right, too, write it: `check` decides." : "";
  return { right: false, mistake: "", says: `${good ? `${count(good)} in place. ` : ""}Line ${good + 1}, \`${lines[line]}\`, ${why}${doubt}` };
}
/** A known mistake's arrangement; where it only has wrong lines in place of the solution's, that in every accepted order with the same lines below them. */
function arrangements({ accepted, wrong }, placed) {
  const solution = accepted[0];
  const alike = ([line, depth], i) => depth === solution[i]?.[1] && (line === solution[i][0] || wrong.includes(line));
  if (placed.length !== solution.length || !placed.every(alike)) return [placed];
  const given = new Map(solution.map(([line], i) => [line, placed[i][0]]));
  if (placed.some(([line], i) => given.get(solution[i][0]) !== line)) return [placed]; // one of two equal lines is changed
  const changed = [...given.keys()].filter((line) => given.get(line) !== line);
  return accepted
    .filter((order) => changed.every((line) => same(below(order, line), below(solution, line))))
    .map((order) => order.map(([line, depth]) => [given.get(line), depth]));
}
function below(order, line) {
  const start = order.findIndex(([one]) => one === line);
  const end = order.findIndex(([, depth], i) => i > start && depth <= order[start][1]);
  return order.slice(start + 1, end < 0 ? order.length : end).map(([one]) => one).sort();
}
const count = (number) => (number === 1 ? "The first line is" : `The first ${number} lines are`);
const capital = (text) => text[0].toUpperCase() + text.slice(1);

function render({ model, el }) {
  const puzzle = model.get("puzzle");
  const root = make("details", { class: "trainlean tl-lines" });
  const pool = make("ul", { class: "tl-pool", "aria-label": "lines to choose from" });
  const answer = make("ol", { class: "tl-answer", "aria-label": `your ${puzzle.name}` });
  const verdict = make("div", { class: "tl-verdict", role: "status" });
  let chosen = -1, dragged = null;

  const tools = [
    ["up", "move the line up", "ArrowUp", (placed) => swap(placed, -1)],
    ["down", "move the line down", "ArrowDown", (placed) => swap(placed, 1)],
    ["out", "indent the line less", "ArrowLeft", (placed) => indent(placed, -1)],
    ["in", "indent the line more", "ArrowRight", (placed) => indent(placed, 1)],
    ["remove", "take the line out", "Delete", take],
  ].map(([name, label, key, change]) => {
    const button = make("button", { type: "button", class: "tl-button", title: `${label} (${key})` }, name);
    button.addEventListener("click", () => work(change, button));
    return { button, key, change };
  });
  const check = make("button", { type: "button", class: "tl-button tl-check" }, "check the order");
  const keys = make("p", { class: "tl-note" }, "Press or drag a line to place it. On a placed line the arrow keys move and indent it, Delete takes it out. Not every line is needed.");
  root.append(
    make("summary", {}, puzzle.title), keys, pool,
    make("div", { class: "tl-paper" }, make("code", { class: "tl-head" }, puzzle.head), answer),
    make("div", { class: "tl-tools" }, ...tools.map(({ button }) => button), check), verdict,
  );
  el.append(root);

  function swap(placed, by) {
    const to = chosen + by;
    if (to < 0 || to >= placed.length) return placed;
    const [one] = placed.splice(chosen, 1);
    placed.splice(to, 0, one);
    chosen = to;
    return placed;
  }
  function indent(placed, by) {
    const [line, depth] = placed[chosen];
    placed[chosen] = [line, Math.min(Math.max(depth + by, 1), MOST)];
    return placed;
  }
  function take(placed) {
    placed.splice(chosen, 1);
    chosen = Math.min(chosen, placed.length - 1);
    return placed;
  }
  /** A line goes to a place, as deep as what stands before it asks for. */
  function place(line, at = model.get("placed").length) {
    const placed = model.get("placed").filter(([one]) => one !== line), before = placed[Math.min(at, placed.length) - 1];
    const depth = before ? before[1] + (puzzle.lines[before[0]].endsWith(":") ? 1 : 0) : 1;
    placed.splice(at, 0, [line, depth]);
    chosen = Math.min(at, placed.length - 1);
    save(placed);
  }
  function work(change, button) {
    if (chosen < 0) return;
    save(change(model.get("placed").map((one) => [...one])));
    if (button) button.focus();
    else (answer.children[chosen]?.firstChild || pool.querySelector("button") || check).focus();
  }
  function save(placed) {
    model.set("placed", placed);
    model.save_changes();
    show();
  }

  function row(line, depth, number) {
    const button = make("button", { type: "button", class: "tl-line", draggable: "true", "aria-pressed": number === undefined ? null : String(number === chosen) }, make("code", {}, puzzle.lines[line]));
    if (depth) button.setAttribute("aria-label", `${puzzle.lines[line]}, line ${number + 1}, indented ${depth} times`);
    button.addEventListener("dragstart", (event) => {
      dragged = line;
      event.dataTransfer.setData("text/plain", puzzle.lines[line]);
    });
    return button;
  }
  function show() {
    const placed = model.get("placed"), used = new Set(placed.map(([line]) => line));
    if (chosen >= placed.length) chosen = -1;
    pool.replaceChildren(
      ...puzzle.lines.map((_, line) => {
        const button = row(line);
        button.disabled = used.has(line);
        button.addEventListener("click", () => {
          const next = [...pool.querySelectorAll("button:not(:disabled)")], at = next.indexOf(button);
          place(line);
          const left = [...pool.querySelectorAll("button:not(:disabled)")];
          (left[Math.min(at, left.length - 1)] || check).focus();
        });
        return make("li", {}, button);
      }),
    );
    answer.replaceChildren(
      ...placed.map(([line, depth], number) => {
        const button = row(line, depth, number);
        button.style.marginLeft = `calc(${STEP * depth} * 1ch)`;
        button.addEventListener("click", () => ((chosen = number), show(), answer.children[number].firstChild.focus()));
        button.addEventListener("keydown", (event) => {
          const tool = tools.find(({ key }) => key === event.key || (key === "Delete" && event.key === "Backspace"));
          if (!tool) return;
          event.preventDefault();
          chosen = number;
          work(tool.change);
        });
        return make("li", {}, button);
      }),
    );
    for (const { button } of tools) button.disabled = chosen < 0;
  }
  // A line is dropped before the one under it, else at the end; outside it is taken out.
  answer.parentElement.addEventListener("dragover", (event) => event.preventDefault());
  answer.parentElement.addEventListener("drop", (event) => {
    event.preventDefault();
    if (dragged === null) return;
    const rows = [...answer.children], under = rows.findIndex((one) => event.clientY < one.getBoundingClientRect().bottom - 4);
    const from = model.get("placed").findIndex(([line]) => line === dragged);
    const at = under < 0 ? rows.length - (from >= 0) : under - (from >= 0 && from < under);
    place(dragged, at);
    dragged = null;
  });
  pool.addEventListener("dragover", (event) => event.preventDefault());
  pool.addEventListener("drop", (event) => {
    event.preventDefault();
    save(model.get("placed").filter(([line]) => line !== dragged));
  });
  check.addEventListener("click", () => {
    const { right, mistake, says } = judge(puzzle, model.get("placed"));
    const tries = model.get("tries") + 1;
    model.set("tries", tries);
    model.set("result", { right, mistake, tries });
    model.save_changes();
    verdict.className = `tl-verdict ${right ? "tl-right" : "tl-wrong"}`;
    verdict.replaceChildren(make("span", { class: "tl-mark", "aria-hidden": "true" }, right ? "✓ " : "✗ "), ...words(says));
  });
  const elsewhere = () => show();
  model.on("change:placed", elsewhere);
  show();
  const forget = followTheme(root);
  return () => (forget(), model.off("change:placed", elsewhere));
}

export default { render };
