// Draws the plotly figures that notebooks stored; plotly itself is loaded where there are any.
document.addEventListener("DOMContentLoaded", () => {
  const places = [...document.querySelectorAll(".specwb-plotly")];
  if (!places.length) return;
  const library = document.createElement("script");
  library.src = new URL("plotly.min.js", SITE_STATIC).href;
  library.onload = () => {
    for (const place of places) {
      const figure = JSON.parse(place.querySelector("script").textContent);
      const layout = { ...figure.layout, width: undefined, autosize: true };
      place.textContent = "";
      Plotly.newPlot(place, figure.data, layout, { responsive: true, displaylogo: false });
    }
  };
  document.head.append(library);
});
const SITE_STATIC = new URL(".", document.currentScript.src);
