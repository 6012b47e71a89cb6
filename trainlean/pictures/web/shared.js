// What all widgets use; Python puts it before each of them, since a widget is one module.

const NS = "http://www.w3.org/2000/svg";
const DRAWN = ["svg", "g", "path", "line", "rect", "circle", "text", "use"];

/** An element of HTML or SVG, with attributes (null and false leave one out) and children. */
function make(name, attributes = {}, ...children) {
  const element = DRAWN.includes(name) ? document.createElementNS(NS, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes))
    if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  // Arrow keys belong to what has the focus: JupyterLab would fold headings and go to other cells.
  if ("tabindex" in attributes || ["input", "select", "button"].includes(name))
    element.setAttribute("data-lm-suppress-shortcuts", "true");
  element.append(...children);
  return element;
}

/** An id that nothing else on the page has: in Jupyter each widget is a module of its own, which cannot count the others. */
const unique = (kind) => `trainlean-${kind}-${Math.random().toString(36).slice(2)}`;

/** Marks the widget as dark where the page's text is light, whatever the page says about its theme. */
function followTheme(root) {
  const look = () => {
    const [r, g, b] = (getComputedStyle(root).color.match(/[\d.]+/g) || [0, 0, 0]).map(Number);
    root.classList.toggle("tl-dark", 0.299 * r + 0.587 * g + 0.114 * b > 128);
  };
  const soon = () => (look(), setTimeout(look, 300), setTimeout(look, 1200)); // a theme's style sheet comes later
  const watch = new MutationObserver(soon);
  for (const place of [document.documentElement, document.body]) watch.observe(place, { attributes: true });
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", soon);
  soon();
  return () => (watch.disconnect(), system.removeEventListener("change", soon));
}
