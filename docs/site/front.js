// What pages compute: from acceptance to tokens per step and speed, as specwb.theory.analysis.
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
