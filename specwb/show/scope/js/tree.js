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
  // a chain that is too long continues in the next line, as text does
  const chain = leaves === 1;
  const per = chain ? clip(Math.floor((width - 12) / 66), 3, deepest + 2) : deepest + 2;
  const step = clip((width - 12) / Math.max(per, 3), chain ? 66 : 46, 150);
  const box = Math.min(step - (step < 66 ? 10 : 18), 104);
  const lane = leaves > 14 ? 31 : 36;
  const letters = Math.floor((box - 6) / 7.3);
  const X = (d) => 6 + (d % per) * step;
  const bonusBelow = closing && round.parents.some((parent) => parent === round.bonus.node);
  const line = (d) => Math.floor(d / per);
  const pushed = (d) => bonusBelow && line(d) > line(depth[round.bonus.node] + 1);
  const Y = (row, d) => 20 + (row + line(d) + pushed(d)) * lane;
  const height = (leaves + line(columns - 1) + bonusBelow) * lane + 16;
  const svg = s("svg", { width: Math.max(Math.min(columns, per) * step - 4, 120), height,
    role: "group", "aria-label": "draft tree" });
  const kept = new Set(closing ? round.path : []);
  const state = round.parents.map((_, node) => stateOf(round, frame, node));
  round.parents.forEach((parent, node) => {
    if (parent < 0) return;
    const good = state[node] === "accepted" || kept.has(node);
    svg.append(s("path", { d: link(X(depth[parent]) + box, Y(y[parent], depth[parent]),
      X(depth[node]), Y(y[node], depth[node])), fill: "none",
      class: good ? "stroke-accepted" : "stroke-soft",
      "stroke-width": good ? 2.6 : 1, "stroke-dasharray": state[node] === "draft" ? "4 3" : null,
      opacity: state[node] === "untested" ? 0.5 : 1 }));
  });
  round.tokens.forEach((token, node) => {
    const [colour, dash, sign] = LOOKS[state[node]];
    const parent = round.parents[node];
    const row = parent < 0 ? null : round.rows[parent];
    const at = row ? row.tokens.indexOf(token) : -1;
    const [bx, by] = [X(depth[node]), Y(y[node], depth[node])];
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

// from the right of a box to the left of the next, which may stand at the beginning of a lower line
function link(x1, y1, x2, y2) {
  const middle = (x1 + x2) / 2;
  return x1 < x2 ? `M${x1},${y1} C${middle},${y1} ${middle},${y2} ${x2},${y2}`
    : `M${x1},${y1} h5 V${y2 - 15} H${x2 - 5} V${y2} h5`;
}

function bonusNode(round, word, place) {
  const { X, Y, y, depth, box, letters, leaves, bonusBelow } = place;
  const node = round.bonus.node;
  const d = depth[node];
  const [bx, by] = [X(d + 1), Y(bonusBelow ? leaves : y[node], d + 1)];
  const name = `bonus token ${word(round.bonus.token)}`;
  return s("g", { "data-bonus": "" }, s("title", {}, name),
    s("path", { d: link(X(d) + box, Y(y[node], d), bx, by), fill: "none",
      class: "stroke-target", "stroke-width": 2.6 }),
    s("rect", { x: bx, y: by - 12, width: box, height: 24, rx: 5, class: "fill-paper" }),
    s("rect", { x: bx, y: by - 12, width: box, height: 24, rx: 5, "fill-opacity": 0.2,
      class: "fill-target stroke-target", "stroke-width": 2.6 }),
    label(bx + box / 2, by + 4.5, cut("\u25c6 " + word(round.bonus.token), letters),
      { class: "mono", "text-anchor": "middle" }));
}
