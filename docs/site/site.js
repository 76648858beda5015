// Draws the plotly figures that notebooks stored; plotly itself is loaded where there are any.
const SITE_STATIC = new URL(".", document.currentScript.src);
let plotly; // of the page, once somebody asked for it

function draw(part) {
  const places = [...part.querySelectorAll(".specwb-plotly > script")];
  if (!places.length) return;
  plotly ??= new Promise((resolve) => {
    const library = document.createElement("script");
    library.src = new URL("plotly.min.js", SITE_STATIC).href;
    library.onload = resolve;
    document.head.append(library);
  });
  plotly.then(() => places.forEach((script) => {
    const figure = JSON.parse(script.textContent);
    const layout = { ...figure.layout, width: undefined, autosize: true };
    const place = script.parentElement;
    place.textContent = "";
    Plotly.newPlot(place, figure.data, layout, { responsive: true, displaylogo: false });
  }));
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
    + '<button type="button">Forget them and begin again</button></div>';
  const [download, forget] = score.querySelectorAll("button");
  const count = () => {
    const right = Object.values(answers).filter((one) => one.right).length;
    score.firstChild.textContent = `Questions: ${keys.length} asked, `
      + `${Object.keys(answers).length} answered, ${right} right.`;
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
  forget.addEventListener("click", () => {
    for (const key of keys) delete kept[key];
    keep();
    location.reload();
  });
});
