// The microscope: transport, controls, and what is drawn of the current frame.
const STAGES = { draft: "draft", score: "score", test: "test", bonus: "bonus token" };
const BEAT = 1300; // milliseconds for a frame
const WORD = 350; // and for each word of its caption

const icon = (d) => s("svg", { width: 12, height: 12, "aria-hidden": "true" }, s("path", { d }));

function themeOf(node) {
  const lab = document.body.dataset.jpThemeLight;
  if (lab) return lab === "false";
  const set = document.documentElement.dataset.theme || document.body.dataset.theme;
  if (set === "dark" || set === "light") return set === "dark";
  for (let at = node.parentElement; at; at = at.parentElement) {
    const found = getComputedStyle(at).backgroundColor.match(/[\d.]+/g)?.map(Number);
    if (found && (found.length < 4 || found[3] > 0.5)) {
      return 0.299 * found[0] + 0.587 * found[1] + 0.114 * found[2] < 128;
    }
  }
  // a page that does not say that it can be dark is white
  return getComputedStyle(document.documentElement).colorScheme.includes("dark")
    && matchMedia("(prefers-color-scheme: dark)").matches;
}

/* data: {traces, live: null or {methods, settings}, note, play: whether it plays by itself while it
is in view, film: null or {lens, shots}, some frames with a caption each, which play by themselves
too, below the lens where that is the subject}; ask(settings): a new recording. */
export function mount(element, data, ask = null) {
  const id = `sw${++instances}`;
  // JupyterLab's own keys are not for what happens in here
  const root = h("div", { class: "sw", tabindex: 0, role: "application",
    "data-lm-suppress-shortcuts": "true", "aria-label": "microscope of speculative decoding" });
  const style = h("style", {}, STYLE);
  element.style.width = "100%";
  element.replaceChildren(style, root);
  const ui = { trace: 0, frame: 0, chosen: null, playing: null, waiting: false };
  let traces = [];
  let list = [];
  const hosts = {};

  const current = () => traces[ui.trace];
  const frame = () => list[ui.frame];

  function go(to) {
    ui.frame = clip(to, 0, list.length - 1);
    ui.chosen = null;
    draw();
    if (ui.playing) play(true, ui.frame); // its time begins anew
  }
  const round = (by) => {
    const begins = list.flatMap((one, i) => (one.r === list[i - 1]?.r ? [] : [i]));
    go(by > 0 ? begins.find((i) => i > ui.frame) ?? list.length - 1
      : begins.findLast((i) => i < ui.frame) ?? 0);
  };
  function play(on, from = ui.frame >= list.length - 1 ? 0 : ui.frame) {
    clearTimeout(ui.playing);
    ui.playing = null;
    if (on) {
      const { say } = list[from] ?? {};
      ui.playing = setTimeout(() => (ui.frame < list.length - 1 ? play(true, ui.frame + 1)
        : play(false)), say ? BEAT + WORD * say.split(" ").length : BEAT);
      if (from !== ui.frame) go(from);
    }
    hosts.play.textContent = on ? "\u275a\u275a pause" : "\u25b6 play";
    hosts.play.setAttribute("aria-pressed", String(Boolean(on)));
  }

  function select(n, like = null) {
    ui.trace = n;
    list = data.film ? shots(frames(current()), data.film.shots) : frames(current());
    const last = current().rounds.length - 1;
    ui.frame = like ? Math.max(0, list.findIndex((one) => one.r === Math.min(like.r, last)
      && one.stage === like.stage)) : 0;
    ui.chosen = null;
    hosts.range.max = list.length - 1;
    draw();
  }

  function draw() {
    if (!traces.length) {
      hosts.stage.replaceChildren(h("p", { class: "soft" }, data.live
        ? "Choose a method, write a prompt, and press Record." : "There is no trace here."));
      return;
    }
    const trace = current();
    const at = frame();
    const outer = Math.max(root.clientWidth - 30, 300);
    const two = outer + 2 >= 850 && reach(trace.rounds[at.r]) < outer * 0.56;
    const half = two ? [outer * 0.528 - 40, outer * 0.472 - 34] : [outer - 26, outer - 26];
    const panel = panelOf(trace, at, ui.chosen, Math.max(half[1], 280), id);
    hosts.range.value = ui.frame;
    hosts.range.setAttribute("aria-valuetext", `step ${at.r + 1}, ${STAGES[at.stage]}`);
    hosts.where.textContent = `step ${at.r + 1} of ${trace.rounds.length}`;
    for (const [stage, item] of Object.entries(hosts.stages)) {
      if (stage === at.stage) item.setAttribute("aria-current", "step");
      else item.removeAttribute("aria-current");
    }
    const says = at.say ? { kind: "caption", says: at.say } : panel.says ? panel : sayOf(trace, at);
    hosts.says.className = `says ${says.kind}`;
    hosts.says.textContent = says.says;
    const focused = document.activeElement?.closest?.("[data-node]")?.dataset.node;
    const tree = treeOf(trace, at, ui.chosen ?? highlighted(trace, at), half[0], choose);
    const lens = lensOf(trace, at, outer - 30, id);
    const text = prose(trace, at, data.play || data.film ? 1 : 240);
    const panes = h("section", { class: two ? "panes" : "panes tall" },
      h("div", { class: "pane" }, h("h3", {}, titleOf(trace, at)), h("div", { class: "scroll" },
        tree), legend(), treeNote(trace, at)),
      h("div", { class: "pane", "data-panel": "" }, panel.pane));
    const count = h("p", { class: "soft", "data-tally": "" }, tally(trace, at));
    const so = h("section", { "aria-label": "text" }, text, ...(data.play
      ? [race(trace, at), count] : []));
    // what plays by itself is a race first, below the request
    const order = data.play ? [so, panes, lens] : !data.film ? [count, panes, lens, so]
      : data.film.lens ? [lens, panes, so] : [panes, so];
    hosts.stage.replaceChildren(...order.filter(Boolean));
    text.scrollTop = text.scrollHeight;
    // what stands below must not jump while it plays
    if (ui.playing) root.style.minHeight = `${root.offsetHeight}px`;
    const marked = hosts.stage.querySelector("g.node.chosen rect.box");
    const box = hosts.stage.querySelector(".scroll");
    if (marked && box) {
      box.scrollTop = Number(marked.getAttribute("y")) - box.clientHeight / 2;
      box.scrollLeft = Number(marked.getAttribute("x")) - box.clientWidth / 2;
    }
    if (focused !== undefined) hosts.stage.querySelector(`[data-node="${focused}"]`)?.focus();
  }

  function choose(node) {
    if (data.film) play(false);
    ui.chosen = ui.chosen === node ? null : node;
    draw();
  }

  function keys(event) {
    if (event.target.closest("input:not([type=range]), textarea, select")) return;
    const node = event.target.closest("[data-node]");
    const act = {
      ArrowRight: () => (event.shiftKey ? round(1) : go(ui.frame + 1)),
      ArrowLeft: () => (event.shiftKey ? round(-1) : go(ui.frame - 1)),
      Home: () => go(0),
      End: () => go(list.length - 1),
      Escape: () => { ui.chosen = null; draw(); },
    };
    if (node) {
      const move = (by) => hosts.stage.querySelector(
        `[data-node="${Number(node.dataset.node) + by}"]`)?.focus();
      Object.assign(act, { ArrowDown: () => move(1), ArrowUp: () => move(-1),
        Enter: () => choose(Number(node.dataset.node)),
        " ": () => choose(Number(node.dataset.node)) });
    } else if (!event.target.closest("button, summary")) act[" "] = () => play(!ui.playing);
    if (!act[event.key] || event.ctrlKey || event.metaKey || event.altKey || !list.length) return;
    event.preventDefault();
    event.stopPropagation();
    act[event.key]();
  }

  function update(fresh) {
    data = { ...data, ...fresh };
    traces = data.traces || [];
    const like = data.stage ? frame() ?? { r: 0, stage: data.stage } : null;
    ui.waiting = false;
    build();
    if (traces.length) {
      select(Math.max(0, traces.length - 1) && data.live ? traces.length - 1 : 0, like);
    }
    else draw();
  }

  function build() {
    const button = (text, name, act, kind) => h("button", { type: "button", title: name,
      "aria-label": name, class: kind, onclick: act }, text);
    hosts.play = button("", "play or pause (space)", () => play(!ui.playing), "main");
    play(false);
    hosts.range = h("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "frame",
      oninput: () => go(Number(hosts.range.value)) });
    hosts.where = h("span", { class: "soft" });
    hosts.stages = Object.fromEntries(Object.entries(STAGES).map(([stage, name]) =>
      [stage, h("li", { "data-stage": stage }, name)]));
    hosts.says = h("p", { class: "says", role: "status", "data-says": "" });
    hosts.stage = h("div", { "data-stage-host": "" });
    const transport = h("div", { class: "row" }, hosts.play,
      button(icon("M11,1 v10 l-7,-5 z M2,1 h2 v10 h-2 z"), "previous step (shift + left)",
        () => round(-1)),
      button(icon("M10,1 v10 l-8,-5 z"), "back (left)", () => go(ui.frame - 1)),
      button(icon("M2,1 v10 l8,-5 z"), "forward (right)", () => go(ui.frame + 1)),
      button(icon("M1,1 v10 l7,-5 z M8,1 h2 v10 h-2 z"), "next step (shift + right)",
        () => round(1)), hosts.range, hosts.where,
      h("ol", { class: "stages", "aria-label": "stage" }, ...Object.values(hosts.stages)));
    root.replaceChildren(data.live ? controls() : chooser(), ...(data.play || data.film
      ? [request(traces[0])] : []), transport, hosts.says, hosts.stage);
  }

  function chooser() {
    const menu = h("select", { "aria-label": "method", onchange: () => {
      play(false);
      select(Number(menu.value));
      describe();
    } }, ...traces.map((trace, n) => h("option", { value: n }, trace.method.spec)));
    const about = h("span", { class: "soft grow" });
    const describe = () => {
      if (traces.length) about.textContent = aboutOf(current());
    };
    describe();
    return h("div", { class: "row", style: "margin-bottom:8px" },
      traces.length > 1 ? h("label", {}, "method", menu) : null, about);
  }

  function controls() {
    const { methods, settings } = data.live;
    let options = settings.options || "";
    const menu = h("select", { onchange: () => {
      options = ""; // those of another method
      run.textContent = `Record ${menu.value}`;
    } }, ...methods.map((key) => h("option", { value: key,
      selected: key === settings.method }, key)));
    const prompt = h("textarea", { rows: 2, "aria-label": "prompt", spellcheck: "false" });
    prompt.value = settings.prompt;
    const field = (name, low, high, step) => h("input", { type: "number", min: low, max: high,
      step, value: settings[name] });
    const temperature = field("temperature", 0, 5, 0.1);
    const seed = field("seed", 0, 2147483647, 1);
    const limit = field("max_new_tokens", 1, 200, 1);
    const run = h("button", { type: "button", class: "main", "data-record": "", onclick: () => {
      play(false);
      ui.waiting = true;
      run.disabled = true;
      run.textContent = "recording \u2026";
      ask({ method: menu.value, options, prompt: prompt.value,
        temperature: Number(temperature.value), seed: Number(seed.value),
        max_new_tokens: Number(limit.value) });
    } }, "Record");
    const error = data.note ? h("p", { class: "says wrong", role: "alert", "data-error": "" },
      data.note) : null;
    return h("div", { style: "margin-bottom:8px" }, prompt, h("div", { class: "row",
      style: "margin-top:6px" }, h("label", {}, "method", menu),
      h("label", {}, "temperature", temperature), h("label", {}, "seed", seed),
      h("label", {}, "tokens", limit), run), error,
      traces.length ? h("p", { class: "soft" }, aboutOf(traces[traces.length - 1])) : null);
  }

  root.addEventListener("keydown", keys);
  const dark = () => root.classList.toggle("dark", themeOf(element));
  const watch = new MutationObserver(dark);
  for (const node of [document.body, document.documentElement]) {
    watch.observe(node, { attributes: true,
      attributeFilter: ["data-jp-theme-light", "data-theme", "class", "style"] });
  }
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", dark);
  let last = 0;
  const size = new ResizeObserver(() => {
    dark();
    if (Math.abs(root.clientWidth - last) < 2) return;
    last = root.clientWidth;
    root.style.minHeight = "";
    if (hosts.stage) draw();
  });
  size.observe(root);
  update(data);
  dark();
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const view = new IntersectionObserver(([seen]) => {
    if (ui.playing && !seen.isIntersecting) play(false);
    else if (!ui.playing && seen.isIntersecting && ui.frame < list.length - 1) play(true);
  });
  const touched = () => view.disconnect();
  if ((data.play || data.film) && !still) {
    view.observe(root);
    root.addEventListener("pointerdown", touched, { once: true });
    root.addEventListener("keydown", touched, { once: true });
  }
  return { update, destroy() {
    play(false);
    view.disconnect();
    watch.disconnect();
    size.disconnect();
    media.removeEventListener("change", dark);
    element.replaceChildren();
  } };
}

function aboutOf(trace) {
  const { temperature, seed } = trace.sampling;
  const tau = trace.tokens.length / trace.rounds.length;
  const heat = temperature === 0 ? "temperature 0" : `temperature ${temperature}, seed ${seed}`;
  const paper = trace.method.paper ? `${trace.method.paper} \u00b7 ` : "";
  return `${paper}${trace.target.name}, ${heat} \u00b7 rule ${trace.method.rule.name}, ` +
    `${trace.method.exactness} \u00b7 ${trace.tokens.length} tokens in ${trace.rounds.length} ` +
    `steps: ${tau.toFixed(2)} per step`;
}

function titleOf(trace, frame) {
  const round = trace.rounds[frame.r];
  const n = round.tokens.length - 1;
  return `Step ${frame.r + 1}: ${n} draft token${n === 1 ? "" : "s"}`;
}

function treeNote(trace, frame) {
  const round = trace.rounds[frame.r];
  const parts = [];
  const drawn = Object.values(round.rows).some((row) => row?.q);
  if (round.tokens.length > 1) parts.push(`Below each box: p (blue)${drawn ? " and q (orange)" : ""}. `
    + "Choose a box to see its decision.");
  if (round.beside) parts.push(`${round.beside} more tokens were computed in the same forward and ` +
    "are no candidates.");
  return parts.length ? h("p", { class: "soft" }, parts.join(" ")) : null;
}

function highlighted(trace, frame) {
  if (frame.stage === "bonus") return frame.node;
  if (frame.stage !== "test") return null;
  const level = trace.rounds[frame.r].levels[frame.l];
  return level.tests[frame.t].child ?? level.node;
}

function sayOf(trace, frame) {
  const round = trace.rounds[frame.r];
  const n = round.tokens.length - 1;
  if (frame.stage === "draft") return { kind: "draft", says: `The draft proposes ${n} token` +
    `${n === 1 ? "" : "s"} after \u201c${visible(trace.words[round.tokens[0]] ?? "")}\u201d. ` +
    `Nobody has judged ${n === 1 ? "it" : "them"} yet.` };
  if (frame.stage === "score") return { kind: "target", says: n ? "One forward of the target " +
    "scores all of them at once, and the place after each."
    : "One forward of the target scores the next place." };
  return { kind: frame.stage === "bonus" ? "target" : "", says: frame.stage === "bonus"
    ? `The step ends with the bonus token \u201c${visible(trace.words[round.bonus.token] ?? "")}` +
    "\u201d, the target\u2019s own." : "" };
}

// what a notebook's widget manager calls
function render({ model, el }) {
  const data = () => ({ traces: model.get("traces"), live: model.get("live"),
    note: model.get("note"), stage: model.get("stage") });
  const player = mount(el, data(), (settings) => model.send({ kind: "record", settings }));
  const fresh = () => player.update(data());
  model.on("change:serial", fresh);
  return () => {
    model.off("change:serial", fresh);
    player.destroy();
  };
}

export default { render };
