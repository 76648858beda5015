// What only one family of methods has to show. A lens gets (lens, round, frame, trace, width).
const LENSES = {};

function lensOf(trace, frame, width, id) {
  const round = trace.rounds[frame.r];
  const lens = round.lens;
  if (!lens || !LENSES[lens.kind]) return null;
  const { title, body } = LENSES[lens.kind](lens, round, frame, trace, width, id);
  return h("section", { class: "pane", "data-lens": lens.kind }, h("h3", {}, title), body);
}

const wordsOf = (trace) => (token) => visible(trace.words[token] ?? String(token));
const note = (...text) => h("p", { class: "soft" }, ...text);
const wide = (svg) => h("div", { class: "scroll" }, svg);

function chip(x, y, width, text, kind, options = {}) {
  const letters = Math.floor((width - 8) / 7.3);
  return s("g", {}, s("title", {}, text),
    s("rect", { x, y, width, height: 24, rx: 4, class: "fill-paper" }),
    s("rect", { x, y, width, height: 24, rx: 4, class: `fill-${kind} stroke-${kind}`,
      "fill-opacity": options.pale ? 0.05 : 0.18, "stroke-width": options.strong ? 2.6 : 1.3,
      "stroke-dasharray": options.dash || null }),
    label(x + width / 2, y + 16, cut(text, letters), { class: "mono", "text-anchor": "middle" }));
}

function arrow(x1, y1, x2, y2, kind = "soft", dash = null) {
  const angle = Math.atan2(y2 - y1, x2 - x1);
  const wing = (turn) => `L${x2 - 7 * Math.cos(angle + turn)},${y2 - 7 * Math.sin(angle + turn)}`;
  return s("path", { d: `M${x1},${y1} L${x2},${y2} ${wing(0.45)} M${x2},${y2} ${wing(-0.45)}`,
    fill: "none", class: `stroke-${kind}`, "stroke-width": 1.4, "stroke-dasharray": dash });
}

// how sure the drafter was, level by level, and where it would stop
function sureness(sure, threshold, name, width) {
  const wideEach = clip((width - 130) / sure.length, 38, 54);
  const svg = s("svg", { width: Math.max(sure.length * wideEach + 130, 200), height: 104,
    role: "img" });
  const y = (value) => 82 - value * 70;
  sure.forEach((value, i) => {
    const x = 52 + i * wideEach;
    const on = value >= threshold;
    // a number that the threshold's line would cross stands above it
    const crossed = y(value) > y(threshold) && y(value) - 16 < y(threshold);
    svg.append(s("rect", { x, y: y(value), width: 34, height: 82 - y(value), "stroke-width": 1.5,
      class: `fill-${on ? "draft" : "other"} stroke-${on ? "draft" : "other"}`,
      "fill-opacity": on ? 0.45 : 0.15, "stroke-dasharray": on ? null : "3 2" }),
      label(x + 17, (crossed ? y(threshold) : y(value)) - 4, number(value), { "text-anchor": "middle", "font-size": 11 }),
      label(x + 17, 98, `${wideEach < 48 ? "" : "level "}${i + 1}`, { "text-anchor": "middle",
        class: "soft" }));
  });
  const end = 52 + sure.length * wideEach;
  svg.append(s("line", { x1: 44, x2: end, y1: y(threshold), y2: y(threshold),
    class: "stroke-rejected", "stroke-width": 1.6, "stroke-dasharray": "6 3" }),
    label(end + 4, y(threshold) + 4, `${name} ${number(threshold)}`, { class: "t-rejected" }));
  return svg;
}

LENSES.model = (lens, round, frame, trace, width) => {
  const count = (weights) => weights >= 1e6 ? `${(weights / 1e6).toFixed(1)} M` : `${weights}`;
  const tall = Math.max(lens.target.layers, lens.draft.layers);
  const each = Math.min(9, 220 / tall);
  const model = (one, kind, times) => {
    const svg = s("svg", { width: 282, height: 60 + one.layers * each });
    for (let i = 0; i < one.layers; i++) svg.append(s("rect", { x: 4,
      y: 24 + (one.layers - 1 - i) * each, width: 86, height: each - 2, rx: 2,
      class: `fill-${kind} stroke-${kind}`, "fill-opacity": 0.3 }));
    svg.append(label(4, 14, `${kind === "draft" ? "draft model" : "target"}`,
      { class: `t-${kind}`, "font-weight": 650 }));
    const layers = `${one.layers} ${one.layers === 1 ? "layer" : "layers"}`;
    svg.append(label(100, 36, `${layers}, ${count(one.weights)} weights`, {
      class: "soft" }), label(100, 53, times, {}));
    return svg;
  };
  const n = lens.forwards;
  const body = [h("div", { class: "row", style: "align-items: flex-start" },
    model(lens.draft, "draft", `runs ${n} time${n === 1 ? "" : "s"}`),
    model(lens.target, "target", "runs once, over all of the tree"))];
  if (lens.threshold && lens.sure.length) {
    body.push(note("How sure it was of each level; below the line it stops drafting:"),
      wide(sureness(lens.sure, lens.threshold, "threshold", width)));
  }
  return { title: "Who drafts: a model of its own", body };
};

LENSES.medusa = (lens, round, frame, trace, width) => {
  const word = wordsOf(trace);
  const { depth } = layout(round);
  const first = width < 480 ? 122 : 150;
  const room = width - first;
  const per = clip(Math.floor(room / 88), 1, lens.heads.length || 1); // in a line
  const each = clip(room / per, 88, 132);
  const box = each - 44;
  const lines = Math.ceil(lens.heads.length / per) || 1;
  const svg = s("svg", { width: first + per * each, height: 216 * lines, role: "img" });
  const state = lens.text.length > 1 ? word(lens.text[lens.text.length - 2]) : "";
  const pending = word(lens.text[lens.text.length - 1]);
  svg.append(chip(4, 2, 110, state, "target"), label(4, 44, "the target\u2019s state", {
    class: "soft" }), label(4, 60, "after this token", { class: "soft" }),
    chip(4, 96, 110, pending, "other", { dash: "3 2" }), label(4, 138, "pending: no head", {
      class: "soft" }), label(4, 154, "sees this token", { class: "soft" }));
  lens.heads.forEach((list, i) => {
    const x = first + (i % per) * each;
    const top = 216 * Math.floor(i / per);
    svg.append(s("path", { d: `M114,14 H118 V${top + 14} H${x + box / 2}`, class: "stroke-target",
      "stroke-width": 1.4, fill: "none" }), arrow(x + box / 2, top + 14, x + box / 2, top + 32,
      "target"));
    svg.append(label(x, top + 48, `head ${i + 1}${each < 110 ? "" : `: depth ${i + 1}`}`, {
      "font-weight": 650 }));
    const most = Math.max(...list.map((one) => one[1]), 1e-9);
    list.forEach(([token, p], rank) => {
      const drafted = round.tokens.some((one, node) => depth[node] === i + 1 && one === token);
      svg.append(chip(x, top + 56 + rank * 31, box, word(token), drafted ? "draft" : "other",
        { pale: !drafted, dash: drafted ? null : "3 2" }),
        s("rect", { x, y: top + 81 + rank * 31, width: (box * p) / most, height: 3,
          class: "fill-draft" }),
        label(x + box + 4, top + 72 + rank * 31, number(p), { class: "soft", "font-size": 11 }));
    });
  });
  const body = lens.heads.length ? [wide(svg), note("Every head sees the same one state, and not " +
    "what the heads before it draft: all nodes of a depth have the same list. Solid: in the tree.")]
    : [note("A text of one token has no state to draft from: nothing was drafted.")];
  return { title: "Medusa\u2019s heads: one state, a list for every depth", body };
};

LENSES.eagle = (lens, round, frame, trace, width) => {
  const word = wordsOf(trace);
  const { depth, deepest } = layout(round);
  const text = lens.text;
  const each = 104;
  const pairs = text.slice(0, -1).map((token, i) => ({ state: word(token),
    token: word(text[i + 1]), own: false }));
  const path = round.path.length > 1 ? round.path : firstPath(round);
  path.slice(0, deepest).forEach((node, i) => {
    if (i > 0) pairs.push({ state: word(round.tokens[path[i - 1]]),
      token: word(round.tokens[node]), own: true });
  });
  const per = clip(Math.floor((width - 80) / each), 1, pairs.length); // in a line
  const lines = Array.from({ length: Math.ceil(pairs.length / per) }, () => s("svg",
    { width: 80 + per * each, height: 168, role: "img" }, label(0, 36, "state after", {
      class: "soft" }), label(0, 82, "and token", { class: "soft" }), label(0, 97,
      "that followed", { class: "soft" }), label(0, 142, "the head")));
  pairs.forEach((pair, i) => {
    const x = 92 + (i % per) * each;
    const svg = lines[Math.floor(i / per)];
    svg.append(chip(x, 20, 92, pair.state, pair.own ? "draft" : "target",
      { dash: pair.own ? "4 3" : null }),
      chip(x, 68, 92, pair.token, pair.own ? "draft" : "target", { dash: pair.own ? "4 3" : null }),
      arrow(x + 46, 46, x + 46, 66), arrow(x + 46, 94, x + 46, 122),
      s("rect", { x, y: 124, width: 92, height: 26, rx: 4, class: "fill-draft stroke-draft",
        "fill-opacity": 0.15 }), label(x + 46, 141, pair.own ? "its own state" : "q", {
        "text-anchor": "middle" }));
    if (pair.own) svg.append(arrow(x - 12, 137, x - 2, 137, "draft"));
  });
  const read = lens.features.map((i) => (i === -1 ? "the last, after the norm" : i === 0 ?
    "the embedding" : `layer ${i}`)).join(", ");
  const known = lens.known ? ` It drafts from ${lens.known} of the tokens.` : "";
  return { title: lens.fused ? "EAGLE-3\u2019s input: several layers\u2019 states, and the token after"
    : "EAGLE\u2019s input: a state, and the token after it",
    body: [wide(lines), note(`Solid: the target\u2019s own states (${read}`,
      lens.fused ? ", fused into one" : "", `). Dashed: below the text the head goes on from its `
      + `own states, which is why it errs more the deeper it drafts.${known}`)] };
};

function firstPath(round) {
  const path = [0];
  let next;
  while ((next = round.parents.findIndex((p, n) => p === path[path.length - 1] && n > 0)) > 0) {
    path.push(next);
  }
  return path;
}

LENSES.falcon = (lens, round, frame, trace, width) => {
  const word = wordsOf(trace);
  const k = lens.k;
  const body = [];
  const { depth, deepest } = layout(round);
  const count = Math.ceil(deepest / k);
  const each = clip((width - 10) / Math.max(deepest, 1), 76, 112);
  const svg = s("svg", { width: 10 + Math.max(deepest, 1) * each, height: 162, role: "img" });
  for (let b = 0; b < count; b++) {
    const from = b * k;
    const to = Math.min((b + 1) * k, deepest);
    svg.append(s("rect", { x: 6 + from * each, y: 4, width: (to - from) * each - 10, height: 154,
      rx: 8, class: "fill-draft stroke-draft", "fill-opacity": b % 2 ? 0.04 : 0.09 }),
      label(14 + from * each, 21, `pass ${b + 1}`, { class: "t-draft", "font-weight": 650 }));
    for (let d = from + 1; d <= to; d++) {
      const tokens = [...new Set(round.tokens.filter((_, node) => depth[node] === d))];
      tokens.slice(0, 4).forEach((token, i) => svg.append(chip(14 + (d - 1) * each, 28 + i * 27,
        each - 24, word(token), "draft")));
      if (tokens.length > 4) svg.append(label(14 + (d - 1) * each, 150,
        `and ${tokens.length - 4} more`, { class: "soft", "font-size": 11 }));
    }
  }
  if (deepest) body.push(wide(svg), note(`One forward of the head drafts ${k} tokens, a block: ` +
    `each without knowing the others. ${deepest} levels take ${count} pass` +
    `${count === 1 ? "" : "es"}, not ${deepest}.`));
  else body.push(note(`A text of fewer than ${k + 1} tokens drafts nothing.`));
  if (lens.sight && lens.sight.length > 1) body.push(...sight(lens, round, word));
  return { title: `Falcon\u2019s blocks of ${k}`, body };
};

// who sees whom below the text: the block mask, as it was computed with
function sight(lens, round, word) {
  const names = ["the text"];
  lens.passes.forEach((pass) => pass.blocks.forEach((nodes) => nodes.forEach((node) =>
    names.push(node < round.tokens.length ? word(round.tokens[node]) : "\u2013"))));
  const n = Math.min(lens.sight.length, names.length, 24);
  const cell = 17;
  const left = 96;
  const svg = s("svg", { width: left + n * cell + 8, height: n * cell + 10, role: "img" });
  for (let i = 0; i < n; i++) {
    svg.append(label(left - 6, i * cell + 13, cut(names[i], 11), { "text-anchor": "end",
      class: "mono", "font-size": 11 }));
    for (let j = 0; j < n; j++) {
      const sees = lens.sight[i][j];
      svg.append(s("rect", { x: left + j * cell, y: i * cell + 1, width: cell - 2,
        height: cell - 2, rx: 2, class: `fill-${sees ? "draft" : "other"} stroke-line`,
        "fill-opacity": sees ? 0.75 : 0.06 }));
      if (sees) svg.append(s("circle", { cx: left + j * cell + 7.5, cy: i * cell + 8.5, r: 2,
        class: "fill-ink" }));
    }
  }
  return [h("p", {}, "The mask of the later passes: a row sees the columns with a dot."), wide(svg),
    note("When a block is fed to the next pass its tokens see each other, forwards too; blocks on " +
      "other paths are not seen.", lens.sight.length > n ? ` The first ${n} of ${lens.sight.length} are shown.` : "")];
}

LENSES.kangaroo = (lens, round, frame, trace, width) => {
  const word = wordsOf(trace);
  const nodes = round.tokens.length;
  const { deepest } = layout(round);
  const each = Math.min(24, 230 / lens.layers);
  const tall = lens.layers * each;
  const narrow = width < 430;
  const [box, gap] = narrow ? [72, 22] : [100, 46];  // of a layer, and before the adapter
  const svg = s("svg", { width: narrow ? width : 430, height: tall + 64, role: "img" });
  for (let i = 0; i < lens.layers; i++) {
    const shallow = i < lens.exit;
    svg.append(s("rect", { x: 8, y: 10 + (lens.layers - 1 - i) * each, width: box,
      height: each - 3, rx: 3, class: `fill-${shallow ? "draft" : "target"} ` +
      `stroke-${shallow ? "draft" : "target"}`, "fill-opacity": 0.3 }));
    if (each < 12) continue;  // no room for a line of words
    svg.append(label(8 + box / 2, 10 + (lens.layers - 1 - i) * each + each / 2 + 3,
      `layer ${i + 1}`, { "text-anchor": "middle", "font-size": 11 }));
  }
  const exit = 10 + (lens.layers - lens.exit) * each;
  const right = 10 + box + gap;  // where the adapter begins
  svg.append(arrow(10 + box, exit + 2, right - 2, exit + 2, "draft"),
    s("rect", { x: right, y: exit - 14, width: box, height: 30, rx: 4,
      class: "fill-draft stroke-draft", "fill-opacity": 0.18 }),
    label(right + box / 2, exit + 5, "adapter", { "text-anchor": "middle" }),
    arrow(right + box, exit + 2, right + box + gap, exit + 2, "draft"),
    label(right + box + gap + 6, exit + 6, "head \u2192 q", { class: "t-draft" }),
    label(18 + box, 24, `layers ${lens.exit + 1}\u2013${lens.layers}: once, over ${nodes} tokens`, {
      class: "t-target" }),
    label(8, tall + 30, lens.exit ? `layers 1\u2013${lens.exit}: ` +
      `${deepest + 1} times, for draft and target at once` : "the embedding alone", {
      class: "t-draft" }),
    label(8, tall + 50, `exit after layer ${lens.exit}`, { class: "soft" }));
  const two = width > 860;
  const half = two ? width / 2 - 16 : width;
  const details = h("div", {});
  if (lens.eta && lens.sure.length) details.append(note("How sure it was of each level; below eta " +
    "it stops drafting:"), wide(sureness(lens.sure, lens.eta, "eta", half)));
  details.append(caches(lens, round, frame, word, half));
  const body = h("div", { class: two ? "split two" : "split" }, wide(svg), details);
  return { title: "Kangaroo: the draft comes from inside the target", body };
};

// who has written which place of which cache, and what stays of it
function caches(lens, round, frame, word, width) {
  const nodes = round.tokens.slice(0, 12);
  const left = width < 480 ? 142 : 190;
  const each = clip((width - left) / nodes.length, 32, 62);
  const closing = frame.stage === "bonus";
  const rows = [["layers 1\u2013" + lens.exit, "draft", 0], [`layers ${lens.exit + 1}\u2013` +
    lens.layers, "target", 1]];
  if (lens.cache) rows.push(["adapter", "draft", 2]);
  const svg = s("svg", { width: left + nodes.length * each, height: 26 + rows.length * 30 });
  svg.append(label(left - 58, 14, "the text", { class: "soft" }));
  nodes.forEach((token, i) => svg.append(label(left + i * each + each / 2 - 3, 14,
    cut(word(token), Math.floor(each / 7.5)), { class: "mono", "text-anchor": "middle",
      style: "font-size: 11px" })));
  const kids = new Set(round.parents);
  rows.forEach(([name, kind, which], r) => {
    const y = 22 + r * 30;
    svg.append(label(0, y + 16, name, { class: "soft" }));
    svg.append(s("rect", { x: 84, y, width: left - 90, height: 24, rx: 3,
      class: "fill-target stroke-target", "fill-opacity": 0.22 }));
    nodes.forEach((_, i) => {
      const there = which === 0 || (which === 1 ? frame.stage !== "draft" : kids.has(i));
      const stays = !closing || round.path.includes(i);
      const look = !there ? "other" : !stays ? "rejected" : kind;
      const x = left + i * each;
      svg.append(s("rect", { x, y, width: each - 6, height: 24, rx: 3,
        class: `fill-${look} stroke-${look}`,
        "fill-opacity": there ? 0.22 : 0.03, "stroke-dasharray": there && stays ? null : "3 2" }));
      if (there && !stays) svg.append(label(x + each / 2 - 3, y + 16, "\u2717", {
        "text-anchor": "middle" }));
    });
  });
  return h("div", {}, h("p", {}, "The caches: keys and values of each token, by layers"), wide(svg),
    note("The first layers\u2019 entries are written while drafting, the others by the verification. ",
      closing ? "\u2717: rejected; its slot is written again in the next step." : ""));
}

LENSES.lattice = (lens, round, frame, trace, width) => {
  const word = wordsOf(trace);
  const per = clip(Math.floor((width + 8) / 76) - 1, 1, lens.places.length); // places in a line
  const each = clip((width - 4) / (per + 0.95), 76, 118);
  const box = Math.min(84, each - 16);
  const small = box < 76 ? 9 : 10.5;
  const lane = 52;
  const left = box + 8;
  const tops = [0]; // of the lines
  lens.places.forEach((place, i) => {
    const line = Math.floor(i / per);
    tops[line + 1] = Math.max(tops[line + 1] ?? 0, tops[line] + 38 + place.tokens.length * lane);
  });
  const svg = s("svg", { width: left + per * each, height: tops.at(-1), role: "img" });
  const corner = (i) => [left + (i % per) * each, 30 + tops[Math.floor(i / per)]];
  const at = (place, rank) => {
    const i = lens.places[place].ranks.indexOf(rank);
    const [x, y] = corner(place);
    return i < 0 ? null : { x, y: y + i * lane + 12 };
  };
  const text = lens.text.length ? lens.text.slice(-1) : round.tokens.slice(0, 1);
  const start = { x: 4, y: 30 };
  [...lens.paths.entries()].reverse().forEach(([n, path]) => {
    let from = { x: start.x + box - 4, y: start.y + 12 };
    const shift = (n - (lens.paths.length - 1) / 2) * 5;
    const join = (a, b) => svg.append(s("path", { d: `M${a.x},${a.y + shift} C${a.x + 16},` +
      `${a.y + shift} ${b.x - 16},${b.y + shift} ${b.x},${b.y + shift}`, fill: "none",
      class: n ? "stroke-soft" : "stroke-ink", "stroke-width": n ? 1.3 : 3,
      "stroke-dasharray": n ? ["", "5 3", "2 3", "8 3 2 3"][n % 4] : null }));
    path.ranks.forEach((rank, i) => {
      const to = at(i, rank);
      if (!to) return;
      if (i && i % per === 0) { // it goes on in the next line
        join(from, { ...from, x: from.x + 14 });
        from = { ...to, x: to.x - 14 };
      }
      join(from, to);
      from = { ...to, x: to.x + box };
    });
  });
  svg.append(chip(start.x, start.y, box - 4, word(text[0]), "target"));
  lens.places.forEach((place, i) => {
    const [x, top] = corner(i);
    svg.append(label(x + box / 2, top - 12, `place ${i + 1}`, { class: "soft",
      "text-anchor": "middle" }));
    place.tokens.forEach((token, j) => {
      const y = top + j * lane;
      const best = lens.paths[0].ranks[i] === place.ranks[j];
      const [q, r] = [Math.exp(place.logq[j]), Math.exp(place.logr[j])];
      svg.append(chip(x, y, box, word(token), best ? "draft" : "other", { strong: best,
        pale: !best }),
        s("rect", { x, y: y + 25, width: Math.max(box * q, 0.8), height: 3, class: "fill-draft" }),
        s("rect", { x, y: y + 29, width: Math.max(box * r, 0.8), height: 3,
          class: "fill-other" }),
        label(x, y + 43, number(q), { class: "t-draft", style: `font-size: ${small}px` }),
        label(x + box, y + 43, number(r), { class: "soft", style: `font-size: ${small}px`,
          "text-anchor": "end" }));
    });
  });
  const whole = wide(svg);
  if (tops.length > 2) whole.style.maxHeight = "none"; // all lines are seen
  const total = (path, key) => sum(path[key]) / path[key].length;
  const table = h("table", { class: "paths" }, h("tr", {}, ...["path", "mean log q",
    "mean log r", "score"].map((one) => h("th", {}, one))));
  lens.paths.forEach((path, n) => table.append(h("tr", {},
    h("td", { class: "mono" }, `${n ? "\u2505" : "\u2501"} ${cut(path.tokens.map(word).join(" "),
      46)}`), h("td", { class: "t-draft" }, total(path, "logq").toFixed(2)),
    h("td", { class: "soft" }, total(path, "logr").toFixed(2)),
    h("td", {}, path.score.toFixed(2)))));
  return { title: "DiffuSpec\u2019s lattice: all places at once, one path searched",
    body: [whole, h("ul", { class: "legend" }, item("draft", "", "q, the diffusion model: " +
      "does not know its neighbours"), item("other", "", `r, the n-gram proxy: sees the ` +
      `${lens.order - 1} tokens before, here those of the best path`)), table,
      note(`score = mean of ${lens.lam} log q + ${(1 - lens.lam).toFixed(2)} log r; the thick path ` +
        "wins and is drafted.")] };
};

LENSES.lookup = (lens, round, frame, trace, width) => {
  const word = wordsOf(trace);
  if (lens.at === null) return { title: "Looked up in the text",
    body: [note("The last tokens did not stand in the text before: nothing was drafted.")] };
  const tail = lens.begins + lens.text.length - lens.ngram;
  const block = h("p", { class: "text" });
  const add = (token, place) => {
    const match = (place >= lens.at && place < lens.at + lens.ngram) || place >= tail;
    const copied = place >= lens.at + lens.ngram && place < lens.at + lens.ngram + lens.copied;
    const text = trace.words[token] ?? `${token} `;
    block.append(h("span", { class: `token ${match ? "bonus" : copied ? "copied" : "prompt"}`,
      style: copied ? "border-bottom:2px dashed var(--draft)" : null },
      match ? text.replaceAll("\n", "\u23ce\n") : text));
  };
  // the trace has the last part of the text; what was copied from before it is known all the same
  [...lens.text.slice(-lens.ngram), ...round.tokens.slice(1, lens.copied + 1)]
    .slice(0, Math.max(0, lens.begins - lens.at)).forEach((token, i) => add(token, lens.at + i));
  if (lens.at + lens.ngram + lens.copied < lens.begins) block.append(" \u2026 ");
  lens.text.forEach((token, i) => add(token, lens.begins + i));
  return { title: "Looked up in the text", body: [block, note("The last " +
    `${lens.ngram > 1 ? `${lens.ngram} tokens` : "token"} (double line) stood in the text before; what followed there ` +
    "(dashed) is the draft. No model is asked.")] };
};
