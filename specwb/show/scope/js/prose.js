// The text by who wrote it, and the legend of colours.
// forwards of the target and tokens so far, next to plain decoding's one token per forward
function counted(trace, frame) {
  return [written(trace, frame).length, frame.stage === "draft" ? frame.r : frame.r + 1];
}

/* What was asked, without the words that a chat's template puts around it. */
function request(trace) {
  const text = (trace.prompt.text ?? "").split("\nuser\n").at(-1).replace(/\nassistant\n$/, "");
  return h("p", { class: "soft", "data-request": "" }, h("b", {}, "Asked: "), text);
}

/* Two bars over the whole text: what is written, and what plain decoding would have by now. */
function race(trace, frame) {
  const [tokens, steps] = counted(trace, frame);
  const lane = (name, n, kind) => [h("span", {}, name), h("i", { class: kind,
    style: `width:${(100 * n) / trace.tokens.length}%` })];
  return h("div", { class: "race", "aria-hidden": "true" },
    ...lane("this method", tokens, "fast"), ...lane("plain decoding", steps, "plain"));
}

function tally(trace, frame) {
  const [tokens, steps] = counted(trace, frame);
  const count = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
  return `So far ${count(tokens, "token")} from ${count(steps, "forward")} of the target; plain ` +
    `decoding would have ${count(steps, "token")}.`;
}

function prose(trace, frame, most) {
  const text = trace.prompt.text === null ? trace.prompt.tokens.join(" ") + " "
    : trace.prompt.text;
  const shown = text.length > most ? "\u2026" + text.slice(text.length - most + 1) : text;
  const block = h("p", { class: "text", "data-text": "", tabindex: 0, "aria-label": "the text" },
    h("span", { class: "token prompt" }, shown));
  for (const one of written(trace, frame)) {
    const marks = `token ${one.who}${one.now ? " now" : ""}`;
    block.append(h("span", { class: marks, "data-token": one.token,
      title: one.who === "bonus" ? "written by the target" : "accepted from the draft" },
      one.text));
  }
  return block;
}

let swatches = 0;

function swatch(kind, look) {
  const svg = s("svg", { width: 14, height: 13, "aria-hidden": "true" });
  const line = { x: 1, y: 1, width: 12, height: 11, rx: 2 };
  if (look === "bar") {
    const id = `swatch${++swatches}`;
    svg.append(patterns(id), s("rect", { ...line, class: `stroke-${kind}`,
      fill: filling(kind, id) }));
    return svg;
  }
  svg.append(s("rect", { ...line, class: `fill-${kind} stroke-${kind}`, "stroke-width": 2,
    "fill-opacity": 0.22, "stroke-dasharray": look === "dashed" ? "3 2" : null }));
  if (look === "cross") svg.append(s("path", { d: "M3,3 l8,7 M11,3 l-8,7",
    class: `stroke-${kind}`, "stroke-width": 1.6 }));
  if (look === "tick") svg.append(s("path", { d: "M3,7 l3,3 l5,-7", fill: "none",
    class: `stroke-${kind}`, "stroke-width": 1.8 }));
  if (look === "diamond") svg.append(s("path", { d: "M7,2 l4,4.5 l-4,4.5 l-4,-4.5 z",
    class: `fill-${kind}` }));
  return svg;
}

const item = (kind, look, text) => h("li", {}, kind ? swatch(kind, look) : null, text);

function legend() {
  return h("ul", { class: "legend" },
    item("target", "diamond", "target: p, bonus token"),
    item("draft", "dashed", "draft: q, waiting"),
    item("accepted", "tick", "accepted"),
    item("rejected", "cross", "rejected"),
    item("residual", "bar", "residual: what rejections leave of p"),
  );
}
