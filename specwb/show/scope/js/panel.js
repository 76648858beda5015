// One decision: the two distributions, the dart, and the sentence that says why.
function barsOf(rows, width, id) {
  const left = 104;
  const right = 46;
  const full = width - left - right;
  const most = Math.max(1e-9, ...rows.flatMap((row) => row.bars.map((bar) => bar.value)));
  const each = Math.max(1, ...rows.map((row) => row.bars.length));
  const lane = each * 12 + 7;
  const svg = s("svg", { width, height: rows.length * lane + 4, role: "img" });
  svg.append(patterns(id));
  rows.forEach((row, i) => {
    const top = i * lane + 3;
    if (row.strong) svg.append(s("rect", { x: 0, y: top - 2, width, height: lane - 2, rx: 4,
      class: "fill-other", opacity: 0.16 }));
    svg.append(label(left - 8, top + (each * 12) / 2 + 3, cut(row.name, 13), {
      class: row.soft ? "soft" : "mono", "text-anchor": "end",
      "font-weight": row.strong ? 700 : null }));
    row.bars.forEach((bar, j) => {
      const y = top + j * 12;
      const wide = Math.max((full * bar.value) / most, bar.value > 0 ? 1.2 : 0);
      svg.append(s("rect", { x: left, y, width: wide, height: 10, class: `stroke-${bar.kind}`,
        "stroke-width": 1, fill: filling(bar.kind, id) }));
      svg.append(label(left + wide + 5, y + 9, number(bar.value), { class: `t-${bar.kind}`,
        "font-size": 11 }));
    });
  });
  return svg;
}

// 0 to 1, cut into what is decided where, and the uniform as a dart
function dartOf(dart, parts, width, id, words) {
  const [left, right] = [10, width - 12];
  const x = (u) => left + u * (right - left);
  const svg = s("svg", { width, height: 74, role: "img", "data-dart": dart.u },
    s("title", {}, words));
  svg.append(patterns(id));
  let from = 0;
  for (const part of parts) {
    const [a, b] = [x(from), x(part.end)];
    const solid = part.kind === "accepted" || part.kind === "target";
    svg.append(s("rect", { x: a, y: 30, width: Math.max(b - a, 0.8), height: 20,
      class: `stroke-${part.kind}`, fill: filling(part.kind, id),
      "fill-opacity": part.strong ? 0.85 : solid ? 0.4 : 1, "stroke-width": 1.2 }));
    const room = Math.floor((b - a - 8) / 7.2);
    if (part.name && room >= Math.min(part.name.length, 2)) {
      svg.append(s("rect", { x: (a + b) / 2 - Math.min(part.name.length, room) * 3.7 - 3, y: 32.5,
        width: Math.min(part.name.length, room) * 7.4 + 6, height: 15, rx: 3, class: "fill-paper",
        opacity: 0.82 }));
      svg.append(label((a + b) / 2, 44, cut(part.name, room), { "text-anchor": "middle" }));
    }
    from = part.end;
  }
  for (const mark of [0, 0.5, 1]) {
    svg.append(label(x(mark), 66, mark, { "text-anchor": "middle", class: "soft" }));
  }
  const first = parts[0];
  if (parts.length === 2 && first.end > 0.02 && first.end < 0.98) {
    const near = Math.min(Math.abs(first.end - 0.5), first.end, 1 - first.end) < 0.06;
    if (!near) svg.append(label(x(first.end), 66, number(first.end), { "text-anchor": "middle" }));
  }
  const at = x(dart.u);
  svg.append(
    s("line", { x1: at, x2: at, y1: 20, y2: 54, class: "stroke-ink", "stroke-width": 2 }),
    s("path", { d: `M${at - 6},12 h12 l-6,11 z`, class: "fill-ink" }),
    label(clip(at, 30, width - 34), 9, `u = ${number(dart.u)}`, { "text-anchor": "middle",
      "font-weight": 700 }),
  );
  return svg;
}

const HOW = {
  rejection: "p(x) / q(x)", rrs: "r(x) / q(x)", rrsw: "r(x) / q\u2032(x)",
};

function panelOf(trace, frame, chosen, width, id) {
  const round = trace.rounds[frame.r];
  const word = (token) => visible(trace.words[token] ?? String(token));
  const own = chosen === null;
  if (frame.stage === "bonus" && own) return bonusPanel(trace, round, word, width, id);
  let found = own && frame.stage === "test"
    ? { l: frame.l, t: frame.t, level: round.levels[frame.l],
        test: round.levels[frame.l].tests[frame.t] }
    : own || chosen === 0 ? null : testOf(round, chosen);
  const known = found && reached(frame, found.l, found.t, found.level);
  const node = found ? found.level.node : own || chosen === 0 ? frame.node : round.parents[chosen];
  const row = round.rows[node];
  const token = found ? found.test.token : own || chosen === 0 ? null : round.tokens[chosen];
  const pane = h("div", {});
  const after = h("span", { class: "t-target" }, word(round.tokens[node]));
  const together = own && found && !found.test.dart && found.level.tests.length > 1;
  pane.append(h("h3", {}, token === null || together ? ["What follows ", after, together
    ? `: one of the ${found.level.tests.length} candidates?` : "?"]
    : ["Does ", h("span", { class: "t-draft" }, word(token)), " follow ", after, "?"]));
  if (!row) {
    pane.append(h("p", { class: "soft" }, "No row was kept for this node."));
    return { pane, says: "", kind: "" };
  }
  const skipped = known && found.test.decision === "not tested";
  const test = known && !skipped ? found.test : null;
  const scored = frame.stage !== "draft";
  const stage = test && test.r && found.t > 0;
  const each = width > 640 ? width / 2 - 14 : width;
  const bars = h("div", {}, barsOf(tableRows(row, { token, word, scored, test: stage ? test : null,
    round, node }), each, id), legendOfBars(trace, row, scored, stage,
    round.parents.includes(node)));
  const reason = h("div", {});
  pane.append(h("div", { class: width > 640 ? "split two" : "split" }, bars, reason));
  if (test) {
    const told = explainTest(trace, round, found, word, each, id);
    reason.append(...told.drawn, ruleWords(trace));
    return { pane, says: told.says, kind: test.decision === "accepted" ? "accepted" : "rejected" };
  }
  const says = skipped ? "Not tested: a candidate before it was accepted."
    : token !== null && frame.stage === "bonus" ? "Not tested: the walk did not come here." : "";
  return { pane, says, kind: "" };
}

function tableRows(row, { token, word, scored, test, round, node }) {
  const kids = new Set(round.tokens.filter((_, i) => round.parents[i] === node));
  const order = row.tokens.map((_, i) => i);
  const rest = order.filter((i) => !kids.has(row.tokens[i])).sort((a, b) => row.p[b] - row.p[a]);
  const listed = [...order.filter((i) => kids.has(row.tokens[i])), ...rest].slice(0, 10);
  const rows = listed.filter((i) => scored || kids.has(row.tokens[i]) || row.q).map((i) => {
    const p = test ? { value: test.r[i], kind: "residual" } : { value: row.p[i], kind: "target" };
    const q = test && test.q_now ? test.q_now : row.q;
    const bars = scored ? [p] : [];
    if (q) bars.push({ value: q[i], kind: "draft" });
    return { name: word(row.tokens[i]), bars, strong: row.tokens[i] === token,
      soft: !kids.has(row.tokens[i]) };
  });
  return rows;
}

function legendOfBars(trace, row, scored, stage, drafted) {
  const greedy = trace.sampling.temperature === 0;
  const list = h("ul", { class: "legend" });
  if (scored && !stage) list.append(item("target", "bar", greedy
    ? "p, the target at temperature 1 (here the largest counts)" : "p, the target"));
  if (scored && stage) list.append(item("residual", "bar", "r, what rejections left of p"));
  if (row.q) list.append(item("draft", "bar", stage ? "q\u2032, the draft now" : "q, the draft"));
  else if (drafted) list.append(item("", "", "no q: the draft\u2019s tokens are fixed, not drawn"));
  return list;
}

function ruleWords(trace) {
  const rule = trace.method.rule;
  const lossy = rule.exactness === "LOSSY" ? " LOSSY." : "";
  return h("details", {}, h("summary", {}, `The rule: ${rule.name}`), h("p", {}, rule.words, lossy));
}

function explainTest(trace, round, found, word, width, id) {
  const { level, test, t } = found;
  const name = word(test.token);
  const accepted = test.decision === "accepted";
  const drawn = [];
  let says = "";
  if (test.dart) {
    const end = test.dart.segments[0][1] === 1 ? test.dart.segments[0][0] : 0;
    const parts = test.dart.segments.map(([stop, label]) => ({ end: stop,
      kind: label === 1 ? "accepted" : "rejected", name: label === 1 ? "accept" : "reject" }));
    const i = round.rows[level.node].tokens.indexOf(test.token);
    const staged = t > 0 && HOW[trace.method.rule.name];
    const [over, under] = i < 0 ? [test.p, test.q] : [test.r[i], test.q_now ? test.q_now[i] : test.q];
    const how = staged ? HOW[trace.method.rule.name] : HOW.rejection;
    const known = HOW[trace.method.rule.name] && under;
    const ratio = known ? `${how} = ${number(over)} / ${number(under)} = ` : "";
    const line = end >= 1 ? `${known ? `${how} = ${number(over)} / ${number(under)} ` : ""}` +
      `\u2265 1 > u = ${number(test.dart.u)}`
      : `u = ${number(test.dart.u)} ${accepted ? "<" : "\u2265"} ${ratio}${number(end)}`;
    drawn.push(dartOf(test.dart, parts, width, `${id}d`, line),
      h("p", { class: "math" }, line, " \u2192 ", h("span", {
        class: `verdict t-${accepted ? "accepted" : "rejected"}` },
        accepted ? "accepted \u2713" : "rejected \u2717")));
    const likes = over >= under ? "at least as likely as" : "less likely than";
    says = known ? `The draft drew \u201c${name}\u201d. ${staged ? "After the rejections before, the"
      : "The"} target finds it ${likes} the draft does (${number(over)} against ` +
      `${number(under)}), so it ` + (end >= 1 ? "stays wherever the dart falls: "
      : end === 0 ? "cannot stay: " : `stays if the dart falls below ${number(end)}. It falls at ` +
      `${number(test.dart.u)}: `) + (accepted ? "accepted." : "rejected.")
      : `\u201c${name}\u201d stays if the dart falls below ${number(end)}. It falls at ` +
      `${number(test.dart.u)}: ${accepted ? "accepted" : "rejected"}.`;
  } else if (level.darts && level.darts.length) {
    const [dart] = level.darts;
    const parts = dart.segments.map(([end, label]) => ({ end,
      kind: label >= 0 ? "accepted" : "other",
      name: label >= 0 ? word(level.tests.find((one) => one.candidate === label)?.token ?? "")
        : "another token" }));
    drawn.push(dartOf(dart, parts, width, `${id}d`, "the dart chooses"));
    const u = number(dart.u);
    const kept = level.tests.find((one) => one.decision === "accepted");
    says = kept
      ? `The target draws: the dart u = ${u} falls into the stretch of a drafted token, ` +
        `\u201c${word(kept.token)}\u201d: accepted.`
      : `The target draws: the dart u = ${u} falls into no drafted token's stretch, so all of them `
        + "are rejected here.";
  } else if (trace.sampling.temperature === 0) {
    const row = round.rows[level.node];
    const best = row.p.indexOf(Math.max(...row.p));
    const all = level.tests.length > 1 ? "none of the candidates is it" : "it is another one";
    says = `Temperature 0: the target's most probable token after ` +
      `\u201c${word(round.tokens[level.node])}\u201d is \u201c${word(row.tokens[best])}\u201d ` +
      `(p = ${number(row.p[best])}). ` + (level.tests.some((one) => one.decision === "accepted")
      ? "The draft has it: accepted." : `The draft has \u201c${name}\u201d; ${all}: rejected.`);
    drawn.push(h("p", { class: "math" }, `argmax p = ${word(row.tokens[best])} \u2192 `,
      h("span", { class: `verdict t-${accepted ? "accepted" : "rejected"}` },
        accepted ? "accepted \u2713" : "rejected \u2717")));
  } else {
    const kept = level.tests.find((one) => one.decision === "accepted");
    says = `Rule ${trace.method.rule.name} decides about all of these candidates at once: ` +
      (kept ? `\u201c${word(kept.token)}\u201d is accepted.` : "none of them is accepted.");
  }
  return { drawn, says };
}


const ENDS = {
  argmax: "Temperature 0: it is the target's most probable token here.",
  cut: "The text ends here (its end, or the limit): the last accepted token closes the step.",
  root: "Several roots: the last token of the path that stays closes the step. LOSSY.",
};

function bonusPanel(trace, round, word, width, id) {
  const bonus = round.bonus;
  const row = round.rows[bonus.node];
  const residual = bonus.how === "residual";
  const pane = h("div", {}, h("h3", {}, "The bonus token: ", h("span", { class: "t-target" },
    word(bonus.token)), bonus.how === "cut" ? "" : ", from the target itself"));
  let says = ENDS[bonus.how] || "";
  const each = width > 640 ? width / 2 - 14 : width;
  const bars = h("div", {});
  const reason = h("div", {});
  pane.append(h("div", { class: width > 640 ? "split two" : "split" }, bars, reason));
  if (row) {
    const order = row.tokens.map((_, i) => i);
    const key = residual && row.left ? row.left : row.p;
    order.sort((a, b) => key[b] - key[a]);
    const rows = order.slice(0, 8).map((i) => {
      const bars = [{ value: row.p[i], kind: "target" }];
      if (residual && row.left) bars.push({ value: row.left[i], kind: "residual" });
      return { name: word(row.tokens[i]), bars, strong: row.tokens[i] === bonus.token };
    });
    bars.append(barsOf(rows, each, id), h("ul", { class: "legend" }, item("target", "bar",
      "p, the target"), residual ? item("residual", "bar",
      "residual: what rejections leave of p") : ""));
  }
  if (bonus.stretches) {
    const kind = residual ? "residual" : "target";
    const parts = [];
    let at = 0;
    for (const [from, to, token] of bonus.stretches) {
      if (from > at + 0.002) parts.push({ end: from, kind: "other", name: "" });
      if (to > from) parts.push({ end: to, kind, name: word(token),
        strong: token === bonus.token });
      at = Math.max(at, to);
    }
    if (at < 0.999) parts.push({ end: 1, kind: "other", name: "" });
    const line = `u = ${number(bonus.u)} falls into the stretch of \u201c${word(bonus.token)}\u201d`;
    reason.append(dartOf({ u: bonus.u }, parts, each, `${id}b`, line),
      h("p", { class: "math" }, line), ruleWords(trace));
    says = residual
      ? `Nothing more was accepted, so the target draws from the residual, what the rejections ` +
        `left of p: \u201c${word(bonus.token)}\u201d. That makes the text's distribution exactly p.`
      : round.accepted ? `The path is accepted to its end; the target has scored the ` +
        `next place already and draws one more token from p: \u201c${word(bonus.token)}\u201d.`
      : `Nothing was drafted here: the target draws from p: \u201c${word(bonus.token)}\u201d.`;
  }
  return { pane, says, kind: "target" };
}
