// The draft tree of a round, root at the left; every node can be chosen.
function layout(round) {
  const kids = round.parents.map(() => []);
  round.parents.forEach((parent, node) => parent >= 0 && kids[parent].push(node));
  const depth = round.parents.map(() => 0);
  round.parents.forEach((parent, node) => parent >= 0 && (depth[node] = depth[parent] + 1));
  const y = new Array(round.parents.length).fill(0);
  let next = 0;
  const place = (node) => {
    kids[node].forEach(place);
    const rows = kids[node].map((kid) => y[kid]);
    y[node] = rows.length ? (rows[0] + rows[rows.length - 1]) / 2 : next++;
  };
  place(0);
  return { kids, depth, y, leaves: Math.max(next, 1), deepest: Math.max(...depth) };
}

const LOOKS = {
  root: ["ink", null, ""],
  draft: ["draft", "4 3", ""],
  accepted: ["accepted", null, "\u2713 "],
  rejected: ["rejected", null, "\u2717 "],
  untested: ["other", "2 3", ""],
};

// how much room a tree wants from left to right
const reach = (round) => (layout(round).deepest + 2) * 90;

function treeOf(trace, frame, chosen, width, choose) {
  const round = trace.rounds[frame.r];
  const word = (token) => visible(trace.words[token] ?? String(token));
  const { depth, y, leaves, deepest } = layout(round);
  const closing = frame.stage === "bonus";
  const columns = deepest + 1 + (closing && depth[round.bonus.node] === deepest ? 1 : 0);
  const step = clip((width - 12) / Math.max(deepest + 2, 3), 66, 150);
  const box = Math.min(step - 18, 104);
  const lane = leaves > 14 ? 31 : 36;
  const letters = Math.floor((box - 10) / 7.3);
  const X = (d) => 6 + d * step;
  const bonusBelow = closing && round.parents.some((parent) => parent === round.bonus.node);
  const height = leaves * lane + 16 + (bonusBelow ? lane : 0);
  const Y = (row) => 20 + row * lane;
  const svg = s("svg", { width: Math.max(X(columns) - 10, 120), height, role: "group",
    "aria-label": "draft tree" });
  const kept = new Set(closing ? round.path : []);
  const state = round.parents.map((_, node) => stateOf(round, frame, node));
  round.parents.forEach((parent, node) => {
    if (parent < 0) return;
    const good = state[node] === "accepted" || kept.has(node);
    const [x1, x2] = [X(depth[parent]) + box, X(depth[node])];
    const [y1, y2] = [Y(y[parent]), Y(y[node])];
    const middle = (x1 + x2) / 2;
    svg.append(s("path", { d: `M${x1},${y1} C${middle},${y1} ${middle},${y2} ${x2},${y2}`,
      fill: "none", class: good ? "stroke-accepted" : "stroke-soft",
      "stroke-width": good ? 2.6 : 1, "stroke-dasharray": state[node] === "draft" ? "4 3" : null,
      opacity: state[node] === "untested" ? 0.5 : 1 }));
  });
  round.tokens.forEach((token, node) => {
    const [colour, dash, sign] = LOOKS[state[node]];
    const parent = round.parents[node];
    const row = parent < 0 ? null : round.rows[parent];
    const at = row ? row.tokens.indexOf(token) : -1;
    const [bx, by] = [X(depth[node]), Y(y[node])];
    const name = node === 0 ? `pending token ${word(token)}`
      : `draft token ${word(token)}, depth ${depth[node]}, ${state[node]}`;
    const group = s("g", { class: `node${node === chosen ? " chosen" : ""}`, tabindex: 0,
      role: "button", "aria-label": name, "aria-pressed": node === chosen ? "true" : "false",
      "data-node": node, "data-state": state[node], onclick: () => choose(node) });
    group.append(
      s("title", {}, name),
      s("rect", { class: "fill-paper", x: bx, y: by - 12, width: box, height: 24, rx: 5 }),
      s("rect", { class: `box fill-${colour} stroke-${colour}`, x: bx, y: by - 12, width: box,
        height: 24, rx: 5, "fill-opacity": state[node] === "root" ? 0.06 : 0.16,
        "stroke-width": state[node] === "accepted" ? 2.6 : 1.5, "stroke-dasharray": dash }),
      label(bx + box / 2, by + 4.5, cut(sign + word(token), letters), { class: "mono",
        "text-anchor": "middle", opacity: state[node] === "untested" ? 0.65 : 1 }),
    );
    if (at >= 0) {
      const bar = (value, kind, offset) => group.append(s("rect", { x: bx + 3, y: by + offset,
        width: Math.max((box - 6) * value, 0.8), height: 2.4, class: `fill-${kind}` }));
      if (frame.stage !== "draft") bar(row.p[at], "target", 13);
      if (row.q) bar(row.q[at], "draft", 16);
    }
    svg.append(group);
  });
  if (closing) svg.append(bonusNode(round, word, { X, Y, y, depth, box, letters, leaves,
    bonusBelow }));
  return svg;
}

function bonusNode(round, word, place) {
  const { X, Y, y, depth, box, letters, leaves, bonusBelow } = place;
  const node = round.bonus.node;
  const [bx, by] = [X(depth[node] + 1), bonusBelow ? Y(leaves) : Y(y[node])];
  const [x1, y1] = [X(depth[node]) + box, Y(y[node])];
  const middle = (x1 + bx) / 2;
  const name = `bonus token ${word(round.bonus.token)}`;
  return s("g", { "data-bonus": "" }, s("title", {}, name),
    s("path", { d: `M${x1},${y1} C${middle},${y1} ${middle},${by} ${bx},${by}`, fill: "none",
      class: "stroke-target", "stroke-width": 2.6 }),
    s("rect", { x: bx, y: by - 12, width: box, height: 24, rx: 5, class: "fill-paper" }),
    s("rect", { x: bx, y: by - 12, width: box, height: 24, rx: 5, "fill-opacity": 0.2,
      class: "fill-target stroke-target", "stroke-width": 2.6 }),
    label(bx + box / 2, by + 4.5, cut("\u25c6 " + word(round.bonus.token), letters),
      { class: "mono", "text-anchor": "middle" }));
}
