// Search, and keys for what scrolls sideways. The index is a script of its own, fetched by the first who searches.

const root = document.documentElement.dataset.root;
const field = document.getElementById("search"), found = document.getElementById("found");
let index = null;

function load() {
  index ||= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = root + "static/search.js";
    script.onload = () => done(window.trainleanSearch.map((one) => [...one, one.slice(0, 2).join(" ").toLowerCase(), one[3].toLowerCase()]));
    script.onerror = () => failed(new Error("The index of the search is missing: static/search.js."));
    document.head.append(script);
  });
  return index;
}

/** The sections that have all words, those with a word in their heading first. */
function matches(sections, words) {
  const scored = [];
  for (const [page, section, address, text, heading, low] of sections) {
    let score = 0;
    for (const word of words) {
      const there = heading.includes(word) ? 20 : 0;
      const often = Math.min(low.split(word).length - 1, 8);
      if (!there && !often) { score = 0; break; }
      score += there + often;
    }
    if (score) scored.push({ score, page, section, address, text });
  }
  return scored.sort((a, b) => b.score - a.score).slice(0, 20);
}

/** Some text around the first of the words, with the words marked. */
function excerpt(text, words) {
  const low = text.toLowerCase(), places = words.map((word) => low.indexOf(word)).filter((at) => at >= 0);
  const near = places.length ? Math.max(0, Math.min(...places) - 60) : 0, part = document.createElement("small");
  const from = near && text.indexOf(" ", near) + 1, to = text.length > from + 160 ? text.lastIndexOf(" ", from + 160) : text.length;
  const shown = (from ? "… " : "") + text.slice(from, to) + (to < text.length ? " …" : "");
  const pattern = new RegExp(words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|"), "gi");
  let last = 0;
  for (const hit of shown.matchAll(pattern)) {
    const mark = document.createElement("mark");
    mark.textContent = hit[0];
    part.append(shown.slice(last, hit.index), mark);
    last = hit.index + hit[0].length;
  }
  part.append(shown.slice(last));
  return part;
}

async function search() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  found.hidden = !words.length;
  if (!words.length) return;
  const all = matches(await load(), words), list = document.createElement("ol"), count = document.createElement("p");
  count.setAttribute("role", "status");
  count.textContent = all.length ? `${all.length === 20 ? "The first 20" : all.length} found` : "Nothing found; try another word, or the glossary.";
  for (const one of all) {
    const item = document.createElement("li"), link = document.createElement("a"), title = document.createElement("b");
    link.href = root + one.address;
    title.textContent = one.section && one.section !== one.page ? `${one.section} · ${one.page}` : one.page;
    link.append(title, excerpt(one.text, words));
    item.append(link);
    list.append(item);
  }
  found.replaceChildren(count, list);
}

field.addEventListener("focus", load);
field.addEventListener("input", search);
field.form.addEventListener("submit", (event) => {
  event.preventDefault();
  found.querySelector("a")?.click();
});
field.form.addEventListener("keydown", (event) => {
  const links = [...found.querySelectorAll("a")], at = links.indexOf(document.activeElement);
  if (event.key === "Escape") {
    found.hidden = true;
    field.focus();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const next = at + (event.key === "ArrowDown" ? 1 : -1);
    (next < 0 ? field : links[Math.min(next, links.length - 1)])?.focus();
    event.preventDefault();
  }
});
found.addEventListener("click", (event) => event.target.closest("a") && (found.hidden = true));
document.addEventListener("click", (event) => event.target.closest(".search") || (found.hidden = true));
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, select, textarea")) {
    field.focus();
    event.preventDefault();
  }
});

// What is wider than the page is scrolled with the arrow keys, too.
function reachable() {
  for (const one of document.querySelectorAll("pre, .highlight, .scrolls, .output"))
    if (one.scrollWidth > one.clientWidth && getComputedStyle(one).overflowX === "auto") one.tabIndex = 0;
    else one.removeAttribute("tabindex");
}
addEventListener("load", reachable);
addEventListener("resize", reachable);
document.addEventListener("toggle", reachable, true);
