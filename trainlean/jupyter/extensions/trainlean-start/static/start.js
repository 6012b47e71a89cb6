// The start page inside JupyterLab. Written by hand as the container that JupyterLab loads, so that nothing has to be compiled.

(() => {
  const settings = JSON.parse(document.getElementById("jupyter-config-data")?.textContent || "{}");
  let shared = {};

  /** The page: asks the server anew whenever it comes into view. */
  function startPage(Widget, app) {
    return class extends Widget {
      constructor() {
        super();
        this.id = "trainlean-start";
        this.addClass("trainlean-start");
        Object.assign(this.title, { label: "Train Lean", caption: "The map of the course", closable: false });
        this.node.tabIndex = -1;
        this.node.addEventListener("click", (event) => {
          const lesson = event.target.closest("a[data-lesson]")?.dataset.lesson;
          if (!lesson) return;
          event.preventDefault();
          app.commands.execute("docmanager:open", { path: `lessons/${lesson}.ipynb` });
        });
        addEventListener("focus", () => this.isVisible && this.refresh());
      }
      onAfterAttach() {
        this.refresh();
      }
      onAfterShow() {
        this.refresh();
      }
      onActivateRequest() {
        this.node.focus({ preventScroll: true });
      }
      async refresh() {
        const headers = settings.token ? { Authorization: `token ${settings.token}` } : {};
        try {
          const answer = await fetch(`${settings.baseUrl}trainlean/start`, { headers });
          if (!answer.ok) throw new Error(`${answer.status}`);
          const { html } = await answer.json();
          if (html !== this.shown) this.node.innerHTML = this.shown = html;
        } catch (error) {
          this.node.textContent = `The map cannot be shown (${error.message}). The lessons lie in the folder lessons.`;
        }
      }
    };
  }

  const plugin = (Widget) => ({
    id: "trainlean-start:plugin",
    description: "The map of the course with the learner's progress.",
    autoStart: true,
    activate(app) {
      const page = new (startPage(Widget, app))();
      // Not awaited: JupyterLab is restored only when every extension has been activated.
      app.restored.then(() => app.shell.add(page, "main", { rank: 0, activate: !settings.treePath }));
    },
  });

  (window._JUPYTERLAB ??= {})["trainlean-start"] = {
    init(scope) {
      shared = scope;
    },
    async get() {
      const [lumino] = Object.values(shared["@lumino/widgets"]);
      const { Widget } = (await lumino.get())();
      return () => ({ __esModule: true, default: plugin(Widget) });
    },
  };
})();
