// Slides: arrows go from one to the next, letters choose, Space shows the answer.
const slides = [...document.querySelectorAll("section")];
const [back, tell, next, place] = ["back", "tell", "next", "place"].map((id) => document.getElementById(id));
let at = Math.min(Math.max(Number(location.hash.slice(1)) || 1, 1), slides.length) - 1;

function go(to) {
  at = Math.min(Math.max(to, 0), slides.length - 1);
  slides.forEach((slide, i) => (slide.hidden = i !== at));
  place.textContent = `${at + 1} of ${slides.length}`;
  [back.disabled, next.disabled] = [at === 0, at === slides.length - 1];
  tell.textContent = told() ? "hide the answer" : "show the answer";
  history.replaceState(null, "", `#${at + 1}`);
  scrollTo(0, 0);
}
const told = () => slides[at].classList.contains("told");
function show() {
  slides[at].classList.toggle("told");
  slides[at].querySelector(".answer").hidden = !told();
  if (told()) scrollTo(0, document.body.scrollHeight);
  tell.textContent = told() ? "hide the answer" : "show the answer";
}
function choose(option) {
  for (const one of slides[at].querySelectorAll(".option")) one.setAttribute("aria-pressed", String(one === option));
}
for (const option of document.querySelectorAll(".option")) option.addEventListener("click", () => choose(option));
back.addEventListener("click", () => go(at - 1));
tell.addEventListener("click", show);
next.addEventListener("click", () => go(at + 1));
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const option = slides[at].querySelectorAll(".option")["abcd".indexOf(event.key)];
  if (event.key === "ArrowRight" || event.key === "PageDown") go(at + 1);
  else if (event.key === "ArrowLeft" || event.key === "PageUp") go(at - 1);
  else if (event.key === " " && !event.target.closest?.("button")) show();
  else if (option) choose(option);
  else return;
  event.preventDefault();
});
go(at);
