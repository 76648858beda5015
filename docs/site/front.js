// What pages compute: from acceptance to tokens per step and speed, and what several candidates are
// worth, as specwb.theory.analysis.
export function expectedTokens(alpha, gamma) {
  let total = 1;
  for (let i = 0; i < gamma; i++) total = total * alpha + 1;
  return total;
}

export const speedup = (alpha, gamma, c, v = 1) => expectedTokens(alpha, gamma) / (gamma * c + v);

export const roofline = (gamma, batch, balance) =>
  Math.max(balance, batch * (gamma + 1)) / Math.max(balance, batch);

/* Of gamma = 0 .. most the smallest with the largest speedup; v is a function of gamma. */
export function bestGamma(alpha, c, v, most) {
  let best = 0;
  for (let gamma = 1; gamma <= most; gamma++) {
    if (speedup(alpha, gamma, c, v(gamma)) > speedup(alpha, best, c, v(best))) best = gamma;
  }
  return best;
}

/* Seconds of a pass over n tokens: linear between [[tokens, seconds], ..] and beyond the last. */
export function secondsAt(table, n) {
  if (n <= table[0][0]) return table[0][1];
  let i = 1;
  while (i < table.length - 1 && table[i][0] < n) i++;
  const [[a, low], [b, high]] = [table[i - 1], table[i]];
  return low + ((n - a) * (high - low)) / (b - a);
}

/* machine: {c, balance} of a card or {c, seconds} as measured. The time of a pass over gamma + 1
tokens of each of the rows, over its time for one token of each. */
export function scoring(machine, gamma, batch) {
  if (!machine.seconds) return roofline(gamma, batch, machine.balance);
  return secondsAt(machine.seconds, batch * (gamma + 1)) / secondsAt(machine.seconds, batch);
}

const softmax = (z) => {
  const powers = z.map((x) => Math.exp(x - Math.max(...z)));
  const total = powers.reduce((a, b) => a + b);
  return powers.map((x) => x / total);
};

/* p and q of lesson 2: two bells over 13 tokens. */
export function shaped(temperature, shift, sharpness, tokens = 13) {
  const places = Array.from({ length: tokens }, (_, i) => i - Math.floor(tokens / 2));
  return [softmax(places.map((x) => -(x ** 2) / 4 / temperature)),
    softmax(places.map((x) => (-sharpness * (x - shift) ** 2) / 4 / temperature))];
}

/* The line c q that recursive rejection of k independent candidates takes of p. */
export function level(p, q, k) {
  let [c, left] = [0, 1];
  for (let j = 0; j < k; j++) {
    c += left;
    left = p.reduce((sum, a, x) => sum + Math.max(a - c * q[x], 0), 0);
  }
  return c;
}

export const overlap = (p, q, c = 1) => p.reduce((sum, a, x) => sum + Math.min(a, c * q[x]), 0);

/* The most that any rule accepts of k independent candidates: the smallest bound of a set of
tokens, all those that the draft overrates most. */
export function mostAccepted(p, q, k) {
  const order = p.map((_, x) => x).sort((x, y) => p[x] * q[y] - p[y] * q[x]);
  let [inP, inQ, least] = [0, 0, 1];
  for (const x of order) {
    [inP, inQ] = [inP + p[x], inQ + q[x]];
    least = Math.min(least, inP + 1 - inQ ** k);
  }
  return least;
}

const MOST = 12;

function tag(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

/* A slider with its words and its value; whoever makes it draws anew when it has moved. */
function control(draw, name, words, low, high, step, value) {
  const shown = tag("output", {});
  const input = tag("input", { type: "range", min: low, max: high, step, value, name,
    "aria-label": words });
  input.addEventListener("input", draw);
  return { input, shown, row: tag("label", {}, tag("span", {}, words), input, shown) };
}

/* Bars of one line, each a share of the longest line. */
function line(name, parts, longest) {
  const bars = parts.map(([kind, long]) =>
    tag("i", { class: kind, style: `width:${(100 * long) / longest}%` }));
  return tag("div", { class: "line" }, tag("span", {}, name), tag("div", { class: "bars" }, ...bars));
}

/* machines: [{name, about, c, ..}, ..]; the first is chosen. */
export function mountSpeed(element, machines) {
  let machine = machines[0];
  const menu = tag("select", { "aria-label": "hardware and models" },
    ...machines.map((one, i) => tag("option", { value: i }, one.name)));
  const about = tag("p", { class: "soft" });
  const alpha = control(draw, "alpha", "α, chance that a draft token is accepted", 0, 0.99, 0.01, 0.75);
  const gamma = control(draw, "gamma", "γ, draft tokens per step", 0, MOST, 1, 4);
  const c = control(draw, "c", "c, time of a draft pass / target pass", 0, 1, 0.001, machine.c);
  const rows = control(draw, "rows", "texts decoded together", 0, 8, 1, 0);
  const said = tag("p", { class: "said", role: "status" });
  const clock = tag("div", { class: "clock", "aria-hidden": "true" });
  const chart = tag("div", { class: "chart", role: "group", "aria-label": "speedup by gamma" });
  element.replaceChildren(tag("label", { class: "menu" }, tag("span", {}, "hardware"), menu), about,
    alpha.row, gamma.row, c.row, rows.row, said, clock, tag("p", { class: "soft" },
      "Speedup over plain decoding for each γ; the line is 1x, plain decoding."), chart);
  menu.addEventListener("change", () => {
    machine = machines[Number(menu.value)];
    c.input.value = machine.c;
    draw();
  });

  function draw() {
    const [a, g, price] = [alpha, gamma, c].map(({ input }) => Number(input.value));
    const batch = 2 ** Number(rows.input.value);
    const v = (n) => scoring(machine, n, batch);
    const curve = Array.from({ length: MOST + 1 }, (_, n) => speedup(a, n, price, v(n)));
    const best = bestGamma(a, price, v, MOST);
    const tau = expectedTokens(a, g);
    const took = g * price + v(g);
    alpha.shown.textContent = a.toFixed(2);
    gamma.shown.textContent = g;
    c.shown.textContent = price.toFixed(3);
    rows.shown.textContent = batch;
    about.textContent = machine.about;
    const end = best === 0 ? "No γ beats plain decoding here."
      : `The best γ here is ${best}: ${curve[best].toFixed(2)}x.`;
    said.replaceChildren(tag("b", {}, `${curve[g].toFixed(2)}x`), ` A step writes ${tau.toFixed(2)} `
      + `tokens on average and takes as long as ${took.toFixed(2)} steps of plain decoding. ${end}`);
    const longest = Math.max(tau, took);
    const whole = Array.from({ length: Math.floor(tau + 1e-9) }, () => ["target", 1]);
    const rest = tau - whole.length;
    clock.replaceChildren(
      line("one step", [...Array.from({ length: g }, () => ["draft", price]), ["target", v(g)]],
        longest),
      line("plain, as many tokens", rest > 0.004 ? [...whole, ["target", rest]] : whole, longest),
    );
    const top = Math.max(1.2, ...curve);
    chart.style.setProperty("--one", `${100 / top}%`);
    chart.replaceChildren(...curve.map((x, n) => tag("button", { type: "button",
      "aria-label": `gamma ${n}: ${x.toFixed(2)} times as fast`, "aria-pressed": String(n === g),
      class: n === best ? "best" : "", onclick: () => { gamma.input.value = n; draw(); } },
    tag("i", { style: `height:${(100 * x) / top}%` }),
    tag("em", {}, n === g || n === best ? x.toFixed(2) : ""), tag("span", {}, String(n)))));
  }
  draw();
}

const CANDIDATES = 8;

/* What several candidates take of p; k: how many at first. */
export function mountCandidates(element, k) {
  const heat = control(draw, "temperature", "temperature of both", 0.2, 5, 0.1, 1);
  const shift = control(draw, "shift", "shift of q", -5, 5, 0.5, 3);
  const sharp = control(draw, "sharpness", "sharpness of q", 0.2, 5, 0.1, 1);
  const many = control(draw, "k", "k, candidates", 1, CANDIDATES, 1, k);
  const said = tag("p", { class: "said", role: "status" });
  const [columns, chart] = ["tokens", "chart shares"].map((kind) => tag("div", { class: kind }));
  const soft = (...words) => tag("p", { class: "soft" }, ...words);
  columns.setAttribute("aria-hidden", "true");
  element.replaceChildren(heat.row, shift.row, sharp.row, many.row, said,
    soft("The columns are p, a bell over 13 tokens: ", tag("b", { class: "taken" }, "taken"), " by ",
      "the candidates, ", tag("b", { class: "left" }, "left"), " for the bonus token. Dashed: q, ",
      "another bell."),
    columns, soft("Acceptance of recursive rejection by the number k of independent candidates. ",
      "Line above a bar: the most that any rule can accept."), chart);

  function draw() {
    const inputs = [heat, shift, sharp, many];
    const [t, s, steep, n] = inputs.map(({ input }) => Number(input.value));
    [t.toFixed(1), s.toFixed(1), steep.toFixed(1), n].forEach((words, i) => {
      inputs[i].shown.textContent = words;
    });
    const [p, q] = shaped(t, s, steep);
    const c = level(p, q, n);
    const rates = Array.from({ length: CANDIDATES }, (_, i) => overlap(p, q, level(p, q, i + 1)));
    const most = mostAccepted(p, q, n).toFixed(3);
    said.replaceChildren(tag("b", {}, rates[n - 1].toFixed(3)), n === 1
      ? " is how often the candidate is accepted; no rule accepts it more often."
      : ` is how often recursive rejection accepts one of ${n} candidates; no rule for ${n} `
        + `independent ones accepts more than ${most}.`);
    const high = Math.max(...p, ...q);
    const bar = (kind, share, top) => tag("i", { class: kind, style: `height:${(100 * share) / top}%` });
    columns.replaceChildren(...p.map((a, x) => {
      const taken = Math.min(a, c * q[x]);
      return tag("div", {}, bar("left", a - taken, high), bar("taken", taken, high),
        bar("draft", q[x], high));
    }));
    chart.replaceChildren(...rates.map((rate, i) => tag("button", { type: "button",
      "aria-label": `${i + 1} candidates: ${rate.toFixed(3)}`, "aria-pressed": String(i + 1 === n),
      onclick: () => { many.input.value = i + 1; draw(); } }, bar("most", mostAccepted(p, q, i + 1), 1),
    bar("", rate, 1), tag("em", {}, rate.toFixed(2)), tag("span", {}, String(i + 1)))));
  }
  draw();
}
