// A plotly figure in a notebook's page; specwb/show/widgets/figure.py is its other half.
//
// The figure's JSON is the value of `source`, a plain ipywidgets model: anywidget delivers nothing
// any more to a model of its own whose module was not loaded within two seconds, as happens while
// a busy page draws something else.

const MIME = "application/vnd.plotly.v1+json";

/** plotly.js, loaded once a page, for whichever figure asks first. */
function library(source, say) {
  globalThis.specwbPlotly ??= load(source, say).catch((error) => {
    globalThis.specwbPlotly = undefined; // a cell that is run again tries again
    throw error;
  });
  return globalThis.specwbPlotly;
}

async function load(source, say) {
  const plotly = globalThis.Plotly ?? (await fromJupyterLab());
  if (plotly) return plotly;
  say("Waiting for the kernel to send plotly.js, which it does when no cell is running.");
  return fromKernel(source);
}

/** JupyterLab has plotly.js in the extension for static figures, which unpacks it for the first. */
async function fromJupyterLab() {
  try {
    const extension = await globalThis._JUPYTERLAB["jupyterlab-plotly"].get("./mimeExtension");
    const renderer = extension().rendererFactory.createRenderer({ mimeType: MIME });
    await renderer.renderModel({ data: { [MIME]: { data: [], layout: {} } }, setData() {} });
    renderer.dispose();
  } catch {
    // no JupyterLab, or no such extension: the kernel has it too
  }
  return globalThis.Plotly;
}

function fromKernel(source) {
  return new Promise((resolve, reject) => {
    source.once("msg:custom", async (_, [packed]) => {
      try {
        const text = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
        const parts = [await new Response(text).arrayBuffer()];
        const url = URL.createObjectURL(new Blob(parts, { type: "text/javascript" }));
        await import(url);
        URL.revokeObjectURL(url);
        resolve(globalThis.Plotly);
      } catch (error) {
        reject(error);
      }
    });
    source.once("comm_live_update", () => reject(new Error("the kernel has gone")));
    source.send({ kind: "plotly" });
  });
}

async function render({ model, el }) {
  const line = el.appendChild(document.createElement("div"));
  const plot = el.appendChild(document.createElement("div"));
  el.classList.add("specwb-figure");
  line.className = "specwb-figure-line";
  const say = (text, role = "none") => {
    line.setAttribute("role", role);
    line.textContent = text;
    line.hidden = !text;
  };
  say("The figure is being drawn ...");

  const manager = model.widget_manager;
  const source = await manager.get_model(model.get("source").slice("IPY_MODEL_".length));
  el.style.minHeight = `${JSON.parse(source.get("value")).layout.height ?? 450}px`;

  let shown = {}; // what is on the page: the figure's JSON and its width
  let busy = false;
  async function update() {
    if (busy) return;
    busy = true;
    try {
      const Plotly = await library(source, say);
      for (;;) {
        const wanted = { value: source.get("value"), width: plot.clientWidth };
        if (!wanted.width) break; // not in the page, or hidden: the observer calls again
        if (wanted.value !== shown.value) {
          const { data, layout, config } = JSON.parse(wanted.value);
          await Plotly.react(plot, data, { ...layout, width: wanted.width }, config);
        } else if (wanted.width !== shown.width) {
          await Plotly.relayout(plot, { width: wanted.width });
        } else break;
        shown = wanted;
        el.style.minHeight = "";
        say("");
      }
    } catch (error) {
      shown = {};
      el.style.minHeight = "";
      say(`The figure cannot be drawn: ${error?.message ?? error}. Run this cell again.`, "alert");
    } finally {
      busy = false;
    }
  }

  const observer = new ResizeObserver(update);
  observer.observe(el);
  source.on("change:value", update);
  update();
  return () => {
    observer.disconnect();
    source.off("change:value", update);
    globalThis.Plotly?.purge(plot);
  };
}

export default { render };
