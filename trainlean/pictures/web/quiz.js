// Questions with a few answers, one question after the other: an answer that is pressed says what is right or wrong about it.

/** Words, with what stands between backticks as code. */
const words = (text) => text.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part));

/** Arrow keys go from answer to answer. */
function walk(event, buttons) {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  buttons[(buttons.indexOf(event.target) + by + buttons.length) % buttons.length].focus();
}

function render({ model, el }) {
  const { title, questions } = model.get("asked");
  const root = make("div", { class: "trainlean tl-quiz", role: "group", "aria-label": title });
  const score = make("p", { class: "tl-note", role: "status" });
  root.append(make("p", { class: "tl-heading" }, title));

  const shown = questions.map(({ ask, options }, number) => {
    const rows = options.map(({ text, says, right }, option) => {
      const mark = make("span", { class: "tl-mark", "aria-hidden": "true" }, "abcdefgh"[option]);
      const button = make("button", { type: "button", class: "tl-option" }, mark, make("span", {}, ...words(text)));
      const answer = make("div", { class: "tl-says", "aria-live": "polite" });
      const row = make("li", {}, button, answer);
      button.addEventListener("click", () => choose(number, option));
      const tell = () => {
        if (answer.childNodes.length) return;
        row.className = right ? "tl-right" : "tl-wrong";
        mark.textContent = right ? "✓" : "✗";
        answer.append(make("b", {}, right ? "Right. " : "No. "), ...words(says));
      };
      return { row, button, tell };
    });
    const buttons = rows.map(({ button }) => button);
    for (const button of buttons) button.addEventListener("keydown", (event) => walk(event, buttons));
    const list = make("ul", { class: "tl-options", "aria-label": ask.replaceAll("`", "") }, ...rows.map(({ row }) => row));
    const count = questions.length > 1 ? [make("span", { class: "tl-count" }, `${number + 1} of ${questions.length} `)] : [];
    const all = make("div", { class: "tl-question" }, make("p", { class: "tl-ask" }, ...count, ...words(ask)), list);
    root.append(all);
    return { all, rows };
  });
  root.append(score);
  el.append(root);

  function choose(number, option) {
    const chosen = model.get("chosen");
    if (chosen[number].includes(option)) return;
    model.set("chosen", chosen.map((some, i) => (i === number ? [...some, option] : some)));
    model.save_changes();
    show();
  }
  const isRight = (number, option) => questions[number].options[option].right;
  function show() {
    const chosen = model.get("chosen");
    chosen.forEach((some, number) => some.forEach((option) => shown[number].rows[option].tell()));
    const known = chosen.map((some, number) => some.some((option) => isRight(number, option)));
    const done = known.every(Boolean);
    shown.forEach(({ all }, number) => (all.hidden = number > 0 && !known[number - 1])); // one after the other
    const first = chosen.filter((some, number) => some.length && isRight(number, some[0])).length;
    score.textContent = done && questions.length > 1 ? `${first} of ${questions.length} right at the first try.` : "";
  }
  model.on("change:chosen", show);
  show();
  const forget = followTheme(root);
  return () => (forget(), model.off("change:chosen", show));
}

export default { render };
