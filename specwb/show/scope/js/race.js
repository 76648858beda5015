// The text by who wrote it, and the race on the measured clock above it.
function race(trace, frame, width) {
  const plain = trace.plain.seconds;
  const total = Math.max(
    sum(plain),
    sum(trace.rounds.map((round) => sum(Object.values(round.seconds)))),
  );
  const now = clockAt(trace, frame);
  const left = 100;
  const x = (seconds) => left + (seconds / total) * (width - left - 8);
  const svg = s("svg", { width, height: 86, role: "img" });
  const own = written(trace, frame).length;
  let at = 0;
  let theirs = 0;
  svg.append(label(0, 19, "plain decoding", { class: "soft" }));
  for (const seconds of plain) {
    const end = at + seconds;
    const done = end <= now + 1e-9;
    theirs += done;
    const box = { x: x(at) + 0.7, y: 6, width: Math.max(x(end) - x(at) - 1.4, 0.6), height: 18 };
    svg.append(s("rect", { ...box, rx: 2, class: `fill-target stroke-target`,
      "fill-opacity": done ? 0.85 : 0.1, "stroke-opacity": 0.75 }));
    at = end;
  }
  svg.append(label(0, 50, cut(trace.method.key, 13), { class: "soft" }));
  at = 0;
  trace.rounds.forEach((round, r) => {
    const begin = at;
    const looks = { draft: "draft", score: "target", verify: "other", commit: "other" };
    for (const [part, seconds] of Object.entries(round.seconds)) {
      const wide = Math.max(x(at + seconds) - x(at), 0.4);
      const done = at + seconds / 2 <= now + 1e-9;
      svg.append(s("rect", { x: x(at), y: 37, width: wide, height: 18,
        class: `fill-${looks[part]}`, opacity: done ? 0.95 : 0.22 }));
      at += seconds;
    }
    svg.append(s("rect", { x: x(begin), y: 37, width: Math.max(x(at) - x(begin), 1), height: 18,
      rx: 2, class: "fill-none stroke-soft", "stroke-width": r === frame.r ? 2 : 0.7 }));
    if (x(at) - x(begin) > 17) {
      svg.append(label((x(begin) + x(at)) / 2, 69, `+${round.text.length}`,
        { "text-anchor": "middle", class: r === frame.r ? "" : "soft" }));
    }
  });
  const cursor = x(now);
  svg.append(s("line", { x1: cursor, x2: cursor, y1: 2, y2: 59, class: "stroke-ink",
    "stroke-width": 1.6 }));
  const side = cursor > width - 70 ? "end" : "middle";
  svg.append(label(cursor, 82, milliseconds(now), { "text-anchor": side, class: "soft" }));
  const line = `After ${milliseconds(now)}: ${own} token${own === 1 ? "" : "s"} here, ` +
    `${theirs} by plain decoding.`;
  svg.append(s("title", {}, line));
  return { svg, line };
}

function clockNote(trace) {
  const plain = trace.plain;
  const busy = plain.spread > 1.25 || (plain.load && plain.cores && plain.load > plain.cores);
  const runs = `least of ${plain.repeats} run${plain.repeats > 1 ? "s" : ""} on ${plain.device}`;
  const how = `Measured while recording, ${runs}, prompt left out.`;
  if (!busy) return h("p", { class: "soft" }, how);
  const spread = plain.spread > 1.25 ? ` (plain runs differ ${plain.spread.toFixed(2)}-fold)`
    : " (other programs had work for all of its cores)";
  return h("p", { class: "soft" }, how, " ", h("strong", { class: "busy" },
    `\u26a0 The machine was busy${spread}: do not trust these times.`));
}

function prose(trace, frame) {
  const text = trace.prompt.text === null ? trace.prompt.tokens.join(" ") + " "
    : trace.prompt.text;
  const shown = text.length > 240 ? "\u2026" + text.slice(-239) : text;
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

function swatch(kind, look) {
  const svg = s("svg", { width: 14, height: 13, "aria-hidden": "true" });
  const line = { x: 1, y: 1, width: 12, height: 11, rx: 2, "fill-opacity": 0.22 };
  svg.append(s("rect", { ...line, class: `fill-${kind} stroke-${kind}`, "stroke-width": 2,
    "stroke-dasharray": look === "dashed" ? "3 2" : null }));
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
    item("residual", "", "residual: what rejections leave of p"),
  );
}
