// Explorers of the notebooks: Python (stored_explorers.py) drew every frame, the page chooses.
async function mountStored(place) {
  const packed = Uint8Array.from(atob(place.dataset.frames), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const { controls, grids, first, tabs, tab: opened, paths, base, frames } = await new Response(stream).json();
  const at = { ...first };
  let [grid] = grids;
  let tab = opened;
  const make = (name, attributes, ...children) => {
    const node = Object.assign(document.createElement(name), attributes);
    node.append(...children);
    return node;
  };
  const varies = ([name]) => new Set(grids.flatMap((one) => one[name])).size > 1;
  const menus = controls.filter((one) => one[2]).map(([name]) => name);

  /* The settings nearest to those wanted that are stored; menus choose the grid. */
  function choose(name, value) {
    at[name] = value;
    const fits = (one, names) => names.every((n) => one[n].includes(at[n]));
    grid = [grid, ...grids].find((one) => fits(one, menus))
      ?? grids.find((one) => fits(one, [name]));
    for (const [n] of controls) {
      const far = (other) => Math.abs(other - at[n]);
      at[n] = grid[n].reduce((best, other) => (far(other) < far(best) ? other : best));
    }
    show();
  }

  const inputs = controls.filter(varies).map(([name, label, menu, words]) => {
    const shown = make("output", { ariaHidden: "true" }); // the slider says it
    const all = Object.keys(words).filter((value) => grids.some((one) => one[name].includes(value)));
    const input = menu
      ? make("select", {}, ...all.map((value) => make("option", { value }, words[value])))
      : make("input", { type: "range", min: 0, step: 1 });
    input.name = name;
    input.addEventListener("input", () => choose(name, menu ? input.value : grid[name][input.value]));
    const row = make("label", { className: menu ? "menu" : "" }, make("span", {}, label), input,
      ...(menu ? [] : [shown]));
    const update = () => {
      if (menu) {
        input.value = at[name];
        return;
      }
      input.max = grid[name].length - 1;
      input.value = grid[name].indexOf(at[name]);
      input.disabled = grid[name].length === 1;
      input.setAttribute("aria-valuetext", words[at[name]]);
      shown.textContent = words[at[name]];
    };
    return { row, update };
  });
  const said = make("p", {});
  said.setAttribute("role", "status");
  const plot = make("div", { className: "specwb-plotly" });
  const buttons = tabs.map((words, i) => make("button", { type: "button", onclick: () => {
    tab = i;
    show();
  } }, words));
  const fixed = controls.filter((one) => !varies(one))
    .map(([name, label, , words]) => `${label} ${words[at[name]]}`).join(", ");
  place.replaceChildren(make("div", { className: "controls" }, ...inputs.map(({ row }) => row), said,
    make("div", { className: "tabs" }, ...buttons)), plot, make("p", { className: "soft" },
    `Drawn by the notebook's own code at these settings${fixed && `; fixed here: ${fixed}`}.`));

  function show() {
    inputs.forEach(({ update }) => update());
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === tab));
    const frame = frames[controls.map(([name]) => at[name]).join("|")];
    const [line, ...changes] = frame ?? ["This page has no picture of these settings."];
    said.textContent = line;
    if (!frame || line.startsWith("Not drawn")) return;
    const figures = structuredClone(base);
    for (let i = 0; i < changes.length; i += 2) {
      const path = paths[changes[i]];
      const inside = path.slice(0, -1).reduce((part, key) => part[key], figures);
      inside[path.at(-1)] = changes[i + 1];
    }
    plotted(plot, figures[tab]);
  }
  show();
}
document.addEventListener("DOMContentLoaded", () => {
  // what runs takes the place of its picture
  for (const place of document.querySelectorAll(".cell_output .explorer")) {
    if (!window.DecompressionStream) return;
    place.closest(".cell_output").querySelectorAll("img, .specwb-still").forEach((one) => one.remove());
    if (place.dataset.frames) mountStored(place);
  }
});
