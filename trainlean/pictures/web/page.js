// Starts the widgets of a page that has no kernel: each from what the notebook has kept of it.

/** What a widget knows of its kernel's side, where there is no kernel. */
function still(state) {
  const listeners = {};
  return {
    static: true,
    get: (name) => state[name],
    set(name, value) {
      state[name] = value;
      for (const listener of listeners[`change:${name}`] || []) listener();
    },
    save_changes() {},
    send() {},
    on: (event, listener) => (listeners[event] ||= []).push(listener),
    off(event, listener) {
      listeners[event] = (listeners[event] || []).filter((one) => one !== listener);
    },
  };
}

// The scripts stand on the page itself or, where many pages share them, in files that have run before.
const sources = { ...window.trainleanScripts }, modules = {};
for (const source of document.querySelectorAll("script[data-trainlean-script]"))
  sources[source.dataset.trainleanScript] = JSON.parse(source.textContent);
for (const [name, source] of Object.entries(sources))
  modules[name] = import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
for (const place of document.querySelectorAll("[data-trainlean-widget]")) {
  const { default: widget } = await modules[place.dataset.trainleanWidget];
  const model = still(JSON.parse(place.querySelector("script").textContent));
  place.replaceChildren();
  widget.render({ model, el: place });
}
