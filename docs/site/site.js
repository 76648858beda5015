// Draws the plotly figures that notebooks stored; plotly itself is loaded where there are any.
const SITE_STATIC = new URL(".", document.currentScript.src);
let plotly; // of the page, once somebody asked for it

function plotted(place, figure) {
  plotly ??= new Promise((resolve) => {
    const library = document.createElement("script");
    library.src = new URL("plotly.min.js", SITE_STATIC).href;
    library.onload = resolve;
    document.head.append(library);
  });
  plotly.then(() => {
    const layout = { ...structuredClone(figure.layout), width: undefined, autosize: true };
    const data = structuredClone(figure.data);
    if (place.clientWidth < 480) narrow(data, layout);
    place.style.minHeight = `${layout.height}px`; // for plotly, when the width changes
    Plotly.react(place, data, layout, { responsive: true, displaylogo: false });
  });
}

/* On a phone panels stand below each other, titles have several lines, names for which there is no
room are written upwards, with groups the group behind the name, and words in a figure are small. */
function narrow(data, layout) {
  const grouped = data.filter(({ x }) => Array.isArray(x?.[0]));
  for (const trace of grouped) {
    const [groups, names] = trace.x;
    trace.x = names.map((name, i) => `${name.replaceAll("<br>", " ")}, ${groups[i]}`);
    if (trace.type === "scatter") trace.marker.size = 18;
  }
  if (grouped.length) {
    Object.assign(layout.xaxis, { tickangle: -90, title: {} });
    layout.height += 90;
  }
  const broken = (text) => (text.length > 40 ? text.replace(/(.{20,40})\s/g, "$1<br>") : text);
  const names = layout.xaxis?.ticktext?.map((name) => String(name).replaceAll(" ", "<br>"));
  const longest = (all) => Math.max(...all.map((name) => name.length));
  if (names && names.length * longest(names.flatMap((name) => name.split("<br>"))) > 40) {
    const whole = names.map((name) => name.replaceAll("<br>", " "));
    Object.assign(layout.xaxis, { tickangle: -90, ticktext: whole });
    layout.height += 6 * longest(whole);
  } else if (names) layout.xaxis.ticktext = names;
  for (const trace of data.filter(({ mode }) => mode === "text")) { // a lattice, by its columns
    trace.textfont = { ...trace.textfont, size: 9 };
    Object.assign(layout.yaxis, { title: {} });
    layout.margin.r = 4;
  }
  const lines = (text = "") => text.split("<br>").length;
  const panels = Object.entries(layout).filter(([name]) => name.startsWith("xaxis"))
    .map(([, x]) => ({ x, y: layout[(x.anchor ?? "y").replace("y", "yaxis")] }));
  for (const { x } of panels.filter((one) => one.x.title?.text?.length > 32)) {
    x.title.text = x.title.text.replace(/(.{12,24})\s/g, "$1<br>");
    layout.height += 16 * (lines(x.title.text) - 1);
  }
  if (panels.some(({ x }) => x.domain?.[0] > 0.2)) {
    const gap = 100; // pixels: an axis' title, and the next panel's
    const { t, b } = layout.margin;
    panels.sort((one, other) => other.y.domain[1] - one.y.domain[1]
      || one.x.domain[0] - other.x.domain[0]);
    const heights = panels.map(({ y }) => (y.domain[1] - y.domain[0]) * (layout.height - t - b));
    const whole = heights.reduce((sum, height) => sum + height + gap, -gap);
    const titles = (layout.annotations ?? []).filter((note) => note.yref === "paper");
    let top = whole;
    panels.forEach(({ x, y }, i) => {
      const [from, to] = x.domain;
      const title = titles.find((note) => note.y === y.domain[1] && note.x > from && note.x < to);
      if (title) Object.assign(title, { x: 0.5, y: top / whole, text: broken(title.text) });
      x.domain = [0, 1];
      y.domain = [(top - heights[i]) / whole, top / whole];
      top -= heights[i] + gap;
    });
    layout.height = whole + t + b;
  }
  if (layout.title?.text) {
    const text = broken(layout.title.text);
    layout.margin.t += 16 * (lines(text) - lines(layout.title.text));
    Object.assign(layout.title, { text, font: { size: 13 } });
  }
}

function draw(part) {
  for (const script of part.querySelectorAll(".specwb-plotly > script")) {
    const place = script.parentElement;
    script.remove();
    plotted(place, JSON.parse(script.textContent));
  }
}
document.addEventListener("DOMContentLoaded", () => draw(document));

// Questions are buttons; the first choice counts, and is kept in this browser.
document.addEventListener("DOMContentLoaded", () => {
  const places = [...document.querySelectorAll(".specwb-question[data-key]")];
  if (!places.length) return;
  const keys = places.map((place) => place.dataset.key);
  const [lesson] = keys[0].split(".");
  const KEPT = "specwb.answers"; // question -> choice
  let kept = {};
  try {
    kept = JSON.parse(localStorage.getItem(KEPT)) ?? {};
  } catch { /* forbidden: then answers last as long as the page */ }
  const keep = () => {
    try {
      localStorage.setItem(KEPT, JSON.stringify(kept));
    } catch { /* forbidden, or full */ }
  };
  const answers = {};
  const score = document.querySelector(".specwb-score") ?? places.at(-1).parentElement
    .appendChild(document.createElement("div"));
  score.className = "specwb-score specwb-question";
  score.innerHTML = '<p role="status"></p><div role="group" aria-label="answers">'
    + '<button type="button">Download my answers</button> '
    + '<button type="button">Read answers from a file</button> '
    + '<button type="button">Forget them and begin again</button></div><p role="alert"></p>';
  const [download, read, forget] = score.querySelectorAll("button");
  const isHomework = (place) =>
    score.compareDocumentPosition(place) & Node.DOCUMENT_POSITION_FOLLOWING;
  const count = () => {
    const counted = (name, some) => {
      const given = some.map((place) => answers[place.dataset.key]).filter(Boolean);
      return some.length ? [`${name}: ${some.length} asked, ${given.length} answered, `
        + `${given.filter((one) => one.right).length} right.`] : [];
    };
    score.firstChild.textContent = [
      ...counted("Questions", places.filter((place) => !isHomework(place))),
      ...counted("Homework", places.filter(isHomework)),
    ].join(" ");
  };
  for (const place of places) {
    const { key } = place.dataset;
    asButtons(place, kept[key], (choice, right) => {
      answers[key] = { choice, right };
      kept[key] = choice;
      keep();
      count();
      const figure = place.querySelector("template");
      if (figure) {
        figure.replaceWith(figure.content);
        draw(place);
      }
    });
  }
  count();
  download.addEventListener("click", () => {
    const link = document.createElement("a");
    const text = JSON.stringify({ lesson, answers }, null, 1);
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = `answers-${lesson}.json`;
    link.click();
    URL.revokeObjectURL(link.href);
  });
  const restart = (choice) => {
    for (const key of keys) kept[key] = choice[key]?.choice;
    keep();
    location.reload();
  };
  read.addEventListener("click", () => {
    const input = Object.assign(document.createElement("input"), { type: "file" });
    input.accept = ".json";
    input.addEventListener("change", async () => {
      const [file] = input.files;
      let found = null;
      try {
        found = JSON.parse(await file.text());
      } catch { /* no JSON: no answers either */ }
      if (found?.lesson === lesson && found.answers) restart(found.answers);
      else if (found?.lesson && found.answers) {
        score.lastChild.textContent = `${file.name} has the answers of lesson ${found.lesson}; `
          + `this is lesson ${lesson}.`;
      } else score.lastChild.textContent = `${file.name} is no file of downloaded answers.`;
    });
    input.click();
  });
  forget.addEventListener("click", () => restart({}));
});
